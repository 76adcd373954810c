# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Process groups for device "tpu": one process per device, as ``torchrun`` starts them.

``torch.distributed`` knows the backend under two names, ``tpu_dist`` and ``tpu``; it is the
default for device "tpu". A group moves tensors of the host too, so that objects and barriers need
no second backend.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch_tpu.distributed.mesh import topology_aware_mesh

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["BACKEND_NAMES", "monitored_barrier", "register", "topology_aware_mesh"]

BACKEND_NAMES = ("tpu_dist", "tpu")
_DEVICES = ("tpu", "cpu")


def register() -> None:
    """Make the backend known to ``torch.distributed``; does nothing the second time.

    The first name becomes the default for device "tpu". ``import torch`` has imported
    ``torch.distributed`` already, so that this costs nothing.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    for name in BACKEND_NAMES:
        if name.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(name, _create, extended_api=True, devices=list(_DEVICES))


def _create(options: Any, backend_options: Any = None) -> Any:
    """Create the backend of one group; ``torch.distributed`` calls it on every member.

    Parameters
    ----------
    options : torch.distributed.distributed_c10d._DistributedBackendOptions
        The store, this process's rank in the group, the group's size, and the time-out.
    backend_options : torch.distributed.Backend.Options, optional
        What the caller gave as ``pg_options``; only its time-out has a meaning here.
    """
    from torch_tpu import _C
    from torch_tpu.distributed import _meeting

    timeout = options.timeout
    if backend_options is not None and getattr(backend_options, "_timeout", None):
        timeout = min(timeout, backend_options._timeout)
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    store = _meeting.meet(options.store, options.group_rank, options.group_size, timeout, ranks)
    return _C._create_host_group(
        store,
        options.group_rank,
        options.group_size,
        timeout,
        list(options.global_ranks_in_group),
        options.group_id,
    )


def _host_transport(
    store: dist.Store, rank: int, size: int, timeout: timedelta, ranks: list[int], name: str
) -> Any:
    """Create what moves a group's tensors between the hosts; also called by the extension."""
    import torch.distributed as dist

    if not dist.is_gloo_available():
        raise RuntimeError(
            "Process groups of device tpu move through Gloo on this plugin, and this PyTorch was "
            "built without Gloo."
        )
    host = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    host.options.global_ranks_in_group = ranks
    host.options.group_name = name
    return host


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait for all ranks, and name on rank 0 those that did not come.

    ``torch.distributed.monitored_barrier`` takes groups of backend "gloo" only; this one takes
    groups of backends ``tpu_dist`` and ``tpu``.

    Parameters
    ----------
    group : ProcessGroup, optional
        The default group if not given.
    timeout : timedelta, optional
        How long rank 0 waits; the group's time-out if not given.
    wait_all_ranks : bool
        Whether to name all missing ranks rather than the first.
    """
    import torch
    import torch.distributed as dist

    chosen = group if group is not None else dist.group.WORLD
    if chosen is None:
        raise ValueError("monitored_barrier: call torch.distributed.init_process_group first.")
    backend = chosen._get_backend(torch.device("tpu"))
    backend.monitored_barrier(
        timeout if timeout is not None else dist.default_pg_timeout, wait_all_ranks
    )
