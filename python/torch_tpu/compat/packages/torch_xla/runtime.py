# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.runtime: processes and devices."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch_tpu import compat, platform, training

_spmd = False


def device_type() -> str:
    """Return "TPU" or "CPU"."""
    return platform.current().name.upper()


def set_device_type(pjrt_device: str) -> None:
    """Check that the plugin in use is of this kind; it cannot change after ``import torch``."""
    if pjrt_device.upper() != device_type():
        raise RuntimeError(
            f"the plugin in use is {device_type()}: set TORUS_PLATFORM={pjrt_device.lower()} "
            "before the program starts"
        )


def is_bf16_supported() -> bool:
    """Return True."""
    return torch.tpu.is_bf16_supported()


world_size = training.world_size
global_device_count = training.world_size
global_runtime_device_count = training.world_size
process_count = training.world_size
global_ordinal = training.rank
process_index = training.rank
local_ordinal = training.local_rank
local_process_count = training.local_world_size
local_device_count = training.local_world_size
host_index = training.node_rank


def addressable_device_count() -> int:
    """Return the number of devices of this process."""
    return torch.tpu.device_count()


addressable_runtime_device_count = addressable_device_count


def use_spmd(auto: bool | None = False) -> None:
    """Join the processes into a mesh: one process per device, not one for all of them."""
    global _spmd
    if auto:
        raise NotImplementedError("use_spmd(auto=True): automatic sharding is not there")
    training.replicate_unmarked()
    _spmd = True


def is_spmd() -> bool:
    """Return whether `use_spmd` was called."""
    return _spmd


def get_master_ip() -> str:
    """Return the address of the first host."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Choose the folder of compiled programs; call it before the device is used."""
    del readonly
    if torch.tpu.is_initialized():
        raise RuntimeError("initialize_cache: the device is in use already")
    os.environ["TORUS_CACHE_DIR"] = path


def get_num_cached_compilation_graph() -> int:
    """Return the number of programs compiled."""
    return torch.tpu.metrics()["compilations"]


def runtime_device_attributes(device: Any) -> dict[str, Any]:
    """Return what is known of a device."""
    return {"name": torch.tpu.get_device_name(device)}


__getattr__ = compat.missing("torch_xla.runtime")
