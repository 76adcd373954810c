# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Device memory: what is used, what was used at most, and what is free.

Sizes are in bytes. While the devices are not open everything is 0, and asking does not open them,
except for `mem_get_info`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch_tpu import _C
from torch_tpu.tpu._utils import Device, _get_device_index, _require_process

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
]

_SUMMARY_ROWS = (
    ("Allocated memory", "allocated_bytes.all", True),
    ("Reserved memory", "reserved_bytes.all", True),
    ("Allocations", "allocation.all", False),
)
_SUMMARY_COLUMNS = ("current", "peak", "allocated", "freed")


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """Return all figures of a device, by the names that `torch.cuda.memory_stats` uses."""
    if not _C._is_initialized():
        return OrderedDict()
    stats = _C._memory_stats(_get_device_index(device, optional=True))
    return OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Return the figures of `memory_stats` as nested dictionaries."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *parents, last = key.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = value
    return nested


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that tensors use now."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Device = None) -> int:
    """Return the most bytes that tensors used since the last reset."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Device = None) -> int:
    """Return the bytes that the plugin's allocator holds now."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Device = None) -> int:
    """Return the most bytes that the plugin's allocator held since the last reset."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free and the total bytes of a device. Opens the devices."""
    _require_process()
    _C._init()
    free, total = _C._mem_get_info(_get_device_index(device, optional=True))
    return free, total


def empty_cache() -> None:
    """Give back memory that the engine keeps for later use."""
    if _C._is_initialized():
        _C._empty_cache()


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the peaks again from what is used now."""
    if _C._is_initialized():
        _C._reset_peak_memory_stats(_get_device_index(device, optional=True))


def reset_max_memory_allocated(device: Device = None) -> None:
    """Do the same as `reset_peak_memory_stats`, under the older name."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start the sums of what was ever allocated and freed again from 0."""
    if _C._is_initialized():
        _C._reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Return the figures of a device as a table.

    Parameters
    ----------
    device : torch.device, str, int or None
        The current device by default.
    abbreviated : bool
        Leave out the sums over the life of the process.
    """
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    columns = _SUMMARY_COLUMNS[: 2 if abbreviated else 4]
    lines = [
        f"Memory of tpu:{index}" + ("" if stats else " (not open yet)"),
        f"{'':<18}" + "".join(f"{column:>14}" for column in columns),
    ]
    for title, key, is_bytes in _SUMMARY_ROWS:
        values = [stats.get(f"{key}.{column}", 0) for column in columns]
        cells = [_format_bytes(value) if is_bytes else str(value) for value in values]
        lines.append(f"{title:<18}" + "".join(f"{cell:>14}" for cell in cells))
    if stats:
        free, total = mem_get_info(index)
        lines.append(f"{'Free':<18}{_format_bytes(free):>14} of {_format_bytes(total)}")
    return "\n".join(lines)


def _format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
