# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Convolutions against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from layer_checks import check, rand

PLAIN = {
    "1d": (F.conv1d, (2, 3, 9), (4, 3, 3), {}),
    "1d_options": (
        F.conv1d,
        (2, 4, 12),
        (6, 2, 3),
        {"stride": 2, "padding": 3, "dilation": 2, "groups": 2},
    ),
    "2d": (F.conv2d, (2, 3, 7, 8), (4, 3, 3, 2), {}),
    "2d_options": (F.conv2d, (2, 3, 9, 8), (4, 3, 3, 3), {"stride": (2, 1), "padding": (1, 2)}),
    "2d_dilated": (
        F.conv2d,
        (1, 2, 9, 9),
        (3, 2, 3, 3),
        {"dilation": 2, "padding": 2, "stride": 2},
    ),
    "2d_groups": (F.conv2d, (2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "2d_depthwise": (F.conv2d, (2, 4, 6, 6), (8, 1, 3, 3), {"groups": 4, "stride": 2}),
    "2d_pointwise": (F.conv2d, (2, 4, 5, 5), (6, 4, 1, 1), {}),
    "2d_same": (F.conv2d, (1, 2, 6, 5), (3, 2, 4, 3), {"padding": "same"}),
    "2d_unread_rim": (F.conv2d, (1, 2, 8, 9), (3, 2, 3, 3), {"stride": 3}),
    "3d": (F.conv3d, (1, 2, 5, 6, 4), (3, 2, 3, 2, 2), {"padding": 1, "stride": (1, 2, 1)}),
    "unbatched": (F.conv2d, (3, 7, 8), (4, 3, 3, 2), {}),
}

TRANSPOSED = {
    "1d": (
        F.conv_transpose1d,
        (2, 3, 5),
        (3, 4, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "2d": (F.conv_transpose2d, (2, 3, 4, 5), (3, 2, 3, 3), {}),
    "2d_options": (
        F.conv_transpose2d,
        (2, 4, 4, 5),
        (4, 3, 3, 2),
        {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "groups": 2},
    ),
    "2d_dilated": (F.conv_transpose2d, (1, 2, 4, 4), (2, 3, 3, 3), {"dilation": 2, "stride": 2}),
    "3d": (F.conv_transpose3d, (1, 2, 3, 3, 4), (2, 3, 2, 2, 3), {"stride": 2}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str) -> None:
    function, x, w, options = PLAIN[name]
    check(lambda *t: function(*t, **options), rand(*x), rand(*w, seed=1), rand(w[0], seed=2))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str) -> None:
    function, x, w, options = TRANSPOSED[name]
    bias = rand(w[1] * options.get("groups", 1), seed=2)
    check(lambda *t: function(*t, **options), rand(*x), rand(*w, seed=1), bias)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    x, w = rand(2, 3, 6, 6, dtype=dtype), rand(4, 3, 3, 3, dtype=dtype, seed=1)
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype)
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w, tolerance=tolerance)


def test_modes(mode: str) -> None:
    check(F.conv2d, rand(1, 2, 5, 5), rand(3, 2, 2, 2), rand(3))


def test_complex() -> None:
    x, w = rand(1, 2, 6, dtype=torch.complex64), rand(3, 2, 3, dtype=torch.complex64, seed=1)
    check(F.conv1d, x, w + 1j * w.flip(2), gradient=False)


def test_channels_last_stays() -> None:
    x = rand(2, 3, 6, 6).to(memory_format=torch.channels_last)
    w = rand(4, 3, 3, 3)
    y = F.conv2d(x.to("tpu"), w.to("tpu"))
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.cpu(), F.conv2d(x, w), rtol=2e-5, atol=2e-5)


def test_empty_batch() -> None:
    check(F.conv2d, rand(0, 3, 6, 6), rand(4, 3, 3, 3), rand(4))


def test_frozen_arguments_get_no_gradient() -> None:
    x, w = rand(1, 2, 5, 5).to("tpu"), rand(3, 2, 3, 3).to("tpu").requires_grad_()
    F.conv2d(x, w).sum().backward()
    expected = rand(3, 2, 3, 3).requires_grad_()
    F.conv2d(rand(1, 2, 5, 5), expected).sum().backward()
    torch.testing.assert_close(w.grad.cpu(), expected.grad, rtol=2e-5, atol=2e-5)


def test_second_derivative() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, padding=1).pow(2).sum()
        (gx,) = torch.autograd.grad(y, x, create_graph=True)
        return gx.pow(2).sum()

    def second(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x, w = x.requires_grad_(), w.requires_grad_()
        return torch.autograd.grad(run(x, w), w)[0]

    check(second, rand(1, 2, 4, 4), rand(2, 2, 3, 3), gradient=False, tolerance=1e-3)


def test_errors_are_pytorchs() -> None:
    x = rand(1, 3, 5, 5).to("tpu")
    with pytest.raises(RuntimeError, match="channels"):
        F.conv2d(x, rand(4, 2, 3, 3).to("tpu"))
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size"):
        F.conv2d(x, rand(4, 3, 7, 7).to("tpu"))
