# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Torus: the PyTorch device ``"tpu"``.

Installed, it needs no import: PyTorch loads it through the entry point group ``torch.backends`` at
the end of ``import torch``. Where that is switched off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``),
``import torch_tpu`` loads it. The device module is ``torch.tpu``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["__version__", "tpu"]


def _autoload() -> None:
    """Register the device with PyTorch.

    Safe to call any number of times. Needs no hardware and loads no plugin: that happens when a
    tensor first reaches the device.

    Raises
    ------
    ImportError
        If the installed PyTorch is not the one this package was built for, or the native
        extension cannot be loaded.
    """
    from torch_tpu import _loader

    _loader.load()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("torus-tpu")
        except PackageNotFoundError:
            return "0+unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Importing torch may call _autoload through the entry point before this module is complete, which
# is why it comes after the definition and why the call below must be harmless the second time.
import torch  # noqa: E402, F401

_autoload()
