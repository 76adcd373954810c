# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Activation functions and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check, check_raises
from torch.nn import functional

inf, nan = math.inf, math.nan

FUNCTIONS = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "elu": lambda x: functional.elu(x, 0.7),
    "selu": functional.selu,
    "celu": lambda x: functional.celu(x, 1.3),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 2),
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "softplus": lambda x: functional.softplus(x, 1.5, 3),
    "softshrink": lambda x: functional.softshrink(x, 0.4),
    "hardshrink": lambda x: functional.hardshrink(x, 0.4),
    "tanhshrink": functional.tanhshrink,
    "softsign": functional.softsign,
    "logsigmoid": functional.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "threshold": lambda x: functional.threshold(x, 0.3, 5),
    "logit": lambda x: torch.logit(x.sigmoid(), 0.1),
    "rrelu": lambda x: functional.rrelu(x, 0.1, 0.3),
}


def values(*shape: int) -> torch.Tensor:
    return torch.linspace(-4.3, 4.1, math.prod(shape)).reshape(shape)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str) -> None:
    check(FUNCTIONS[name], values(3, 7), grad=True)


def test_edges() -> None:
    x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 3.0, -3.0, 0.4, -0.4, 100.0, -100.0])
    for name, function in FUNCTIONS.items():
        # The vectorised gelu on CPU makes NaN of infinity.
        check(function, x[3:] if name == "gelu" else x, grad=True)
    check(lambda x: [f(x) for f in FUNCTIONS.values()], torch.zeros(0, 3), grad=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    check(lambda x: [f(x) for f in FUNCTIONS.values()], values(9).to(dtype), grad=True)


def test_modes(mode: str) -> None:
    check(lambda x: functional.silu(functional.gelu(x)), values(2, 3), grad=True)


def test_glu() -> None:
    check(lambda x: [functional.glu(x), functional.glu(x, 0)], values(4, 6), grad=True)
    check_raises(functional.glu, values(3, 3))


def test_prelu() -> None:
    check(functional.prelu, values(2, 3, 4), torch.tensor([0.1, 0.2, 0.3]), grad=True)
    check(functional.prelu, values(5), torch.tensor([0.25]), grad=True)


def test_in_place() -> None:
    def function(x):
        y = x * 1
        functional.relu_(y[0])
        functional.elu_(y[1])
        functional.hardtanh_(y[2], -1, 1)
        functional.silu(y[3], inplace=True)
        return functional.leaky_relu_(y, 0.1)

    check(function, values(4, 3))


def test_second_derivative() -> None:
    def function(x):
        y = functional.silu(x) + functional.softplus(x) + torch.tanh(x) + torch.sigmoid(x)
        (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return dx

    check(function, values(5), grad=True)


def test_randomised_leaky_relu() -> None:
    x = values(100).to("tpu").requires_grad_()
    y = functional.rrelu(x, 0.1, 0.3, training=True)
    (slope,) = torch.autograd.grad(y.sum(), x)
    negative = (x < 0).cpu()
    slope = slope.cpu()
    assert ((slope >= 0.1) & (slope < 0.3))[negative].all()
    assert (slope[~negative] == 1).all()
    torch.testing.assert_close(y.cpu(), x.detach().cpu() * slope)
    assert len(slope[negative].unique()) > 40


def test_refusals() -> None:
    check_raises(functional.gelu, torch.arange(3))
    check_raises(functional.relu, torch.tensor([True]))
    check_raises(lambda x: functional.softshrink(x, -1), values(3))
