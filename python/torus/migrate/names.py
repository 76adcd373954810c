# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The names of torch_xla and optimum-tpu, each under one spelling.

torch_xla offers the same function under several modules. Everything else in this package knows a
name by its *canonical* spelling: ``xm.``, ``xr.``, ``xs.`` and so on stand for whole modules.
"""

from __future__ import annotations

# Longest first, so that a module is found before its parents.
_MODULES = {
    "torch_xla.distributed.spmd.xla_sharding": "xs",
    "torch_xla.distributed.xla_multiprocessing": "xmp",
    "torch_xla.distributed.parallel_loader": "pl",
    "torch_xla.experimental.xla_sharding": "xs",
    "torch_xla.distributed.xla_backend": "xla_backend",
    "torch_xla.core.xla_model": "xm",
    "torch_xla.core.functions": "xf",
    "torch_xla.debug.metrics": "met",
    "torch_xla.debug.profiler": "xp",
    "torch_xla.utils.serialization": "xser",
    "torch_xla.utils.utils": "xu",
    "torch_xla.experimental.pjrt": "xr",
    "torch_xla.distributed.spmd": "xs",
    "torch_xla.experimental.eager": "experimental",
    "torch_xla.experimental": "experimental",
    "torch_xla.amp.syncfree": "syncfree",
    "torch_xla.amp.autocast_mode": "amp",
    "torch_xla.amp.grad_scaler": "amp",
    "torch_xla.amp": "amp",
    "torch_xla.runtime": "xr",
    "torch_xla.torch_xla": "torch_xla",
    "optimum.tpu.modeling": "optimum.tpu",
}

# Functions of other libraries that ask for torch_xla.
PROBES = {
    f"{module}.is_torch_xla_available"
    for module in ("transformers", "transformers.utils", "transformers.utils.import_utils")
}

_ROOTS = ("torch_xla", "optimum.tpu")


def is_foreign(name: str) -> bool:
    """Return whether a qualified name belongs to what is migrated from."""
    return name in PROBES or any(name == root or name.startswith(root + ".") for root in _ROOTS)


def canonical(name: str) -> str:
    """Return a qualified name such as ``torch_xla.core.xla_model.save`` as ``xm.save``."""
    for module, short in _MODULES.items():
        if name == module:
            return short
        if name.startswith(module + "."):
            return short + name[len(module) :]
    return name


def pretty(name: str) -> str:
    """Return a canonical name as people write it."""
    return name.removeprefix("torch_xla.torch_xla.")
