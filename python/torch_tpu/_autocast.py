# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Makes bfloat16 the default of ``torch.autocast("tpu")`` in every thread.

PyTorch keeps the default dtype of each device type in a thread-local array, starts every thread
with float16 for out-of-tree devices, and reads it before any code of the backend runs. There is no
hook in between, so the constructor of ``torch.autocast`` is wrapped once; for other devices it
does exactly what it did.
"""

from __future__ import annotations

import functools
from typing import Any


def install() -> None:
    """Wrap ``torch.autocast.__init__``; does nothing the second time."""
    import torch

    from torch_tpu import _C

    original = torch.autocast.__init__
    if hasattr(original, "__torus__"):
        return

    @functools.wraps(original)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if device_type == "tpu":
            _C._prepare_thread()
        original(self, device_type, *args, **kwargs)

    __init__.__torus__ = True  # type: ignore[attr-defined]
    torch.autocast.__init__ = __init__  # type: ignore[method-assign]
