# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sums, products, extremes, truth values, variances, norms and order statistics."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check, check_raises

nan, inf = math.nan, math.inf


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


SUMS = {
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum(1),
    "sum_dims": lambda x: x.sum((0, -1), keepdim=True),
    "sum_no_dims": lambda x: x.sum(()),
    "nansum": lambda x: x.nansum(0),
    "mean": lambda x: x.mean(),
    "mean_dim": lambda x: x.mean((1, 2)),
    "prod": lambda x: x.prod(),
    "prod_dim": lambda x: x.prod(1, keepdim=True),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(1, keepdim=True),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(-1, keepdim=True),
    "aminmax": lambda x: tuple(torch.aminmax(x)),
    "aminmax_dim": lambda x: tuple(torch.aminmax(x, dim=2)),
    "var": lambda x: x.var(),
    "var_dim": lambda x: x.var(1, correction=0),
    "var_correction": lambda x: x.var((0, 2), correction=2.5, keepdim=True),
    "std": lambda x: x.std(2),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1), keepdim=True),
    "norm": lambda x: x.norm(),
    "norm_dim": lambda x: x.norm(3, 1),
    "vector_norm_1": lambda x: torch.linalg.vector_norm(x, 1, (0, 1)),
    "vector_norm_inf": lambda x: torch.linalg.vector_norm(x, inf, 2),
    "vector_norm_minus_inf": lambda x: torch.linalg.vector_norm(x, -inf, 2),
    "vector_norm_half": lambda x: torch.linalg.vector_norm(x, 0.5, 0),
    "logsumexp": lambda x: x.logsumexp((0, 2)),
}


@pytest.mark.parametrize("name", SUMS)
def test_values_and_gradients(name: str) -> None:
    check(SUMS[name], normal(3, 4, 5), grad=True)


@pytest.mark.parametrize("name", ["sum_dim", "mean", "amax", "max_dim", "std", "norm", "logsumexp"])
def test_modes(mode: str, name: str) -> None:
    check(SUMS[name], normal(2, 3, 4), grad=True)


@pytest.mark.parametrize("name", ["sum", "mean_dim", "var_dim", "std", "norm", "norm_dim"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_types(name: str, dtype: torch.dtype) -> None:
    check(SUMS[name], normal(3, 4, 5).to(dtype))


def test_half_sums_are_rounded_once() -> None:
    ones = torch.ones(5000, dtype=torch.bfloat16)
    assert ones.to("tpu").sum().item() == 4992
    assert ones.to("tpu").mean().item() == 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 0, 2], [1, 0, 5]]).to(dtype)
    check(
        lambda x: (x.sum(), x.sum(0), x.prod(), x.prod(1), x.amax(1), x.max(), x.max(0), x.min(1)),
        x,
    )
    check(lambda x: (x.any(), x.all(), x.any(0), x.all(1, keepdim=True), x.any((0, 1))), x)
    check(lambda x: (x.count_nonzero(), x.count_nonzero(1), x.count_nonzero((0, 1))), x)


def test_dtype_arguments() -> None:
    x = normal(3, 4)
    check(lambda x: x.sum(dtype=torch.float64), x)
    check(lambda x: x.sum(1, dtype=torch.int32), x * 10)
    check(lambda x: x.mean(dtype=torch.float32), torch.arange(5))
    check(lambda x: x.prod(0, dtype=torch.float64), x)
    check(lambda x: torch.linalg.vector_norm(x, dtype=torch.float64), x)
    check(lambda x: x.nansum(dtype=torch.float32), torch.tensor([1.0, nan, 3.0], dtype=torch.half))


def test_any_and_all_see_nan_and_no_dims() -> None:
    x = torch.tensor([[0.0, nan], [0.0, 0.0]])
    check(lambda x: (x.any(), x.any(1), x.all(0), torch.any(x, dim=()), torch.all(x, dim=())), x)


