# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Read safetensors files straight to "tpu".

``safetensors`` checks names of devices against a list in its native part, which has no "tpu". A
number it passes on, and PyTorch takes a number for a device of the current accelerator: these
functions give it the number. Tensors are mapped from the file and moved one by one, so no copy of
the file is built on the host.
"""

from __future__ import annotations

import os
from typing import Any

import torch

__all__ = ["load_file", "safe_open"]


def _index(device: str | int | torch.device) -> int:
    place = torch.device(device)
    if place.type != "tpu":
        raise ValueError(
            f"device tpu is what this function reads to, not {place}; "
            "safetensors.torch reads to other devices by name"
        )
    return torch.tpu.current_device() if place.index is None else place.index


def load_file(
    filename: str | os.PathLike[str], device: str | int | torch.device = "tpu"
) -> dict[str, torch.Tensor]:
    """Read all tensors of a file.

    Parameters
    ----------
    filename : str or path
        The file.
    device : str, int or torch.device
        Where to: ``"tpu"`` or ``"tpu:N"``.

    Returns
    -------
    dict of str to torch.Tensor
        The tensors with the shapes and dtypes of the file.

    Raises
    ------
    ValueError
        If `device` is of another kind.
    safetensors.SafetensorError
        If the file is damaged.
    """
    from safetensors.torch import load_file as load

    return load(filename, device=_index(device))


def safe_open(filename: str | os.PathLike[str], device: str | int | torch.device = "tpu") -> Any:
    """Open a file to read tensors, or slices of them, one by one.

    Parameters
    ----------
    filename : str or path
        The file.
    device : str, int or torch.device
        Where tensors go: ``"tpu"`` or ``"tpu:N"``.

    Returns
    -------
    safetensors.safe_open
        A context manager; see the documentation of safetensors.

    Raises
    ------
    ValueError
        If `device` is of another kind.
    """
    import safetensors

    return safetensors.safe_open(filename, framework="pt", device=_index(device))
