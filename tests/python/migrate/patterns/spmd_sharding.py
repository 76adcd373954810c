"""Parameters and batches annotated with the axes of a mesh."""

import json

import numpy as np
import torch
import torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

xr.use_spmd()
device = xm.xla_device()
num_devices = xr.global_runtime_device_count()
mesh = xs.Mesh(np.arange(num_devices), (num_devices, 1), ("data", "model"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


torch.manual_seed(2)
model = Net().to(device)
xs.mark_sharding(model.up.weight, mesh, ("data", None))
xs.mark_sharding(model.up.bias, mesh, ("data",))
xs.mark_sharding(model.down.weight, mesh, (None, "data"))

torch.manual_seed(3)
batches = [(torch.randn(8, 8), torch.randn(8, 4))] * 4
loader = pl.MpDeviceLoader(
    batches, device, input_sharding=xs.ShardingSpec(mesh, ("data", None), minibatch=False)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for inputs, target in loader:
    optimizer.zero_grad()
    loss = (model(inputs) - target).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    losses.append(float(loss.detach().cpu()))

xm.master_print("RESULT " + json.dumps({"losses": losses}), flush=True)
