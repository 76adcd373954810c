# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Device indices and the state of the process, for the other modules of ``torch.tpu``."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from torch_tpu import _C, platform

Device: TypeAlias = torch.device | str | int | None


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index that a device argument means.

    Parameters
    ----------
    device : torch.device, str, int or None
        ``"tpu"`` without an index means the current device.
    optional : bool
        Whether None is allowed; it means the current device.
    allow_cpu : bool
        Whether a CPU device is allowed; its index is -1.

    Raises
    ------
    ValueError
        If it is another type of device, or None where that is not allowed.
    TypeError
        If it is no device at all.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "tpu":
            raise ValueError(f"Expected a tpu device, but got: {device}")
        return _C._current_device() if device.index is None else device.index
    if device is None:
        if optional:
            return _C._current_device()
        raise ValueError("Expected a tpu device or an index, but got: None")
    if isinstance(device, int):
        return device
    raise TypeError(f"Expected a torch.device, str or int, but got: {type(device).__name__}")


def _require_process() -> None:
    """Raise in a process that was forked after the device was opened."""
    if _C._is_in_bad_fork():
        raise RuntimeError(
            "Cannot use the tpu device in a forked process: it was opened before the fork, and its "
            "threads do not exist here. Start processes with the 'spawn' method, for example "
            "torch.multiprocessing.set_start_method('spawn'), or fork before the first use."
        )


def _is_available() -> bool:
    return not platform.current().error


def _device_count() -> int:
    chosen = platform.current()
    if chosen.error:
        return 0
    # Known beforehand, so asking does not open the device; torch.random.fork_rng asks often.
    if chosen.cpu_device_count > 0:
        return chosen.cpu_device_count
    _require_process()
    return _C._device_count()