def test_nan_and_infinity() -> None:
    x = torch.tensor([[1.0, nan, inf], [-inf, 2.0, 2.0]])
    check(lambda x: (x.amax(1), x.amin(1), x.max(1), x.min(1), x.argmax(1), x.argmin(1)), x)
    check(lambda x: (x.logsumexp(1), x.sum(1), x.nansum(1), x.argmax(), x.max()), x)
    check(lambda x: (x.logsumexp(0), x.logsumexp(1)), torch.full((2, 3), -inf))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_to_reduce(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    check(lambda x: (x.sum(), x.prod(), x.mean(), x.any(), x.all(), x.norm(), x.var()), x)
    check(lambda x: (x.sum(-1), x.prod(-1), x.mean(-1), x.any(-1), x.all(-1), x.norm(2, -1)), x)
    check(lambda x: x.logsumexp(-1), x)


def test_scalars() -> None:
    x = torch.tensor(-2.5)
    check(lambda x: (x.sum(), x.sum(0), x.mean(-1), x.prod(0), x.amax(0), x.max(0), x.argmax()), x)
    check(lambda x: (x.median(), x.median(0), x.mode(), x.kthvalue(1), x.norm(), x.any(0)), x)
    check(lambda x: (x.var(correction=0), x.logsumexp(0), x.sum(0, keepdim=True)), x)


def test_arg_extremes() -> None:
    x = torch.tensor([[1, 3, 3], [7, 7, 0]])
    check(lambda x: (x.argmax(), x.argmin(), x.argmax(1), x.argmin(0, keepdim=True)), x)
    check(lambda x: (x.argmax(keepdim=True), x.max(1), x.min(0)), x)
    check(lambda x: (x.max(1), x.argmax(1)), torch.zeros(0, 3))


def test_medians() -> None:
    x = normal(5, 6, 3)
    check(lambda x: (x.median(), x.median(1).values, x.nanmedian(0).values), x, grad=True)
    y = torch.tensor([[1.0, nan, 3.0, 2.0], [nan] * 4, [4.0, 1.0, 3.0, 2.0]])
    check(lambda y: (y.median(), y.nanmedian(), y.median(1), y.nanmedian(1).values), y)
    check(lambda y: (y.median(), y.median(1)), torch.tensor([[3, 1, 2], [9, 8, 7]]))
    check(lambda y: y.median(), torch.zeros(0))


def test_order_statistics() -> None:
    x = torch.tensor([[2, 1, 2, 1, 3], [5, 5, 1, 1, 1]])
    check(lambda x: (x.mode(1), x.mode(0, keepdim=True)), x)
    y = torch.tensor([[4, 1, 3], [0, 7, 5]])
    check(lambda y: (y.kthvalue(2, 1), y.float().kthvalue(1, 0, keepdim=True)), y)
    check(lambda x: x.kthvalue(3, 0).values, normal(4, 3), grad=True)


def test_hash_tensor() -> None:
    check(lambda x: (torch.hash_tensor(x), torch.hash_tensor(x, 0, keepdim=True)), normal(3, 4))
    check(lambda x: torch.hash_tensor(x, 1), torch.arange(-3, 3).reshape(2, 3))


def test_complex() -> None:
    x = torch.complex(normal(3, 4), normal(4, 3).T.contiguous())
    check(lambda x: (x.sum(0), x.mean(1), x.prod(), x.var(0), x.std(), x.norm(), x.any(1)), x)


def test_strided_inputs() -> None:
    check(lambda x: (x.t().sum(0), x[:, ::2].amax(1), x.t().std(1), x[1:].max(0)), normal(4, 6))


def test_out() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = x.new_empty(4)
        torch.sum(x, 0, out=out)
        values, places = x.new_empty(0), x.new_empty(0, dtype=torch.long)
        torch.max(x, 1, out=(values, places))
        return out, values, places

    check(function, normal(3, 4))


def test_refusals() -> None:
    check_raises(lambda x: x.sum(3), torch.zeros(2))
    check_raises(lambda x: x.sum((0, 0)), torch.zeros(2, 2))
    check_raises(lambda x: x.mean(), torch.arange(3))
    check_raises(lambda x: x.amax(0), torch.zeros(0, 2))
    check_raises(lambda x: x.max(), torch.zeros(0))
    check_raises(lambda x: x.argmax(), torch.zeros(0))
    check_raises(lambda x: x.kthvalue(3), torch.zeros(2))
    check_raises(lambda x: x.var(), torch.arange(3))
    check_raises(lambda x: torch.linalg.vector_norm(x, inf), torch.zeros(0))
