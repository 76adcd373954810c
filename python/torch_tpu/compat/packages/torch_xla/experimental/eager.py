# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.experimental.eager: one operator at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def eager_mode(enable: bool) -> None:
    """Choose strict mode (one operator at a time) or fused mode."""
    torch.tpu.set_eager_mode("strict" if enable else "fused")


def is_eager_mode() -> bool:
    """Return whether strict mode is chosen."""
    return torch.tpu.get_eager_mode() is not torch.tpu.EagerMode.FUSED


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Choose strict or fused mode for a block."""
    with torch.tpu.set_eager_mode("strict" if enable else "fused"):
        yield
