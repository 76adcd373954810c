# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Lets programs for torch_xla run on Torus as they are, where nobody has migrated them yet.

The package ``torch_xla`` that lies in this folder has torch_xla's names over `torch_tpu.training`
and ``torch.tpu``. It is not on Python's path: an installed Torus must never stand in the way of a
real torch_xla, and libraries that look for torch_xla must not find one by accident. `enable` puts
it at the end of the path, where a real one would still win, and refuses if there is one. From the
command line that is

    python -m torch_tpu.compat train.py --epochs 2
    torchrun --nproc-per-node 2 -m torch_tpu.compat train.py

A device called "xla" in a string does not work, since PyTorch keeps that name for torch_xla;
``torch_xla.device()`` and ``xm.xla_device()`` do. New code has no use for any of this: ``torus
migrate`` rewrites programs for good.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["enable", "missing"]

_FOLDER = os.path.join(os.path.dirname(__file__), "packages")


def enable() -> None:
    """Make ``import torch_xla`` find this package's; does nothing the second time.

    Processes that `multiprocessing` starts inherit it. Transformers and Accelerate are told
    (``USE_TORCH_XLA``, unless set) to go on using device "tpu" rather than their paths for
    torch_xla.

    Raises
    ------
    ImportError
        If a real torch_xla is installed.
    """
    spec = importlib.util.find_spec("torch_xla")
    if spec is not None and not (spec.origin or "").startswith(_FOLDER):
        raise ImportError(
            f"A real torch_xla is installed in {os.path.dirname(spec.origin or '')}. Uninstall it "
            "to use the one of torch_tpu.compat."
        )
    os.environ.setdefault("USE_TORCH_XLA", "0")
    if spec is None:
        sys.path.append(_FOLDER)


def missing(module: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that says what to do about a name it does not have.

    Parameters
    ----------
    module : str
        The module's name.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        raise AttributeError(
            f"torch_tpu.compat has no {module}.{name}. docs/migrating.md has a table of "
            "equivalents; 'torus migrate' says what to do about each use."
        )

    return __getattr__
