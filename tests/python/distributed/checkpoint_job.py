# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""A sharded training that begins, goes on from checkpoints, and writes checkpoints.

``torchrun checkpoint_job.py FROM TO FOLDER [CHECKPOINT]`` trains the steps FROM to TO, from a
checkpoint if one is named. It saves twice in FOLDER: ``step{TO}`` when it is there, and
``beside{TO}`` while it trains one step more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small_model import make_optimizer, sharded, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what a checkpoint holds."""
    parts = get_state_dict(model, optimizer)
    return {"model": parts[0], "optimizer": parts[1]}


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path, **how) -> None:
    """Load a checkpoint that any number of processes wrote."""
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=str(checkpoint), **how)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


def main(first: int, last: int, folder: Path, checkpoint: Path | None = None) -> None:
    dist.init_process_group("tpu_dist")
    model = sharded()
    optimizer = make_optimizer(model)
    if checkpoint:
        for p in model.parameters():
            nn.init.zeros_(p)
        resume(model, optimizer, checkpoint)
    train(model, optimizer, steps=range(first, last))
    dcp.save(state_of(model, optimizer), checkpoint_id=str(folder / f"step{last}"))
    saving = dcp.async_save(state_of(model, optimizer), checkpoint_id=str(folder / f"beside{last}"))
    train(model, optimizer, steps=range(last, last + 1))
    saving.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:]))
