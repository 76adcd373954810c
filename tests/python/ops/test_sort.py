# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sorting, searching, unique elements and histograms."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check, check_raises

nan, inf = math.nan, math.inf


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
def test_sort(dim: int, descending: bool) -> None:
    check(lambda x: x.sort(dim, descending), normal(4, 5, 3), grad=True)


def test_sort_modes(mode: str) -> None:
    check(lambda x: (x.sort(1), x.topk(2, 0)), normal(3, 4), grad=True)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64]
)
def test_sort_types(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 1, 0, 1, 5, 0], [0, 2, 2, 7, 1, 2]]).to(dtype)
    check(lambda x: (x.sort(dim=1, stable=True), x.sort(dim=1, descending=True, stable=True)), x)
    check(lambda x: (x.msort(), x.argsort(dim=0, stable=True)), x)


def test_sort_edges() -> None:
    x = torch.tensor([nan, 1.0, -inf, nan, inf, 0.0, -0.0])
    check(lambda x: (x.sort(stable=True), x.sort(descending=True, stable=True)), x)
    check(lambda x: (x.sort(), x.topk(1), x.topk(0)), torch.tensor(2.0))
    check(lambda x: (x.sort(0), x.sort(1)), torch.zeros(0, 3))


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool) -> None:
    check(lambda x: x.topk(3, 1, largest), normal(3, 6, 2), grad=True)
    check(lambda x: x.topk(2, largest=largest).values, torch.tensor([1.0, nan, 3.0, 2.0]))
    check(lambda x: x.topk(0, largest=largest), torch.arange(4))
    check_raises(lambda x: x.topk(5, largest=largest), torch.arange(4))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32])
def test_unique(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 1, 3, 0], [1, 1, 7, 0]]).to(dtype)
    check(lambda x: torch.unique(x), x)
    check(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    check(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), x)


@pytest.mark.parametrize("dim", [0, 1])
def test_unique_rows(dim: int) -> None:
    x = torch.tensor([[3, 1, 3, 0], [1, 1, 1, 0], [3, 1, 3, 0], [1, 0, 1, 0]])

    def everything(function):
        return lambda x: function(x, dim=dim, return_inverse=True, return_counts=True)

    for operand in (x, x.float(), torch.stack([x, x.flip(0)], 2)):
        check(everything(torch.unique), operand)
        check(everything(torch.unique_consecutive), operand)


def test_unique_edges() -> None:
    check(lambda x: torch.unique(x), torch.tensor([nan, 1.0, nan]))
    check(lambda x: torch.unique(x, return_inverse=True, return_counts=True), torch.zeros(0))
    check(lambda x: torch.unique(x, return_inverse=True), torch.tensor(5))
    check(lambda x: torch.unique(x, dim=0), torch.zeros(0, 3))
    check_raises(lambda x: torch.unique(x, dim=0), torch.zeros(2, 0))


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    edges = torch.tensor([0.0, 1.0, 1.0, 4.0, 9.0])
    values = torch.tensor([[-1.0, 0.0, 1.0], [4.5, 9.0, 10.0], [nan, inf, -inf]])
    check(lambda e, v: torch.searchsorted(e, v, right=right), edges, values)
    check(lambda e, v: torch.bucketize(v, e, right=right, out_int32=True), edges, values)
    check(lambda e: torch.searchsorted(e, 1, right=right), edges)
    check(lambda e: torch.bucketize(4.5, e.long(), right=right), edges)
    rows = torch.stack([edges, edges * 2, edges - 3])
    check(lambda r, v: torch.searchsorted(r, v, side="right" if right else "left"), rows, values)


def test_searchsorted_edges() -> None:
    check(lambda e, v: torch.searchsorted(e, v), torch.zeros(0), torch.ones(3))
    check(lambda e, v: torch.searchsorted(e, v), torch.arange(4), torch.zeros(0).long())
    shuffled, order = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1, 2, 0])
    check(lambda e, v, s: torch.searchsorted(e, v, sorter=s), shuffled, torch.tensor(2.5), order)
    check_raises(lambda e, v: torch.searchsorted(e, v), torch.zeros(2, 3), torch.zeros(3, 3))


@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_isin(count: int) -> None:
    elements, tests = torch.arange(12).reshape(3, 4), torch.arange(count) * 2
    check(lambda e, t: (torch.isin(e, t), torch.isin(e, t, invert=True)), elements, tests)
    check(lambda e, t: torch.isin(e.float(), t.float()), elements, tests)
    check(lambda e, t: (torch.isin(e, 4), torch.isin(4, t)), elements, tests)


def test_bincount() -> None:
    x, weights = torch.tensor([1, 0, 3, 1, 5]), torch.linspace(0, 1, 5)
    check(lambda x: (x.bincount(), x.bincount(minlength=9), x.int().bincount(minlength=2)), x)
    check(lambda x, w: (x.bincount(w), x.bincount(w.double())), x, weights)
    check(lambda x: x.bincount(minlength=3), torch.zeros(0).long())
    check_raises(lambda x: x.bincount(), torch.tensor([1, -1]))
    check_raises(lambda x: x.bincount(), torch.zeros(2))


def test_histc() -> None:
    x = normal(200)
    check(lambda x: (x.histc(10), x.histc(7, -1, 2), x.histc(3, 1, 1)), x)
    check(lambda x: (x.histc(4, 0, 3), x.histc(4)), torch.tensor([0.0, 1.0, 3.0, 3.0, 2.0]))
    check(lambda x: x.histc(5), torch.zeros(0))
    check(lambda x: x.histc(5), torch.full((3,), 2.0))
    check(lambda x: x.histc(5, 0, 2), torch.tensor([1.0, nan, 5.0]))
    check_raises(lambda x: x.histc(5), torch.tensor([1.0, inf]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_histc_of_integers(dtype: torch.dtype) -> None:
    """The CPU has no such kernel; expert counts in mixtures of experts rely on it."""
    x = torch.tensor([0, 3, 3, 1, 7, 3], dtype=dtype, device="tpu")
    counts = torch.histc(x, 8, 0, 7)
    assert counts.dtype == dtype
    assert counts.tolist() == [1, 1, 0, 3, 0, 0, 0, 1]


def test_histogram() -> None:
    x, weight = normal(200), normal(200).abs()
    edges = torch.tensor([-2.0, -0.5, 0.0, 0.25, 3.0])
    check(lambda x: (*x.histogram(7), *x.histogram(5, range=(-1.0, 1.0))), x)
    check(
        lambda x, w: (*x.histogram(4, weight=w), *x.histogram(4, weight=w, density=True)), x, weight
    )
    check(lambda x, e: (*x.histogram(e), *x.histogram(e, density=True)), x, edges)
    check(lambda x: x.histogram(3), torch.zeros(0))
    check(lambda x: x.histogram(2), torch.full((3,), 2.0))
    check_raises(lambda x: x.histogram(2), torch.arange(3))
