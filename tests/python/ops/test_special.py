# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch.special: functions without an operation of their own in StableHLO."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check
from torch import special

inf, nan = math.inf, math.nan

BESSEL = [
    special.bessel_j0, special.bessel_j1, special.bessel_y0, special.bessel_y1,
    special.modified_bessel_i0, special.modified_bessel_i1, special.modified_bessel_k0,
    special.modified_bessel_k1, special.scaled_modified_bessel_k0,
    special.scaled_modified_bessel_k1, special.spherical_bessel_j0, special.airy_ai,
    special.i0e, special.i1e,
]  # fmt: skip
POLYNOMIALS = [
    special.chebyshev_polynomial_t, special.chebyshev_polynomial_u,
    special.chebyshev_polynomial_v, special.chebyshev_polynomial_w,
    special.shifted_chebyshev_polynomial_t, special.shifted_chebyshev_polynomial_u,
    special.shifted_chebyshev_polynomial_v, special.shifted_chebyshev_polynomial_w,
    special.hermite_polynomial_h, special.hermite_polynomial_he,
    special.laguerre_polynomial_l, special.legendre_polynomial_p,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bessel(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 0.3, 1.9, 2.5, 4.9, 5.5, 9.0, 20.0, -1.0, -7.0], dtype=dtype)
    check(lambda x: [f(x) for f in BESSEL], x, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_error_function_relatives(dtype: torch.dtype) -> None:
    x = torch.tensor([-30.0, -5, -1, -0.5, 0, 0.5, 1, 2.9, 3.1, 8, 50, nan], dtype=dtype)
    check(lambda x: [special.erfcx(x), special.log_ndtr(x)], x, tolerance=1e-4)
    y = torch.tensor([0, 1e-20, 1e-4, 0.1, 0.5, 0.8, 0.95, 0.9999, 1, -0.1, 1.1], dtype=dtype)
    check(special.ndtri, y, tolerance=1e-4)


def test_polynomials() -> None:
    x = torch.tensor([-1.5, -1.0, -0.4, 0.0, 0.7, 1.0, 1.2])
    degrees = torch.tensor([-1.0, 0, 1, 2, 3.7, 5])
    check(lambda x, n: [f(x[:, None], n) for f in POLYNOMIALS], x, degrees, tolerance=1e-4)
    check(lambda x: [f(x, 4) for f in POLYNOMIALS], x, tolerance=1e-4)
    check(lambda n: [f(0.3, n) for f in POLYNOMIALS], degrees, tolerance=1e-4)
    check(lambda x: [f(x, 3) for f in POLYNOMIALS], torch.zeros(0))


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_polygamma(order: int) -> None:
    x = torch.tensor([0.3, 2.5, 11.0, -0.2, -1.5, -8.3, 1e-3, 30])
    check(lambda x: special.polygamma(order, x), x, tolerance=1e-4)


def test_zeta() -> None:
    x, q = torch.tensor([1.0, 2, 3, 4.5, 0.5, 2]), torch.tensor([2.0, 0.5, -3.3, 7, 2, -2])
    check(special.zeta, x, q, tolerance=1e-4)
    check(lambda q: [special.zeta(2, q), special.zeta(q, 3.5)], torch.tensor([2.0, 3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_incomplete_gamma(dtype: torch.dtype) -> None:
    a = torch.tensor([0.5, 1, 3, 20, 100, 200, 2, 0, 1, inf, nan, -1], dtype=dtype)
    x = torch.tensor([0.1, 1, 5, 18, 130, 190, 0, 1, inf, 1, 1, 1], dtype=dtype)
    check(lambda a, x: [special.gammainc(a, x), special.gammaincc(a, x)], a, x)


def test_gradients() -> None:
    x = torch.tensor([0.3, 0.6, 0.9])
    check(lambda x: [special.erfcx(x), special.log_ndtr(x), special.ndtri(x)], x, grad=True)
    check(lambda x: special.gammainc(torch.full_like(x, 2.0).detach(), x), x, grad=True)
