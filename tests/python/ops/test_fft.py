# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Fourier transforms against the CPU."""

from __future__ import annotations

import pytest
import torch
from layer_checks import check, rand


def _complex(*shape: int) -> torch.Tensor:
    return torch.complex(rand(*shape), rand(*shape, seed=1))


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "ihfft"])
def test_one_dimension(name: str, norm: str | None) -> None:
    x = rand(3, 8) if name in ("rfft", "ihfft") else _complex(3, 8)
    check(lambda x: getattr(torch.fft, name)(x, norm=norm), x)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("length", [8, 9])
@pytest.mark.parametrize("name", ["irfft", "hfft"])
def test_to_real(name: str, length: int, norm: str | None) -> None:
    check(lambda x: getattr(torch.fft, name)(x, n=length, norm=norm), _complex(3, 5))


@pytest.mark.parametrize("dims", [(0, 1), (-1, 0), (0, 1, 2)])
def test_many_dimensions(dims: tuple[int, ...]) -> None:
    check(lambda x: torch.fft.fftn(x, dim=dims), _complex(3, 4, 5))
    check(lambda x: torch.fft.rfftn(x, dim=dims), rand(3, 4, 5))
    check(lambda x: torch.fft.irfftn(x, dim=dims), _complex(3, 4, 5))


def test_options() -> None:
    check(lambda x: torch.fft.fft(x, dim=0), rand(6, 3))
    check(lambda x: torch.fft.rfft(x, n=5), rand(3, 8))
    check(lambda x: torch.fft.fft(x, n=12), _complex(2, 8))
    check(torch.fft.rfft, rand(4, 6, dtype=torch.float64))
    check(torch.fft.fft, torch.arange(6))


def test_modes(mode: str) -> None:
    check(torch.fft.rfft, rand(2, 6))


def test_stft() -> None:
    window = torch.hann_window(16)
    check(
        lambda x, w: torch.stft(x, 16, hop_length=4, window=w, return_complex=True),
        rand(2, 64),
        window,
        tolerance=1e-4,
    )
