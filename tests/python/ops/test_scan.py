# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Running reductions and the trace."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check, check_raises

nan, inf = math.nan, math.inf


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


SCANS = {
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_first": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
}


@pytest.mark.parametrize("name", SCANS)
def test_values_and_gradients(name: str) -> None:
    check(SCANS[name], normal(3, 7), grad=True)


@pytest.mark.parametrize("name", ["cumsum", "cummax"])
def test_modes(mode: str, name: str) -> None:
    check(SCANS[name], normal(2, 5))


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(name: str, dtype: torch.dtype) -> None:
    check(SCANS[name], normal(2, 5).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 1, 0, 3], [0, 2, 2, 1]]).to(dtype)
    check(lambda x: (x.cumsum(1), x.cumprod(1), x.cummax(1), x.cummin(1)), x)
    check(lambda x: x.cumsum(1, dtype=torch.float32), x)


def test_nan_and_infinity() -> None:
    x = torch.tensor([1.0, inf, 2.0, nan, 3.0, nan, -inf])
    check(lambda x: (x.cummax(0), x.cummin(0), x.cumsum(0), x.logcumsumexp(0)), x)
    check(lambda x: x.logcumsumexp(0), torch.tensor([-inf, -inf, 0.0, inf, inf]))


def test_edges() -> None:
    check(lambda x: (x.cumsum(0), x.cumprod(0), x.cummax(0), x.logcumsumexp(0)), torch.tensor(2.0))
    check(lambda x: (x.cumsum(0), x.cumsum(1), x.cummax(1)), torch.zeros(0, 3))
    check(lambda x: x.cumsum_(0), normal(4, 3))
    check(lambda x: x.t().cumsum(0), normal(4, 300))
    check_raises(lambda x: x.cumsum(2), torch.zeros(2))


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2), (0, 3), (1, 1)])
def test_trace(shape: tuple[int, int]) -> None:
    check(lambda x: x.trace(), normal(*shape), grad=True)
    check(lambda x: x.trace(), torch.arange(shape[0] * shape[1]).reshape(shape).int())


def test_trace_refuses_vectors() -> None:
    check_raises(lambda x: x.trace(), torch.zeros(3))
