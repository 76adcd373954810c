# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.debug.profiler: marks for PyTorch's profiler."""

from __future__ import annotations

from typing import Any

import torch.profiler
from torch_tpu import compat


class Trace(torch.profiler.record_function):
    """A range in the profile."""

    def __init__(self, name: str, **unused: Any) -> None:
        del unused
        super().__init__(name)


StepTrace = Trace


def trace_me(scope: str) -> Any:
    """Return a decorator that marks a function as a range."""
    return torch.profiler.record_function(scope)


__getattr__ = compat.missing("torch_xla.debug.profiler")
