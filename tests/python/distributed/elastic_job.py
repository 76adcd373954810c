# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""A sharded training that saves every few steps and goes on from the last checkpoint.

``torchrun --max-restarts=1 elastic_job.py FOLDER [STEP]``: at its first start rank 1 is killed
before STEP. Rank 0 writes the steps that it did and the weights at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_job import resume, state_of
from small_model import STEPS, make_optimizer, sharded, train, whole

EVERY = 5


def last_checkpoint(folder: Path) -> int:
    """Return the step of the newest checkpoint that is whole: DCP writes its metadata last."""
    whole_ones = [path.parent.name for path in folder.glob("step*/.metadata")]
    return max((int(name.removeprefix("step")) for name in whole_ones), default=0)


def main(folder: Path, fatal_step: int = -1) -> None:
    dist.init_process_group("tpu_dist")
    first_start = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    model = sharded()
    optimizer = make_optimizer(model)
    begin = last_checkpoint(folder)
    if begin:
        resume(model, optimizer, folder / f"step{begin}")
    for step in range(begin, STEPS):
        if step == fatal_step and first_start and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train(model, optimizer, steps=range(step, step + 1))
        if (step + 1) % EVERY == 0:
            dcp.save(state_of(model, optimizer), checkpoint_id=str(folder / f"step{step + 1}"))
        if dist.get_rank() == 0:
            with open(folder / "steps.txt", "a", encoding="utf-8") as file:
                file.write(f"{step}\n")
    weights = {name: whole(p) for name, p in model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save(weights, folder / "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
