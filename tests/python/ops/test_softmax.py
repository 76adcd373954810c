# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Softmax and its kin."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check, check_raises
from torch.nn import functional

inf = math.inf


def logits(*shape: int) -> torch.Tensor:
    return torch.linspace(-4, 9, math.prod(shape)).sin().reshape(shape) * 5


@pytest.mark.parametrize("function", [functional.softmax, functional.log_softmax])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_values_and_gradients(function, dim: int) -> None:
    check(lambda x: function(x, dim), logits(3, 4, 5), grad=True)


def test_modes(mode: str) -> None:
    check(lambda x: (x.softmax(-1), x.log_softmax(0)), logits(3, 5), grad=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    check(lambda x: (x.softmax(-1), x.log_softmax(0)), logits(3, 5).to(dtype), grad=True)
    check(lambda x: x.softmax(-1, dtype=torch.float32), logits(3, 5).to(dtype), grad=True)


def test_edges() -> None:
    check(lambda x: (x.softmax(0), x.log_softmax(0)), torch.tensor(3.0))
    check(lambda x: (x.softmax(0), x.softmax(1), x.log_softmax(1)), torch.zeros(0, 3))
    check(lambda x: x.softmax(1), torch.zeros(3, 0))
    check(lambda x: (x.softmax(1), x.log_softmax(1)), torch.tensor([[1e30, 0], [-inf, 2.0]]))
    check(lambda x: x.softmax(1), torch.full((2, 3), -inf))
    check_raises(lambda x: torch._softmax(x, 0, False), torch.arange(3))


def test_masked() -> None:
    x = logits(2, 3, 4, 4)
    masks = (torch.arange(16).reshape(4, 4) % 3 == 1, torch.arange(8).reshape(2, 4) % 3 == 0)
    check(lambda x, m: torch._masked_softmax(x, m, 3, 0), x, masks[0])
    check(lambda x, m: torch._masked_softmax(x, m, 3, 1), x, masks[1])
    full = x > 2
    check(lambda x, m: torch._masked_softmax(x, m, 3, 2), x, full, grad=True)


def test_safe() -> None:
    x = logits(3, 4).masked_fill(torch.tensor([[True], [False], [False]]), -inf)
    check(lambda x: torch._safe_softmax(x, -1), x, grad=True)
    check(lambda x: torch._safe_softmax(x.half(), -1, torch.float32), x)


def test_losses() -> None:
    target = torch.tensor([1, 0, 4])
    check(lambda x, t: functional.cross_entropy(x, t), logits(3, 5), target, grad=True)
