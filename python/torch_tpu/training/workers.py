# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The processes of a job: starting them, counting them, waiting for them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TextIO

import torch.distributed as dist

from torch_tpu import platform

_BACKEND = "tpu_dist"


def init(timeout: timedelta | None = None) -> None:
    """Join the processes of this job into the default group; does nothing the second time.

    The processes are those of ``torchrun`` or `launch`, told by ``RANK`` and ``WORLD_SIZE``. In a
    plain process the group has one member, so that everything built on groups works there too.

    Parameters
    ----------
    timeout : timedelta, optional
        How long an operation of the group may take.
    """
    if dist.is_initialized():
        return
    limit = {} if timeout is None else {"timeout": timeout}
    if _environment_size() > 1 or "RANK" in os.environ:
        dist.init_process_group(_BACKEND, **limit)
    else:
        dist.init_process_group(_BACKEND, rank=0, world_size=1, store=dist.HashStore(), **limit)


def _environment_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def world_size() -> int:
    """Return the number of processes of the job."""
    return dist.get_world_size() if dist.is_initialized() else _environment_size()


def rank() -> int:
    """Return this process's number among those of the job."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def local_world_size() -> int:
    """Return the number of processes on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return this process's number among those on this host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def node_rank() -> int:
    """Return this host's number among those of the job."""
    return int(os.environ.get("GROUP_RANK", "0"))


def is_main(local: bool = False) -> bool:
    """Return whether this is the first process of the job, or with `local` of its host."""
    return (local_rank() if local else rank()) == 0


def print_main(
    *args: Any, file: TextIO | None = None, local: bool = False, flush: bool = False
) -> None:
    """Print in the first process of the job, or with `local` in the first one of each host."""
    if is_main(local):
        print(*args, file=file if file is not None else sys.stdout, flush=flush)


def barrier() -> None:
    """Wait until every process has come here."""
    if world_size() > 1:
        init()
        dist.barrier()


class SerialExecutor:
    """Runs a function in one process after the other, the first one first.

    For what only one may do at a time, such as downloading into a folder that all share.
    """

    def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` when it is this process's turn; all processes must call this.

        Returns
        -------
        object
            What the function returned here.
        """
        result = None
        for turn in range(world_size()):
            if turn == rank():
                result = function()
            barrier()
        return result


def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    *,
    start_method: str = "spawn",
    join: bool = True,
    daemon: bool = False,
) -> Any:
    """Call ``function(index, *args)`` in one process per device.

    Under ``torchrun`` the processes are there already, and the function is called in this one.
    Where there is one device it is called here too. The group is joined by the first function of
    this package that needs it, or by `init`.

    Parameters
    ----------
    function : callable
        Takes the process's number and `args`. With ``start_method="spawn"`` it must be at the top
        of a module, which every process imports.
    args : sequence
        Further arguments.
    nprocs : int, optional
        How many processes; by default as many as there are devices (``TORUS_CPU_DEVICES`` on the
        CPU plugin).
    start_method : {"spawn", "fork", "forkserver"}
        How processes are started.
    join : bool
        Whether to wait for them.
    daemon : bool
        Whether they end with this process.

    Returns
    -------
    object
        None after waiting, else the context to wait with; what the function returned if it was
        called in this process.

    Raises
    ------
    ValueError
        If `nprocs` is not positive.
    RuntimeError
        If several processes are asked for on a TPU, whose chips must be divided among processes
        before they start.
    """
    if dist.is_torchelastic_launched():
        return function(rank(), *args)
    count = _default_count() if nprocs is None else nprocs
    if count < 1:
        raise ValueError(f"launch: nprocs={count} must be at least 1")
    if count == 1:
        return function(0, *args)
    if platform.current().name == "tpu":
        raise RuntimeError(
            f"launch: {count} processes on a TPU need its chips divided among them before they "
            "start. Start the script with torchrun --nproc-per-node, or pass nprocs=1."
        )
    from torch import multiprocessing

    return multiprocessing.start_processes(
        _work,
        args=(function, tuple(args), count, _free_port()),
        nprocs=count,
        join=join,
        daemon=daemon,
        start_method=start_method,
    )


def _default_count() -> int:
    from torch_tpu import tpu

    return max(tpu.device_count(), 1)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _work(
    index: int, function: Callable[..., Any], args: tuple[Any, ...], count: int, port: int
) -> None:
    """Be process `index` of `count`: call the function, then leave the group if it was joined."""
    os.environ.update(
        RANK=str(index),
        LOCAL_RANK=str(index),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    function(index, *args)
    if dist.is_initialized():
        dist.destroy_process_group()
