# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Prints a tensor of the device with one transfer and no program.

PyTorch's printer slices, compares and reduces the tensor it prints: on this device each of these
would be a program to compile. It offers no hook for a device to be copied first, only a list of
device types, so its inner function is wrapped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _tensor_str as printer

from torch_tpu._wrap import wrap_once


def install() -> None:
    """Wrap PyTorch's printer of contents; does nothing when it is wrapped already."""

    @wrap_once(printer, "_tensor_str")
    def tensor_str(original: Any, self: torch.Tensor, indent: int) -> str:
        return original(_to_host(self) if self.device.type == "tpu" else self, indent)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy to the CPU; repeated elements of an expanded tensor travel and are stored once."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return tensor.cpu()
    repeated = [
        dim
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if stride == 0 and size > 1
    ]
    if not repeated:
        return tensor.cpu()
    shape = tensor.shape
    for dim in repeated:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor.cpu().expand(shape)
