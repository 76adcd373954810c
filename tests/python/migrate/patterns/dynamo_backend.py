"""torch.compile with the backend of torch_xla, and the device by its name."""

import json

import torch
import torch_xla.core.xla_model as xm

DEVICE = "xla"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        assert "xla" in str(x.device), "put the inputs on the device"
        return torch.relu(self.layer(x))


torch.manual_seed(8)
model = Model().eval().to("xla")
compiled = torch.compile(model, backend="openxla")
with torch.no_grad():
    output = compiled(torch.ones(2, 4, device=DEVICE))
copied = torch.zeros(2, 4, device="xla:0").copy_(output)
print(
    "RESULT "
    + json.dumps(
        {
            "sum": copied.sum().item(),
            "on_device": xm.is_xla_tensor(copied),
            "type": copied.device.type != "cpu",
        }
    )
)
