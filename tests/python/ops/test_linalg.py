# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Cholesky factors, triangular systems, cross products and distances against the CPU."""

from __future__ import annotations

import pytest
import torch
from against_cpu import check


def _positive(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    torch.manual_seed(3)
    x = torch.randn(*shape, dtype=dtype)
    return x @ x.mH + torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype: torch.dtype, upper: bool) -> None:
    x = _positive(2, 4, 4, dtype=dtype)
    check(
        lambda x: torch.linalg.cholesky((x + x.mH) / 2, upper=upper),
        x,
        grad=not dtype.is_complex,
        tolerance=1e-3,
    )


def test_cholesky_of_an_indefinite_matrix() -> None:
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0]], device="tpu")
    assert torch.linalg.cholesky_ex(x).info.item() > 0
    with pytest.raises(RuntimeError, match="not positive-definite"):
        torch.linalg.cholesky(x).cpu()


def test_cholesky_solve() -> None:
    x, b = _positive(3, 3), torch.rand(3, 2, dtype=torch.float64)
    check(lambda x, b: torch.cholesky_solve(b, x.tril()), x, b, grad=True)
    check(lambda x, b: torch.cholesky_solve(b, x.triu(), upper=True), x, b)
    check(torch.cholesky_inverse, x.tril())
    check(lambda x: torch.cholesky_inverse(x, upper=True), x.triu())


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_solve_triangular(upper: bool, left: bool, unit: bool) -> None:
    a = _positive(2, 3, 3)
    b = torch.rand(1, 3, 3, dtype=torch.float64)
    check(
        lambda a, b: torch.linalg.solve_triangular(
            a.triu() if upper else a.tril(), b, upper=upper, left=left, unitriangular=unit
        ),
        *(a, b),
        grad=True,
    )


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("transpose", [False, True])
def test_old_triangular_solve(transpose: bool) -> None:
    a, b = _positive(3, 3), torch.rand(3, 2, dtype=torch.float64)
    check(lambda a, b: b.triangular_solve(a, transpose=transpose), a, b)


def test_cross() -> None:
    a, b = torch.rand(4, 3), torch.rand(1, 3)
    check(lambda a, b: torch.linalg.cross(a, b), a, b, grad=True)
    check(lambda a, b: torch.cross(a.t(), b.t(), dim=0), a, b)
    with pytest.raises(RuntimeError):
        torch.linalg.cross(a.to("tpu")[:, :2], b.to("tpu"))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    x, y = torch.rand(2, 4, 3), torch.rand(1, 5, 3)
    check(lambda x, y: torch.cdist(x, y, p), x, y, grad=True, tolerance=1e-4)
    check(lambda x: torch.nn.functional.pdist(x, p), x[0], grad=True, tolerance=1e-4)


def test_distance_to_itself() -> None:
    check(lambda x: torch.cdist(x, x), torch.rand(3, 2), grad=True, tolerance=1e-4)
    check(lambda x, y: torch.cdist(x, y), torch.rand(3, 0), torch.rand(2, 0))
    check(lambda x, y: torch.cdist(x, y), torch.rand(0, 2), torch.rand(2, 2))
