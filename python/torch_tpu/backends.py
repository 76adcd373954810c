# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The module ``torch.backends.tpu``: whether the device is there, without opening it."""

from __future__ import annotations

__all__ = ["is_available", "is_built", "platform", "version"]


def is_built() -> bool:
    """Return True: the native extension is loaded."""
    return True


def is_available() -> bool:
    """Return whether a plugin was found; see `torch.tpu.is_available`."""
    from torch_tpu import tpu

    return tpu.is_available()


def platform() -> str:
    """Return the chosen platform: ``"tpu"``, ``"cpu"``, ``"cuda"``, ``"plugin"`` or ``"none"``."""
    from torch_tpu import platform as platform_module

    return platform_module.current().name


def version() -> str:
    """Return the version of Torus."""
    import torch_tpu

    return torch_tpu.__version__
