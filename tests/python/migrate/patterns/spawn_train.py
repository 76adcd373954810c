"""Data parallel over processes that the program starts itself."""

import json
import os

import numpy as np
import torch
import torch.nn as nn
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SERIAL_EXEC = xmp.MpSerialExecutor()
torch.manual_seed(0)
WRAPPED_MODEL = xmp.MpModelWrapper(nn.Linear(4, 1))


def get_dataset():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(32, 4, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def _mp_fn(index, flags):
    torch.manual_seed(42)
    dataset = SERIAL_EXEC.run(get_dataset)
    sampler = None
    if xr.world_size() > 1:
        sampler = DistributedSampler(
            dataset, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=False
        )
    loader = DataLoader(dataset, batch_size=flags["batch_size"], sampler=sampler, drop_last=True)

    device = xm.xla_device()
    model = WRAPPED_MODEL.to(device)
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=flags["lr"] * xr.world_size())

    for _ in range(flags["epochs"]):
        para_loader = pl.MpDeviceLoader(loader, device)
        for data, target in para_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data), target)
            loss.backward()
            # Averages the gradients over all replicas.
            xm.optimizer_step(optimizer, barrier=False)

    mean = xm.mesh_reduce("loss", loss.item(), np.mean)
    weights = xm.mesh_reduce("weights", model.weight, lambda all_weights: all_weights)
    spread = max((weights[0] - other).abs().max().item() for other in weights)
    total = xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device=device), scale=0.5)
    parts = xm.all_gather(torch.full((1,), float(index), device=device), dim=0)
    xm.rendezvous("trained")
    if xm.is_master_ordinal():
        xm.save(model.state_dict(), os.path.join(flags["folder"], "model.pt"))
    xm.master_print(
        "RESULT "
        + json.dumps(
            {
                "processes": xr.world_size(),
                "loss": float(mean),
                "spread": spread,
                "total": total.tolist(),
                "parts": parts.tolist(),
                "weight": weights[0].tolist(),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    FLAGS = {"batch_size": 4, "lr": 0.05, "epochs": 3, "folder": os.getcwd()}
    xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=2)
