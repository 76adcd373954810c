# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Pooling against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from layer_checks import check, rand

MAX = {
    "1d": (F.max_pool1d, (2, 3, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "2d": (F.max_pool2d, (2, 3, 8, 8), {"kernel_size": 2}),
    "2d_overlap": (F.max_pool2d, (2, 3, 9, 8), {"kernel_size": 3, "stride": (2, 1), "padding": 1}),
    "2d_ceil": (F.max_pool2d, (1, 2, 7, 8), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "2d_dilated": (
        F.max_pool2d,
        (1, 2, 9, 9),
        {"kernel_size": 3, "stride": 2, "dilation": 2, "padding": 1},
    ),
    "2d_unbatched": (F.max_pool2d, (3, 6, 6), {"kernel_size": 2}),
    "2d_empty": (F.max_pool2d, (0, 3, 6, 6), {"kernel_size": 2}),
    "3d": (F.max_pool3d, (1, 2, 6, 5, 6), {"kernel_size": 2, "stride": 2, "padding": 1}),
}


@pytest.mark.parametrize("name", MAX)
def test_max(name: str) -> None:
    function, shape, options = MAX[name]
    check(lambda x: function(x, return_indices=True, **options), rand(*shape))


def test_max_modes(mode: str) -> None:
    check(lambda x: F.max_pool2d(x, 2), rand(1, 2, 4, 4))


def test_max_ties_and_nan() -> None:
    x = torch.tensor([[1.0, 1, 0, 0], [1, 1, 0, 0], [2, float("nan"), 3, 3], [5, 1, 3, 3]])
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), x[None, None], gradient=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_max_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: F.max_pool2d(x, 2), (rand(1, 2, 6, 6) * 20).to(dtype))


def test_unpool() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y, indices, 2)

    check(run, rand(2, 3, 6, 6))

    def run3(x: torch.Tensor) -> torch.Tensor:
        y, indices = F.max_pool3d(x, 2, return_indices=True)
        return F.max_unpool3d(y, indices, 2)

    check(run3, rand(1, 2, 4, 4, 4))


AVERAGE = {
    "1d": (F.avg_pool1d, (2, 3, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "2d": (F.avg_pool2d, (2, 3, 8, 8), {"kernel_size": 2}),
    "2d_padded": (F.avg_pool2d, (2, 3, 9, 8), {"kernel_size": 3, "stride": (2, 1), "padding": 1}),
    "2d_exclude": (
        F.avg_pool2d,
        (2, 3, 9, 8),
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    ),
    "2d_ceil": (
        F.avg_pool2d,
        (1, 2, 7, 8),
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    ),
    "2d_ceil_exclude": (
        F.avg_pool2d,
        (1, 2, 7, 8),
        {"kernel_size": 3, "stride": 2, "ceil_mode": True, "count_include_pad": False},
    ),
    "2d_divisor": (
        F.avg_pool2d,
        (1, 2, 6, 6),
        {"kernel_size": 3, "stride": 2, "divisor_override": 5},
    ),
    "2d_gaps": (F.avg_pool2d, (1, 2, 9, 9), {"kernel_size": 2, "stride": 3}),
    "3d": (F.avg_pool3d, (1, 2, 6, 5, 6), {"kernel_size": 2, "stride": 2, "padding": 1}),
    "2d_empty": (F.avg_pool2d, (0, 2, 6, 6), {"kernel_size": 2}),
}


@pytest.mark.parametrize("name", AVERAGE)
def test_average(name: str) -> None:
    function, shape, options = AVERAGE[name]
    check(lambda x: function(x, **options), rand(*shape))


def test_average_bfloat16() -> None:
    check(lambda x: F.avg_pool2d(x, 3, 2), rand(1, 2, 9, 9, dtype=torch.bfloat16))


ADAPTIVE = {
    "1d": (F.adaptive_avg_pool1d, (2, 3, 10), 4),
    "2d": (F.adaptive_avg_pool2d, (2, 3, 7, 9), (3, 4)),
    "2d_whole": (F.adaptive_avg_pool2d, (2, 3, 8, 6), (4, 3)),
    "2d_one": (F.adaptive_avg_pool2d, (2, 3, 7, 9), 1),
    "2d_larger": (F.adaptive_avg_pool2d, (1, 2, 3, 4), (5, 7)),
    "3d": (F.adaptive_avg_pool3d, (1, 2, 5, 6, 7), (2, 3, 4)),
    "max1d": (F.adaptive_max_pool1d, (2, 3, 10), 4),
    "max2d": (F.adaptive_max_pool2d, (2, 3, 7, 9), (3, 4)),
    "max2d_larger": (F.adaptive_max_pool2d, (1, 2, 3, 4), (5, 7)),
    "max3d": (F.adaptive_max_pool3d, (1, 2, 5, 6, 7), (2, 3, 4)),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive(name: str) -> None:
    function, shape, size = ADAPTIVE[name]
    options = {"return_indices": True} if name.startswith("max") else {}
    check(lambda x: function(x, size, **options), rand(*shape))


def test_adaptive_max_ties() -> None:
    check(
        lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True),
        torch.ones(1, 1, 5, 5),
        gradient=False,
    )


def test_channels_last_stays() -> None:
    x = rand(2, 3, 8, 8).to(memory_format=torch.channels_last).to("tpu")
    for y in (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)):
        assert y.is_contiguous(memory_format=torch.channels_last)


def test_errors_are_pytorchs() -> None:
    with pytest.raises(RuntimeError, match="pad should be at most half"):
        F.max_pool2d(rand(1, 1, 4, 4).to("tpu"), 2, padding=2)
    with pytest.raises(RuntimeError):
        F.avg_pool2d(rand(1, 1, 2, 2).to("tpu"), 5)
