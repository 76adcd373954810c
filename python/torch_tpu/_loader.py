# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Joins the native extension to PyTorch, once per process.

Everything here runs inside ``import torch``, so it imports nothing heavy, opens no device and
prints nothing.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import sys
import threading
from types import ModuleType

_BACKEND = "tpu"
_VERSION_FILE = "_torch_version.txt"
_FALLBACK_POLICIES = ("warn", "error", "silent")

_lock = threading.RLock()
_loaded = False


def load() -> None:
    """Register the backend; does nothing when it is registered already.

    Raises
    ------
    ImportError
        If PyTorch has another version than the extension was built for, the extension cannot be
        loaded, or another backend holds PyTorch's place for out-of-tree devices.
    """
    global _loaded
    with _lock:
        if _loaded:
            return
        import torch

        extension = _import_extension(torch.__version__)
        _rename(torch)
        # The line that called an operator is the innermost one outside these folders.
        libraries = (torch.__file__ or "", __file__)
        extension._set_library_folders(
            [os.path.join(os.path.dirname(path), "") for path in libraries]
        )
        platform_is_cpu = _configure(extension)
        _register_python(torch)
        _set_defaults(torch, platform_is_cpu)
        # Joins the worker, and lets autograd's thread drop what it holds while Python still runs.
        atexit.register(extension._shutdown)
        _loaded = True


def _import_extension(torch_version: str) -> ModuleType:
    """Import ``torch_tpu._C`` after checking that it fits the running PyTorch."""
    check_torch_version(torch_version, _built_version())
    try:
        _C = importlib.import_module("torch_tpu._C")  # noqa: N806
    except ImportError as error:
        raise ImportError(
            f"The native part of Torus could not be loaded into PyTorch {torch_version}: {error}. "
            "It only fits the PyTorch it was built for: reinstall torus-tpu (from a checkout: "
            "make build), or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to use PyTorch without it."
        ) from error
    check_torch_version(torch_version, _C._torch_version)
    return _C


def _built_version() -> str:
    """Read which PyTorch the extension was built for, without loading it; empty if unknown."""
    try:
        spec = importlib.util.find_spec("torch_tpu._C")
        folder = os.path.dirname(spec.origin or "") if spec else ""
        with open(os.path.join(folder, _VERSION_FILE), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def check_torch_version(running: str, built: str) -> None:
    """Compare two versions of PyTorch by major and minor number.

    libtorch keeps no binary interface between minor versions, so a mismatch would crash later.

    Parameters
    ----------
    running, built : str
        Such as ``"2.13.0+cpu"``. An empty `built` passes: it is not known.

    Raises
    ------
    ImportError
        If they differ.
    """
    if not built or running.split(".")[:2] == built.split(".")[:2]:
        return
    wanted = built.split("+")[0]
    raise ImportError(
        f"Torus was built for PyTorch {built}, but PyTorch {running} is installed. "
        f"Either install that PyTorch (pip install torch=={wanted}) or rebuild Torus for this one "
        "(pip install --force-reinstall --no-deps --no-build-isolation torus-tpu). To use PyTorch "
        "without Torus, set TORCH_DEVICE_BACKEND_AUTOLOAD=0."
    )


def _rename(torch: ModuleType) -> None:
    """Give PyTorch's out-of-tree device the name "tpu"."""
    current = torch._C._get_privateuse1_backend_name()
    if current == _BACKEND:
        return
    if current != "privateuseone":
        raise ImportError(
            f"PyTorch has room for one out-of-tree device and {current!r} already has it. "
            f"Uninstall one of the two packages, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import "
            "only the one you want."
        )
    torch.utils.rename_privateuse1_backend(_BACKEND)


def _configure(extension: ModuleType) -> bool:
    """Tell the extension which plugin to load, later; returns whether it is a CPU plugin."""
    from torch_tpu import platform
    from torch_tpu.tpu import modes

    chosen = platform.current()
    errors = [chosen.error] if chosen.error else []
    mode, mode_error = modes.mode_from_environment(os.environ)
    policy = os.environ.get("TORUS_FALLBACK", "")
    if mode_error:
        errors.append(mode_error)
    if policy and policy not in _FALLBACK_POLICIES:
        errors.append(f"TORUS_FALLBACK={policy!r} is none of {', '.join(_FALLBACK_POLICIES)}.")
    extension._configure(
        chosen.plugin_path, chosen.is_cpu, chosen.cpu_device_count, " ".join(errors)
    )
    extension._set_mode(mode)
    if policy in _FALLBACK_POLICIES:
        extension._set_fallback(policy)
    return chosen.is_cpu


def _register_python(torch: ModuleType) -> None:
    """Add torch.tpu, torch.backends.tpu, Tensor.tpu() and their like, and the tensor printer."""
    from torch_tpu import (
        _autocast,
        _default_backend,
        _dlpack,
        _repr,
        backends,
        distributed,
        tpu,
    )

    if getattr(torch, _BACKEND, None) is not tpu:
        torch._register_device_module(_BACKEND, tpu)
    for name in ("_utils", "memory", "random", "streams"):
        sys.modules[f"torch.tpu.{name}"] = getattr(tpu, name)
    torch.backends.tpu = backends
    sys.modules["torch.backends.tpu"] = backends
    if not hasattr(torch.Tensor, "is_tpu"):
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
    distributed.register()
    _repr.install()
    _autocast.install()
    _dlpack.install()
    _default_backend.install()


def _set_defaults(torch: ModuleType, platform_is_cpu: bool) -> None:
    """Set autocast's dtype and the variable through which Accelerate learns of the device."""
    torch.set_autocast_dtype(_BACKEND, torch.bfloat16)
    if torch.tpu.is_available() and not _would_hide_gpu(torch, platform_is_cpu):
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", _BACKEND)


def _would_hide_gpu(torch: ModuleType, platform_is_cpu: bool) -> bool:
    """Tell whether a PyTorch for GPUs meets the CPU plugin that nobody asked for by name."""
    chosen_by_user = os.environ.get("TORUS_PLATFORM", "auto") != "auto"
    built_for_gpu = any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))
    return platform_is_cpu and built_for_gpu and not chosen_by_user
