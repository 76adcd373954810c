# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Eigenvalues of general matrices, and LDL factors, against the CPU."""

from __future__ import annotations

import pytest
import torch
from against_cpu import check, check_raises

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def _matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(*shape, dtype=dtype)


def _assert_eigen(x: torch.Tensor) -> None:
    """Assert that values come in LAPACK's order and that the vectors are unit eigenvectors."""
    expected = torch.linalg.eig(x)
    values, vectors = (part.cpu() for part in torch.linalg.eig(x.to("tpu")))
    assert values.dtype == vectors.dtype == expected.eigenvalues.dtype
    size = max(float(x.abs().max()), 1e-30)
    limit = 1e-10 if values.dtype == torch.complex128 else 2e-4
    torch.testing.assert_close(
        values / size, expected.eigenvalues / size, rtol=100 * limit, atol=100 * limit
    )
    residue = (x.to(values.dtype) @ vectors - vectors * values.unsqueeze(-2)).abs().max() / size
    assert residue < limit
    lengths = torch.linalg.vector_norm(vectors, dim=-2)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 6, 6), (40, 40)])
def test_eig(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    _assert_eigen(_matrix(*shape, dtype=dtype))


def test_eig_of_special_matrices() -> None:
    """Matrices of which balancing, deflation or the choice of shifts takes another turn."""
    x = _matrix(6, 6)
    cases = [
        x.tril(),
        x.triu(),
        x @ x.T,
        x - x.T,
        torch.eye(6),
        torch.eye(6).roll(1, 0),
        torch.diag(torch.ones(5), 1) + 2 * torch.eye(6),
        (x > 0.8).float(),
        torch.block_diag(x[:2, :2], x[2:4, 2:4], x[4:, 4:]),
        1e-20 * x,
        1e20 * x,
    ]
    for case in cases:
        _assert_eigen(case)


def test_badly_scaled_matrices_are_balanced() -> None:
    x, scale = _matrix(6, 6, dtype=torch.float64), torch.logspace(-9, 9, 6, dtype=torch.float64)
    x = scale[:, None] * x / scale
    expected = torch.linalg.eigvals(x)
    torch.testing.assert_close(torch.linalg.eigvals(x.to("tpu")).cpu(), expected)


def test_values_of_real_matrices_are_real_or_conjugate() -> None:
    values, vectors = torch.linalg.eig(_matrix(4, 7, 7).to("tpu"))
    values, vectors = values.cpu(), vectors.cpu()
    for value, vector in zip(values.flatten(), vectors.mT.flatten(0, 1), strict=True):
        if value.imag == 0:
            assert not vector.imag.any()
        elif value.imag > 0:
            upper = value, vector
        else:
            assert value == upper[0].conj()
            assert torch.equal(vector, upper[1].conj())


def test_eig_of_nothing_and_of_no_numbers() -> None:
    check(torch.linalg.eig, torch.empty(0, 3, 3))
    check(torch.linalg.eigvals, torch.empty(2, 0, 0))
    check_raises(torch.linalg.eig, torch.ones(2, 3))
    bad = torch.eye(3)
    bad[1, 2] = float("nan")
    with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
        torch.linalg.eigvals(bad.to("tpu")).cpu()


def test_eig_gradients() -> None:
    x = _matrix(2, 4, 4, dtype=torch.float64)
    check(lambda x: torch.linalg.eigvals(x).real, x, grad=True)
    check(lambda x: torch.linalg.eig(x).eigenvectors.abs(), x, grad=True)
    check(lambda x: torch.linalg.eig(x).eigenvectors.abs(), x.to(torch.complex128), grad=True)


# ---- LDL ----


def _symmetric(*shape: int, dtype: torch.dtype, hermitian: bool, hollow: bool) -> torch.Tensor:
    x = _matrix(*shape, dtype=dtype)
    x = x + (x.mH if hermitian else x.mT)
    if hollow:
        x.diagonal(dim1=-2, dim2=-1).zero_()
    return x


@pytest.mark.parametrize("hollow", [False, True])
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_ldl(dtype: torch.dtype, hermitian: bool, hollow: bool) -> None:
    x = _symmetric(3, 7, 7, dtype=dtype, hermitian=hermitian, hollow=hollow)

    def factor(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.linalg.ldl_factor_ex(x, hermitian=hermitian)

    check(factor, x)
    check(factor, x.mT)
    factors, pivots, _ = factor(x)
    assert (pivots < 0).any()
    b = _matrix(3, 7, 2, dtype=dtype)

    def solve(*system: torch.Tensor) -> torch.Tensor:
        return torch.linalg.ldl_solve(*system, hermitian=hermitian)

    check(solve, factors, pivots, b, tolerance=1e-3)
    one = solve(factors[:1], pivots[:1], b[:1])
    several = solve(factors[:1].to("tpu"), pivots[:1].to("tpu"), b[:1].expand(3, 7, 2).to("tpu"))
    torch.testing.assert_close(several.cpu(), one.expand(3, 7, 2), rtol=1e-3, atol=1e-3)


def test_ldl_reads_the_lower_triangle() -> None:
    x = _matrix(5, 5)
    check(torch.linalg.ldl_factor, x)
    check(torch.linalg.ldl_factor, x.tril())


def test_ldl_of_singular_matrices() -> None:
    x = torch.zeros(2, 3, 3)
    x[1] = torch.eye(3)
    x[1, 1, 1] = 0
    check(torch.linalg.ldl_factor_ex, x)
    check(torch.linalg.ldl_factor_ex, torch.empty(0, 3, 3))
    check_raises(torch.linalg.ldl_factor, x)
    check_raises(torch.linalg.ldl_factor_ex, torch.ones(2, 3))
