# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What the tables of small Diffusers models are written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torus.compat.inputs import BATCH, Draw

Table = dict[str, tuple[dict[str, Any], Callable[[Draw], dict[str, Any]]]]

__all__ = ["BATCH", "Draw", "Table", "image", "positions", "tensor", "video"]


def tensor(*values: Any) -> torch.Tensor:
    """Return a tensor of the values, ``[len(values), ...]``."""
    return torch.tensor(values)


def image(draw: Draw, channels: int = 4, side: int = 16) -> torch.Tensor:
    """Return latent images, ``[BATCH, channels, side, side]``."""
    return draw.normal(BATCH, channels, side, side)


def video(
    draw: Draw, channels: int = 4, frames: int = 4, height: int = 16, width: int = 16
) -> torch.Tensor:
    """Return one latent video, ``[1, channels, frames, height, width]``."""
    return draw.normal(1, channels, frames, height, width)


def positions(axes: int, count: int) -> torch.Tensor:
    """Return positions of tokens along several axes, ``[count, axes]``."""
    places = torch.zeros(count, axes)
    places[:, 1 if axes == 3 else axes - 1] = torch.arange(count)
    return places
