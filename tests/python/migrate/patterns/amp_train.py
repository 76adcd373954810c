"""Mixed precision with torch_xla's autocast, scaler and optimizers."""

import json

import torch
import torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.amp import GradScaler, autocast, syncfree

torch.manual_seed(5)
device = xm.xla_device()
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)).to(device)
optimizer = syncfree.AdamW(model.parameters(), lr=1e-2)
scaler = GradScaler(init_scale=1024.0, use_zero_grad=True)
inputs = torch.randn(16, 8).to(device)
target = (inputs.sum(1) > 0).long()

losses, dtype = [], None
for _step in range(5):
    optimizer.zero_grad()
    with autocast(xm.xla_device(), dtype=torch.bfloat16):
        output = model(inputs)
        loss = nn.functional.cross_entropy(output.float(), target)
    dtype = str(output.dtype)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    xm.mark_step()
    losses.append(loss.item())

with torch.autocast("xla", enabled=False):
    plain = model(inputs).dtype

torch_xla.sync()
print("RESULT " + json.dumps({"losses": losses, "dtype": dtype, "plain": str(plain)}))
