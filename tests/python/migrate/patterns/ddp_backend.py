"""DistributedDataParallel over the process group of torch_xla."""

import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch_xla
import torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch_xla import runtime as xr


def _mp_fn(index):
    dist.init_process_group("xla", init_method="xla://")
    torch.manual_seed(7)
    device = torch_xla.device()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    model = DDP(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + xr.global_ordinal())
    inputs = torch.randn(8, 6)
    target = inputs.mean(1, keepdim=True)
    losses = []
    for _ in range(4):
        with torch_xla.step():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    if xr.global_ordinal() == 0:
        print("RESULT " + json.dumps({"size": dist.get_world_size(), "losses": losses}), flush=True)


if __name__ == "__main__":
    torch_xla.launch(_mp_fn, args=())
