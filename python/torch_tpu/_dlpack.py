# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Lets tensors of device "tpu" name their device to DLPack.

``Tensor.__dlpack_device__`` knows out-of-tree devices by the name "privateuse1" alone and raises
for a backend that gave itself a name; there is no hook. It is wrapped once, for "tpu" only. A
capsule holds the opaque address of the storage, so only this process can take it back.
"""

from __future__ import annotations

from typing import Any

from torch_tpu._wrap import wrap_once


def install() -> None:
    """Wrap ``torch.Tensor.__dlpack_device__``; does nothing the second time."""
    import torch

    @wrap_once(torch.Tensor, "__dlpack_device__")
    def __dlpack_device__(original: Any, self: Any) -> tuple[Any, int]:  # noqa: N807
        if self.device.type != "tpu":
            return original(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index or 0
