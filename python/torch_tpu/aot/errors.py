# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What can go wrong when compiling ahead of time."""

from __future__ import annotations


class LibtpuMissing(RuntimeError):  # noqa: N818
    """The TPU compiler is not installed; the message says how to get it."""


class CompilationRefused(RuntimeError):  # noqa: N818
    """The compiler does not take a program, or dies of it.

    Attributes
    ----------
    code : str
        ``"INVALID_ARGUMENT"``, ``"RESOURCE_EXHAUSTED"`` (does not fit into the device's memory),
        ``"UNIMPLEMENTED"`` and so on; ``"ABORTED"`` when the compiling process ended.
    detail : str
        All that the compiler said.
    topology : str
        For which devices.
    """

    def __init__(self, message: str, *, code: str, detail: str, topology: str) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail
        self.topology = topology
