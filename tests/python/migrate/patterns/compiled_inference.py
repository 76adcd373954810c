"""Inference with compiled functions: as an object, a decorator, a context, and through Dynamo."""

import json

import torch
import torch_xla

device = torch_xla.device()
torch.manual_seed(6)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
model = model.eval().to(device)
inputs = torch.randn(3, 4).to(device)

compiled = torch_xla.compile(model, full_graph=True)


@torch_xla.compile(full_graph=True, name="normalize")
def normalize(x):
    return x / x.norm(dim=-1, keepdim=True)


@torch_xla.compile()
def scale(x):
    return x * 2


with torch.no_grad():
    first = normalize(compiled(inputs))
    with torch_xla.compile():
        # The region runs as one program.
        second = scale(model(inputs)) / 2

result = {
    "first": first.flatten().tolist(),
    "second": second.flatten().tolist(),
    "norm": first.norm(dim=-1).tolist(),
    "on": first.device.type == "xla" or first.device.type == "tpu",
}
print("RESULT " + json.dumps(result))
