# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Resampling, grid sampling, padding and sliding blocks against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from layer_checks import check, rand

SHAPES = {1: (2, 3, 7), 2: (2, 3, 5, 6), 3: (1, 2, 3, 4, 5)}
SIZES = {1: (11,), 2: (8, 4), 3: (5, 4, 9)}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("filter_mode", ["nearest", "nearest-exact"])
def test_nearest(filter_mode: str, rank: int) -> None:
    x = rand(*SHAPES[rank])
    check(lambda x: F.interpolate(x, size=SIZES[rank], mode=filter_mode), x)
    check(lambda x: F.interpolate(x, scale_factor=2, mode=filter_mode), x)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_linear(rank: int, align: bool) -> None:
    x = rand(*SHAPES[rank])
    for options in ({"size": SIZES[rank]}, {"scale_factor": 1.7}):
        check(lambda x, o=options: F.interpolate(x, mode=LINEAR[rank], align_corners=align, **o), x)


@pytest.mark.parametrize("align", [False, True])
def test_cubic(align: bool) -> None:
    for size in ((8, 4), (3, 11)):
        check(
            lambda x, s=size: F.interpolate(x, size=s, mode="bicubic", align_corners=align),
            rand(2, 3, 5, 6),
        )


@pytest.mark.parametrize("filter_mode", ["bilinear", "bicubic"])
def test_antialias(filter_mode: str) -> None:
    for size in ((4, 3), (13, 5)):
        check(
            lambda x, s=size: F.interpolate(x, size=s, mode=filter_mode, antialias=True),
            rand(1, 2, 9, 8),
        )


def test_interpolate_other_types() -> None:
    x = rand(1, 2, 4, 4, dtype=torch.bfloat16)
    check(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)
    pixels = torch.arange(32, dtype=torch.uint8).reshape(1, 2, 4, 4)
    check(lambda x: F.interpolate(x, scale_factor=3), pixels)
    check(lambda x: F.interpolate(x, scale_factor=2), rand(0, 2, 4, 4))


def test_interpolate_modes(mode: str) -> None:
    check(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), rand(1, 1, 3, 3))


# ---- grids ----


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("sampling", ["bilinear", "nearest", "bicubic"])
def test_grid_2d(sampling: str, padding: str, align: bool) -> None:
    x, grid = rand(2, 3, 5, 6), rand(2, 4, 3, 2, seed=3)
    check(
        lambda x, g: F.grid_sample(x, g, sampling, padding, align_corners=align),
        x,
        grid,
        tolerance=2e-4,
    )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("sampling", ["bilinear", "nearest"])
def test_grid_3d(sampling: str, padding: str) -> None:
    x, grid = rand(1, 2, 3, 4, 5), rand(1, 2, 3, 2, 3, seed=3)
    check(
        lambda x, g: F.grid_sample(x, g, sampling, padding, align_corners=False),
        x,
        grid,
        tolerance=2e-4,
    )


# ---- padding ----

PADS = {
    "1d": ((2, 3, 6), (2, 1)),
    "1d_unbatched": ((3, 6), (2, 1)),
    "1d_crop": ((2, 3, 6), (-1, 3)),
    "2d": ((2, 3, 5, 6), (2, 1, 3, 4)),
    "2d_crop": ((2, 3, 5, 6), (2, -2, -1, 3)),
    "2d_empty": ((0, 3, 5, 6), (2, 1, 3, 4)),
    "3d": ((1, 2, 3, 4, 5), (1, 2, 0, 1, 2, 2)),
}


@pytest.mark.parametrize("kind", ["reflect", "replicate", "constant", "circular"])
@pytest.mark.parametrize("name", PADS)
def test_pad(name: str, kind: str) -> None:
    shape, pad = PADS[name]
    if kind == "circular" and ("crop" in name or "unbatched" in name):
        pytest.skip("circular padding has a rule of its own there")
    check(lambda x: F.pad(x, pad, kind), rand(*shape))


def test_constant_values() -> None:
    check(lambda x: F.pad(x, (1, 2), value=3), torch.arange(6).reshape(2, 3))
    check(lambda x: F.pad(x, (1, 0, 2, 1), value=1), torch.zeros(2, 2, dtype=torch.bool))
    check(lambda x: F.pad(x, (0, 0, 0, 0, 1, 1), value=float("-inf")), rand(2, 2, 2))
    with pytest.raises(RuntimeError):
        F.pad(rand(1, 1, 3).to("tpu"), (3, 0), "reflect")


# ---- sliding blocks ----


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": (3, 2), "dilation": (1, 2), "padding": 1, "stride": (2, 1)},
        {"kernel_size": 2, "stride": 2},
    ],
)
def test_unfold_and_fold(options: dict) -> None:
    check(lambda x: F.unfold(x, **options), rand(2, 3, 6, 8))
    columns = F.unfold(rand(2, 3, 6, 8), **options)
    check(lambda x: F.fold(x, (6, 8), **options), rand(*columns.shape))


def test_tensor_unfold() -> None:
    check(lambda x: x.unfold(1, 3, 2), rand(2, 9, 3))
    check(lambda x: x.unfold(0, 2, 3), rand(9))


def test_shuffles() -> None:
    check(lambda x: F.pixel_shuffle(x, 2), rand(2, 8, 3, 3))
    check(lambda x: F.pixel_unshuffle(x, 2), rand(2, 2, 4, 6))
    check(lambda x: F.channel_shuffle(x, 2), rand(2, 6, 3, 3))
