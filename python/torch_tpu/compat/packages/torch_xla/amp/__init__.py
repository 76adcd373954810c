# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.amp: autocast and the gradient scaler."""

from __future__ import annotations

from typing import Any

import torch


class autocast(torch.autocast):  # noqa: N801
    """``torch.autocast`` for a device, bfloat16 by default."""

    def __init__(
        self,
        device: Any,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__(
            torch.device(device).type, dtype, enabled=enabled, cache_enabled=cache_enabled
        )


class GradScaler(torch.amp.GradScaler):
    """The scaler of device "tpu"."""

    def __init__(self, *args: Any, use_zero_grad: bool = False, **kwargs: Any) -> None:
        del use_zero_grad
        super().__init__("tpu", *args, **kwargs)
