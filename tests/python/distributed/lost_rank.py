# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""One rank of a job in which rank 1 (or the store's process) goes missing."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def _go_missing(how: str, rank: int) -> None:
    if how == "store" and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank != 1:
        return
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "slow":
        time.sleep(15)


def _join(port_file: Path, rank: int, size: int) -> None:
    """Meet at a port that rank 0 chooses."""
    port = 0
    while rank != 0 and not port:
        port = int(port_file.read_text() or 0) if port_file.exists() else 0
    wait = datetime.timedelta(seconds=60)
    store = dist.TCPStore("localhost", port, size, rank == 0, wait, wait_for_workers=False)
    if rank == 0:
        port_file.write_text(str(store.port))
    dist.init_process_group(
        "tpu_dist",
        store=store,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=4),
    )


def main(how: str, rank: int, size: int, folder: Path) -> None:
    """Save a checkpoint, lose a rank, and write down the error and how long it took."""
    _join(folder / "port", rank, size)
    t = torch.ones(3, 4, device="tpu")
    for _ in range(3):
        dist.all_reduce(t)
    if rank == 0:
        torch.save({"t": t}, folder / "checkpoint.pt")
    dist.barrier()
    time.sleep(1)
    _go_missing(how, rank)
    started = time.monotonic()
    try:
        dist.all_reduce(t)
        outcome = "no error"
    except dist.DistBackendError as error:
        outcome = f"{time.monotonic() - started:.1f} {error}"
    (folder / f"outcome{rank}.txt").write_text(outcome, encoding="utf-8")
    time.sleep(2)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
