# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Matrix factorisations, systems, cross products and distances against the CPU."""

from __future__ import annotations

import pytest
import torch
from against_cpu import check, check_raises


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


# ---- LU ----

_DTYPES = [torch.float32, torch.complex128]
_SHAPES = [(2, 5, 3), (3, 5), (1, 1), (2, 0, 3), (0, 3, 3)]


def _matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", _SHAPES)
def test_lu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = _matrix(*shape, dtype=dtype)
    check(torch.linalg.lu_factor_ex, x)
    check(torch.linalg.lu, x)
    check(lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)), x)


def test_lu_unpack_parts() -> None:
    factors, pivots = torch.linalg.lu_factor(_matrix(2, 4, 3))
    check(lambda x, p: torch.lu_unpack(x, p, unpack_data=False), factors, pivots)
    check(lambda x, p: torch.lu_unpack(x, p, unpack_pivots=False), factors, pivots)


def test_lu_without_pivots() -> None:
    x = _positive(3, 4, 4)
    _, lower, upper = torch.linalg.lu(x.to("tpu"), pivot=False)
    torch.testing.assert_close((lower @ upper).cpu(), x)


def test_lu_gradients(mode: str) -> None:
    x = _matrix(2, 4, 4, dtype=torch.float64)
    check(lambda x: torch.linalg.lu(x)[1:], x, grad=True)
    check(lambda x: torch.linalg.lu_factor(x)[0], x, grad=True)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_lu_solve(left: bool, adjoint: bool) -> None:
    factors, pivots = torch.linalg.lu_factor(_matrix(3, 3, dtype=torch.complex128))
    b = _matrix(2, 3, 3, dtype=torch.complex128)
    check(
        lambda x, p, b: torch.linalg.lu_solve(x, p, b, left=left, adjoint=adjoint),
        *(factors, pivots, b),
    )


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_solve(transposed: bool, dtype: torch.dtype) -> None:
    a, b = _matrix(2, 4, 4, dtype=dtype), _matrix(2, 4, 3, dtype=dtype)

    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(a.mT if transposed else a, b)

    check(solve, a, b, grad=True, tolerance=1e-3)
    check(solve, a, b[..., 0], grad=True, tolerance=1e-3)
    check(lambda a, b: torch.linalg.solve(a, b.mT, left=False), a, b, grad=True, tolerance=1e-3)


def test_solve_broadcasts_and_takes_nothing() -> None:
    check(torch.linalg.solve, _matrix(4, 4), _matrix(3, 4, 2), grad=True, tolerance=1e-3)
    check(torch.linalg.solve, _matrix(2, 4, 4), _matrix(1, 4, 2), grad=True, tolerance=1e-3)
    check(torch.linalg.solve, _matrix(0, 0), _matrix(0, 2))
    check(torch.linalg.solve, _matrix(3, 3), _matrix(3, 0))
    check_raises(torch.linalg.solve, _matrix(3, 3), _matrix(4, 2))
    check_raises(torch.linalg.solve, _matrix(3, 4), _matrix(3, 2))


def test_inverse(mode: str) -> None:
    check(torch.linalg.inv, _matrix(2, 4, 4), grad=True, tolerance=1e-3)
    check(torch.linalg.inv, _matrix(2, 0, 0))
    check(torch.linalg.tensorinv, _matrix(4, 6, 8, 3), tolerance=1e-3)
    check(lambda x: torch.linalg.matrix_power(x, -2), _matrix(3, 3), tolerance=1e-3)


def test_singular_matrices() -> None:
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    check(lambda x: torch.linalg.inv_ex(x).info, singular)
    check(lambda x: torch.linalg.lu_factor_ex(x), singular)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(singular.to("tpu"))
    with pytest.raises(RuntimeError, match="is zero"):
        torch.linalg.lu_factor(singular.to("tpu"))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.solve(singular.to("tpu"), singular.to("tpu"))


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_determinants(transposed: bool, dtype: torch.dtype) -> None:
    x = _matrix(3, 4, 4, dtype=dtype)
    x = x.mT.contiguous().mT if transposed else x
    check(torch.linalg.det, x, grad=True, tolerance=1e-3)
    check(torch.linalg.slogdet, x, grad=not dtype.is_complex, tolerance=1e-3)
    check(torch.linalg.det, torch.zeros(2, 2, dtype=dtype), grad=True)
    check(torch.linalg.slogdet, torch.zeros(2, 2, dtype=dtype))
    check(torch.linalg.det, torch.zeros(2, 0, 0, dtype=dtype))


