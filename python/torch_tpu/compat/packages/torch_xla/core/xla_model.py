# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.core.xla_model: steps, reductions, checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import torch
from torch_tpu import compat, training
from torch_tpu.training import RateTracker  # noqa: F401

import torch_xla
from torch_xla import runtime

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

_Groups = list[list[int]] | None

_closures: list[Callable[[], Any]] = []


# ---- devices and processes ----


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return device "tpu"."""
    del devkind
    return torch_xla.device(n)


def get_xla_supported_devices(*args: Any, **kwargs: Any) -> list[str]:
    """Return the names of this process's devices."""
    del args, kwargs
    return [str(device) for device in torch_xla.devices()]


def xla_real_devices(devices: Any = None) -> list[str]:
    """Return the kinds of this process's devices."""
    del devices
    return torch_xla.real_devices()


def xla_device_hw(device: Any) -> str:
    """Return "TPU" or "CPU"."""
    del device
    return runtime.device_type()


def xla_device_kind(device: Any = None) -> str:
    """Return the kind of a device."""
    return torch.tpu.get_device_name(device)


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on device "tpu"."""
    return tensor.device.type == "tpu"


get_ordinal = training.rank
get_local_ordinal = training.local_rank
xrt_world_size = training.world_size


def is_master_ordinal(local: bool = True) -> bool:
    """Return whether this is the first process of the host, or of the job."""
    return training.is_main(local)


def master_print(
    *args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False
) -> None:
    """Print in the first process."""
    training.print_main(*args, file=fd or sys.stdout, local=local, flush=flush)


# ---- steps ----


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """End a step, see `torch_xla.sync`."""
    torch_xla.sync(wait, reset_scope)


def add_step_closure(
    closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False
) -> None:
    """Call a function at the end of the step; never in another thread."""
    del run_async
    _closures.append(lambda: closure(*args))


def _run_step_closures() -> None:
    waiting = _closures[:]
    _closures.clear()
    for closure in waiting:
        closure()


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait until the device has done everything."""
    del devices
    torch.tpu.synchronize()


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Wait until the device has done everything."""
    del tensors
    torch.tpu.synchronize()


def optimization_barrier_(tensors: list[torch.Tensor]) -> None:
    """Do nothing: checkpointing needs no barrier here."""


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: _Groups = None,
    pin_layout: bool = True,
) -> Any:
    """Average the gradients over the processes, and step."""
    del pin_layout
    result = training.optimizer_step(optimizer, groups, **(optimizer_args or {}))
    if barrier:
        torch_xla.sync()
    return result


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: _Groups = None, pin_layout: bool = True
) -> None:
    """Average the gradients over the processes."""
    del pin_layout
    training.reduce_gradients(optimizer, groups)


# ---- between processes ----


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    groups: _Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor | list[torch.Tensor]:
    """Combine tensors over the processes; has no gradient."""
    del pin_layout
    return training.all_reduce(reduce_type, inputs, scale, groups)


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: _Groups = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Concatenate the tensors of all processes."""
    del pin_layout
    result = training.all_gather(value, dim, groups)
    return result if output is None else output.copy_(result)


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,  # noqa: A002
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: _Groups = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Combine tensors over the processes and keep a part."""
    del shard_count, pin_layout
    result = training.reduce_scatter(reduce_type, input, scale, scatter_dim, groups)
    return result if output is None else output.copy_(result)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: _Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Exchange parts of tensors."""
    del split_count, pin_layout
    return training.all_to_all(value, split_dimension, concat_dimension, groups)


def collective_broadcast(
    tensors: list[torch.Tensor],
    root_ordinal: int = 0,
    groups: _Groups = None,
    pin_layout: bool = True,
) -> None:
    """Overwrite tensors with those of one process."""
    del pin_layout
    if groups:
        raise NotImplementedError("collective_broadcast with groups: use torch.distributed")
    training.broadcast(tensors, root_ordinal)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give every process the parameters of the first."""
    training.broadcast_parameters(model)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Exchange bytes between all processes, which waits for them."""
    del tag, replicas
    return training.gather(payload)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Collect objects from all processes and reduce them with a function."""
    del tag
    return reduce_fn(training.gather(data))


def do_on_ordinals(
    target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] = (0,)
) -> Any:
    """Call a function in some processes, with its tensors on the CPU; wait for all."""
    result = None
    if training.rank() in ordinals:
        result = target(*training.to_device(data, "cpu"))
    training.barrier()
    return result


# ---- data, checkpoints, random numbers, memory ----


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """Save data with its tensors on the CPU."""
    training.save(data, file_or_path, master_only, not global_master)


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """Move nested tensors to the device; a lone tensor comes back in a list."""
    datas = [datas] if isinstance(datas, torch.Tensor) else datas
    loader = training.DeviceLoader([datas], device, input_sharding)
    return next(iter(loader))


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seed the generator of the device."""
    del device
    torch.tpu.manual_seed(seed)


def get_rng_state(device: Any = None) -> int:
    """Return the seed of the device's generator."""
    del device
    return torch.tpu.initial_seed()


def fork_rng(device: Any = None, enabled: bool = True) -> Any:
    """Return a context that leaves the generator as it was."""
    del device
    return torch.random.fork_rng(enabled=enabled, device_type="tpu")


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Return bytes used, their peak, and the limit."""
    free, total = torch.tpu.mem_get_info(device)
    del free
    return {
        "bytes_used": torch.tpu.memory_allocated(device),
        "bytes_limit": total,
        "peak_bytes_used": torch.tpu.max_memory_allocated(device),
    }


__getattr__ = compat.missing("torch_xla.core.xla_model")
