# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What a piece of code costs, in compilations and launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def counted(fn: Callable[[], Any]) -> tuple[Any, int, int]:
    """Return a result, and the compilations and launches that it took."""
    torch.tpu.synchronize()
    before = torch.tpu.metrics()
    result = fn()
    torch.tpu.synchronize()
    after = torch.tpu.metrics()
    return (
        result,
        after["compilations"] - before["compilations"],
        after["launches"] - before["launches"],
    )
