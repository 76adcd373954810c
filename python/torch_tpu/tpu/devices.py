# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Which devices there are, which one is current, and what they are."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

import torch

from torch_tpu import _C, platform
from torch_tpu.tpu._utils import (
    Device,
    _device_count,
    _get_device_index,
    _is_available,
    _require_process,
)

# Marketing names by the names that libtpu reports.
_KINDS = {
    "TPU v4 lite": "TPU v4i",
    "TPU v5 lite": "TPU v5e",
    "TPU v5": "TPU v5p",
    "TPU v6 lite": "TPU v6e",
    "TPU v7": "TPU v7x",
    "TPU7x": "TPU v7x",
}


def is_available() -> bool:
    """Return whether there is a device to use.

    True when a plugin was found: libtpu on a machine with a TPU, or the CPU plugin. Opens nothing,
    so it is safe before a fork.
    """
    return _is_available()


def device_count() -> int:
    """Return the number of devices of this process; 0 when there is no plugin.

    Opens the devices, unless the CPU plugin is used.
    """
    return _device_count()


def is_initialized() -> bool:
    """Return whether the devices are open in this process."""
    return _C._is_initialized() and not _C._is_in_bad_fork()


def init() -> None:
    """Open the devices now instead of at the first use.

    Raises
    ------
    RuntimeError
        If there is no plugin, it cannot be loaded, or this process was forked from one in which
        the devices were open. The message says what to do.
    """
    _require_process()
    _C._init()


def _lazy_init() -> None:
    init()


def _is_in_bad_fork() -> bool:
    return _C._is_in_bad_fork()


def _is_compiled() -> bool:
    return True


def current_device() -> int:
    """Return the index of the calling thread's current device."""
    return _C._current_device()


def set_device(device: Device) -> None:
    """Make a device the current one of the calling thread.

    Parameters
    ----------
    device : torch.device, str or int
        A negative index changes nothing.

    Raises
    ------
    RuntimeError
        If there is no such device.
    """
    index = _get_device_index(device)
    if index < 0:
        return
    _require_process()
    count = _device_count()
    if count == 1 and str(index) == os.environ.get("LOCAL_RANK"):
        index = 0  # launchers count processes; each has one device, whose index is 0
    if count and index >= count:
        raise RuntimeError(
            f"There is no device tpu:{index}: {count} "
            f"{'device is' if count == 1 else 'devices are'} available (tpu:0"
            f"{f' to tpu:{count - 1}' if count > 1 else ''})."
        )
    _C._set_device(index)


def _exchange_device(device: int) -> int:
    """Make a device current; returns the previous one. A negative index changes nothing."""
    return -1 if device < 0 else _C._exchange_device(device)


def _maybe_exchange_device(device: int) -> int:
    return _exchange_device(device)


class device:  # noqa: N801
    """Context manager that makes a device the current one.

    Parameters
    ----------
    device : torch.device, str, int or None
        None or a negative index changes nothing.
    """

    def __init__(self, device: Any) -> None:
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *exc_info: object) -> bool:
        self.idx = _exchange_device(self.prev_idx)
        return False


class device_of(device):  # noqa: N801
    """Context manager that makes the device of a tensor or storage the current one.

    Parameters
    ----------
    obj : torch.Tensor or torch.UntypedStorage
        Anything that is not on a tpu device changes nothing.
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "tpu" else -1)


def synchronize(device: Device = None) -> None:
    """Wait until a device has done all that was asked of it.

    Errors of earlier operations are raised here. Does nothing while the devices are not open.
    """
    _require_process()
    if _C._is_initialized():
        _C._synchronize(_get_device_index(device, optional=True))


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device.

    Attributes
    ----------
    name : str
        Such as ``"TPU v6e"``.
    index : int
        Its index among the devices of this process.
    total_memory : int
        Bytes of device memory.
    multi_processor_count : int
        Always 1: a program uses the whole device.
    major, minor : int
        See `get_device_capability`.
    platform : str
        ``"tpu"`` or ``"cpu"``, as the plugin calls it.
    platform_version : str
        The plugin's own description of its version.
    """

    name: str
    index: int
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int
    platform: str
    platform_version: str


def get_device_name(device: Device = None) -> str:
    """Return the name of a device, such as ``"TPU v6e"``.

    On the CPU plugin the name says so. Opens the devices.
    """
    init()
    if _C._platform() == "cpu":
        chosen = platform.current()
        return f"Torus CPU ({chosen.package or os.path.basename(chosen.plugin_path)})"
    kind = _C._device_kind(_get_device_index(device, optional=True))
    return _KINDS.get(kind, kind)


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Return the generation of a TPU and 0, such as ``(6, 0)``; ``(0, 0)`` elsewhere."""
    generation = re.match(r"TPU v(\d+)", get_device_name(device))
    return (int(generation[1]) if generation else 0, 0)


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return what is known of a device. Opens the devices."""
    init()
    index = _get_device_index(device, optional=True)
    major, minor = get_device_capability(index)
    return DeviceProperties(
        name=get_device_name(index),
        index=index,
        total_memory=_C._mem_get_info(index)[1],
        multi_processor_count=1,
        major=major,
        minor=minor,
        platform=_C._platform(),
        platform_version=_C._platform_version(),
    )


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True: every device computes in bfloat16."""
    del including_emulation
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast may compute in."""
    return [torch.bfloat16, torch.float16]


def _get_device(device: Device) -> torch.device:
    if isinstance(device, int):
        return torch.device("tpu", device)
    return torch.device(device if device is not None else "tpu")
