# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Makes bfloat16 the default of ``torch.autocast("tpu")`` in every thread.

PyTorch keeps the default dtype of each device type in a thread-local array, starts every thread
with float16 for out-of-tree devices, and reads it before any code of the backend runs. There is no
hook in between, so the constructor of ``torch.autocast`` is wrapped once; for other devices it
does exactly what it did.
"""

from __future__ import annotations

from typing import Any

from torch_tpu._wrap import wrap_once


def install() -> None:
    """Wrap ``torch.autocast.__init__``; does nothing the second time."""
    import torch

    from torch_tpu import _C

    @wrap_once(torch.autocast, "__init__")
    def __init__(original: Any, self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if device_type == "tpu":
            _C._prepare_thread()
        original(self, device_type, *args, **kwargs)