# ---- QR ----


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", [*_SHAPES, (3, 0)])
def test_qr(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = _matrix(*shape, dtype=dtype)
    check(torch.geqrf, x)
    for kind in ("reduced", "complete", "r"):
        check(lambda x, kind=kind: torch.linalg.qr(x, kind), x)


def test_qr_of_extremes() -> None:
    x = _matrix(4, 3)
    for factor in (0.0, 1e-30, 1e30):
        check(lambda x, factor=factor: torch.linalg.qr(x * factor).Q, x)


def test_qr_gradients() -> None:
    check(torch.linalg.qr, _matrix(2, 4, 3, dtype=torch.float64), grad=True)
    check(torch.linalg.qr, _matrix(3, 3, dtype=torch.complex128), grad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_householder_product(dtype: torch.dtype) -> None:
    packed, tau = torch.geqrf(_matrix(2, 4, 3, dtype=dtype))
    check(torch.linalg.householder_product, packed, tau, grad=True, tolerance=1e-3)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_ormqr(left: bool, transpose: bool) -> None:
    packed, tau = torch.geqrf(_matrix(4, 3, dtype=torch.complex64))
    other = _matrix(*((4, 2) if left else (2, 4)), dtype=torch.complex64)
    check(lambda x, t, c: torch.ormqr(x, t, c, left=left, transpose=transpose), packed, tau, other)


# ---- eigenvalues and singular values ----

_ROUNDING = {torch.float32: 2e-5, torch.complex128: 1e-13}


def _assert_orthonormal(x: torch.Tensor, limit: float) -> None:
    ones = torch.eye(x.shape[-1], dtype=x.dtype).expand(*x.shape[:-2], -1, -1)
    torch.testing.assert_close(x.mH @ x, ones, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("half", ["L", "U"])
def test_eigh(half: str, size: int, dtype: torch.dtype) -> None:
    x, limit = _matrix(2, size, size, dtype=dtype), _ROUNDING[dtype]
    values, vectors = torch.linalg.eigh(x.to("tpu"), UPLO=half)
    values, vectors = values.cpu(), vectors.cpu()
    expected = torch.linalg.eigvalsh(x, UPLO=half)
    torch.testing.assert_close(values, expected, rtol=0, atol=limit)
    _assert_orthonormal(vectors, limit)
    strict = x.tril(-1) if half == "L" else x.triu(1)
    whole = strict + strict.mH + torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).real)
    scaled = vectors * values.unsqueeze(-2)
    torch.testing.assert_close(whole @ vectors, scaled, rtol=0, atol=4 * limit)


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e30])
def test_eigh_of_extremes(factor: float) -> None:
    x = _matrix(5, 5) * factor
    check(lambda x: torch.linalg.eigvalsh(x) / max(factor, 1), x)
    check(torch.linalg.eigvalsh, torch.eye(4) * 3)


def test_eigh_gradients() -> None:
    x = _matrix(4, 4, dtype=torch.float64)
    check(lambda x: torch.linalg.eigvalsh(x + x.mT), x, grad=True)
    check(lambda x: torch.linalg.eigh(x + x.mT).eigenvectors.abs(), x, grad=True)
    check(torch.linalg.eigvalsh, _matrix(2, 0, 0))
    with pytest.raises(RuntimeError):
        torch.linalg.eigvalsh(torch.full((2, 2), float("nan"), device="tpu")).cpu()


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 5, 3), (3, 4)])
@pytest.mark.parametrize("full", [False, True])
def test_svd(full: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, limit = _matrix(*shape, dtype=dtype), _ROUNDING[dtype]
    for case in (x, torch.zeros_like(x), torch.ones_like(x)):
        u, s, vh = (y.cpu() for y in torch.linalg.svd(case.to("tpu"), full_matrices=full))
        torch.testing.assert_close(s, torch.linalg.svdvals(case), rtol=0, atol=limit)
        _assert_orthonormal(u, limit)
        _assert_orthonormal(vh.mH, limit)
        size = s.shape[-1]
        product = (u[..., :size] * s.unsqueeze(-2)) @ vh[..., :size, :]
        torch.testing.assert_close(product, case, rtol=0, atol=4 * limit)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 0, 0), (0, 2, 3)])
def test_svd_of_nothing(shape: tuple[int, ...]) -> None:
    check(torch.linalg.svd, _matrix(*shape))
    check(lambda x: torch.linalg.svd(x, full_matrices=False), _matrix(*shape))
    check(torch.linalg.svdvals, _matrix(*shape))


def test_singular_values_gradients() -> None:
    x = _matrix(5, 3, dtype=torch.float64)
    check(torch.linalg.svdvals, x, grad=True)
    check(lambda x: torch.linalg.svd(x, full_matrices=False).U.abs(), x, grad=True)
    check(lambda x: torch.linalg.matrix_norm(x, "nuc"), x, grad=True)
    check(torch.linalg.pinv, x, grad=True)
    check(torch.linalg.cond, x)
    check(torch.linalg.matrix_rank, torch.ones(4, 3))
    with pytest.raises(RuntimeError):
        torch.linalg.svdvals(torch.full((2, 2), float("inf"), device="tpu")).cpu()


# ---- least squares and exponentials ----


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (0, 3), (0, 4, 2)])
def test_lstsq(shape: tuple[int, ...], driver: str | None) -> None:
    a = _matrix(*shape, dtype=torch.float64)
    b = torch.randn(*shape[:-1], 2, dtype=torch.float64)
    check(lambda a, b: torch.linalg.lstsq(a, b, driver=driver), a, b)
    check(lambda a, b: torch.linalg.lstsq(a, b[..., 0], driver=driver).solution, a, b)


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
def test_lstsq_without_full_rank(driver: str) -> None:
    a, b = torch.ones(2, 4, 3), _matrix(2, 4, 1)
    check(lambda a, b: torch.linalg.lstsq(a, b, driver=driver)[:3], a, b)


def test_lstsq_gradients() -> None:
    a, b = _matrix(5, 3, dtype=torch.float64), _matrix(5, 2, dtype=torch.float64)
    check(lambda a, b: torch.linalg.lstsq(a, b).solution, a, b, grad=True)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("factor", [0.01, 1.0, 10.0])
def test_matrix_exp(factor: float, dtype: torch.dtype) -> None:
    x = torch.stack([_matrix(4, 4, dtype=dtype), torch.zeros(4, 4, dtype=dtype)])
    check(lambda x: torch.matrix_exp(x * factor / 4), x, grad=True, tolerance=1e-3)


def test_matrix_exp_of_nothing() -> None:
    check(torch.matrix_exp, torch.zeros(2, 0, 0))
    check(torch.matrix_exp, torch.tensor([[0.5]]), grad=True)
