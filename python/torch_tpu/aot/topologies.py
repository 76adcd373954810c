# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Descriptions of TPU devices that need not be there."""

from __future__ import annotations

import dataclasses
import functools

from torch_tpu.aot import worker as workers
from torch_tpu.aot.errors import LibtpuMissing

__all__ = ["Topology", "describe", "is_available"]


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices and where they sit.

    Attributes
    ----------
    name : str
        As libtpu spells it: the chip, a colon, chips along each axis of the torus.
    platform_version : str
        Of the compiler.
    device_kind : str
        ``"TPU v6 lite"``, ``"TPU7x"`` and so on.
    device_count : int
        Devices that a program can be spread over. A TPU7x chip counts as two.
    coords : tuple of tuple of int
        Of each device, the place of its chip.
    cores : tuple of int
        Of each device, which core of the chip it is.
    processes : tuple of int
        Of each device, the host that drives it.
    memory_bytes : int
        What programs may use of one device's memory; 0 if the compiler does not tell.
    """

    name: str
    platform_version: str
    device_kind: str
    device_count: int
    coords: tuple[tuple[int, ...], ...]
    cores: tuple[int, ...]
    processes: tuple[int, ...]
    memory_bytes: int

    @property
    def chip_count(self) -> int:
        """How many chips the devices are on."""
        return len(set(self.coords))


@functools.lru_cache(maxsize=64)
def describe(name: str) -> Topology:
    """Describe a topology.

    Parameters
    ----------
    name : str
        ``"v5e:2x2"``, ``"v5p:2x2x1"``, ``"v6e:2x2"``, ``"v6e:16x16"``, ``"tpu7x:2x2x1"``,
        ``"tpu7x:4x8x8"`` and the like.

    Returns
    -------
    Topology

    Raises
    ------
    ValueError
        If libtpu knows no such topology.
    LibtpuMissing
        If libtpu is not installed.
    """
    try:
        fields = workers.shared().request([("topology", check_name(name))], timeout=300)
    except workers.WorkerDied:  # libtpu divides by a count of 0
        fields = [("status", b"ABORTED"), ("message", b"it dies of it")]
    answer = dict(fields)
    if answer["status"] != b"OK":
        raise ValueError(
            f"{name!r} is not a topology that libtpu knows ({first_line(answer['message'])}). "
            "Write the chip and its counts along each axis: v5e:2x2, v5p:2x2x1, v6e:16x16, "
            "tpu7x:2x2x1, tpu7x:4x8x8."
        )
    devices = [list(map(int, value.split())) for key, value in fields if key == "device"]
    return Topology(
        name=name,
        platform_version=answer["platform_version"].decode(),
        device_kind=answer["device_kind"].decode(),
        device_count=len(devices),
        coords=tuple(tuple(device[3:]) for device in devices),
        cores=tuple(device[2] for device in devices),
        processes=tuple(device[1] for device in devices),
        memory_bytes=int(answer["memory_limit"]),
    )


def is_available() -> bool:
    """Tell whether a TPU compiler is installed."""
    try:
        workers.shared()
    except LibtpuMissing:
        return False
    return True


def check_name(name: str) -> str:
    """Return `name`, which must be a single line.

    Raises
    ------
    ValueError
        If it is empty, too long, or has a line break.
    """
    if not isinstance(name, str) or not 0 < len(name) < 256 or not name.isprintable():
        raise ValueError(f"a topology is named by a text such as 'v6e:2x2', got {name!r}")
    return name


def first_line(message: bytes) -> str:
    """Return what a compiler's message says before it goes into its own sources."""
    text = message.decode(errors="replace").split("=== Source Location Trace")[0].strip()
    return text.split("\n")[0]
