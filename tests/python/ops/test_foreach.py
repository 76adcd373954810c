# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Operators on lists of tensors."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check, check_raises


def tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    shapes = [(2, 3), (4,), (), (0, 2)]
    return [torch.linspace(0.1, 0.9, math.prod(shape)).reshape(shape).to(dtype) for shape in shapes]


UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum", "pow"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unary(dtype: torch.dtype) -> None:
    check(lambda xs: [getattr(torch, f"_foreach_{n}")(xs) for n in UNARY], tensors(dtype))


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    function = getattr(torch, f"_foreach_{name}")
    in_place = getattr(torch, f"_foreach_{name}_")

    def both(xs, other):
        results = function(xs, other)
        in_place(xs, other)
        return [*results, *xs]

    check(both, tensors(), 0.5)
    check(both, tensors(), [0.1, 0.2, 0.3, 0.4])
    check(both, tensors(), [x + 1 for x in tensors()])
    check(both, tensors(torch.bfloat16), 2)


def test_scaled_sums_and_tensors() -> None:
    def function(xs, ys, scalar):
        return [
            *torch._foreach_add(xs, ys, alpha=0.5),
            *torch._foreach_sub(xs, ys, alpha=2),
            *torch._foreach_add(xs, scalar, alpha=3),
            *torch._foreach_mul(xs, scalar),
            *torch._foreach_div(xs, scalar),
            *torch._foreach_pow(1.5, xs),
        ]

    check(function, tensors(), [x * 2 for x in tensors()], torch.tensor(2.5))


def test_three_operands() -> None:
    def function(xs, ys, zs):
        for name in ("addcmul", "addcdiv"):
            combine = getattr(torch, f"_foreach_{name}_")
            combine(xs, ys, zs, 0.5)
            combine(xs, ys, zs, [0.1, 0.2, 0.3, 0.4])
        torch._foreach_lerp_(xs, ys, 0.3)
        torch._foreach_lerp_(xs, ys, zs)
        return [xs, torch._foreach_lerp(xs, ys, [0.1, 0.9, 0.5, 0.2])]

    check(function, tensors(), [x + 1 for x in tensors()], [x + 2 for x in tensors()])


def test_norms() -> None:
    xs = [torch.linspace(-2, 1, 6).reshape(2, 3), torch.tensor([3.0, -4.0]), torch.zeros(0)]
    for order in (0, 1, 2, 3):
        check(lambda xs, o=order: torch._foreach_norm(xs, o), xs)
    check(lambda xs: torch._foreach_norm(xs, math.inf), xs[:2])
    check_raises(lambda xs: torch._foreach_norm(xs, math.inf), xs)
    check(lambda xs: torch._foreach_norm(xs, 2, dtype=torch.float64), xs)
    check(lambda xs: torch._foreach_norm(xs), [x.bfloat16() for x in xs])
    check(lambda xs: torch._foreach_max(xs), xs[:2])


def test_copies_and_zeros(mode: str) -> None:
    def function(xs, ys):
        torch._foreach_copy_(xs[:3], ys[:3])
        torch._foreach_zero_(xs[3:])
        return [*xs, *torch._foreach_clone(ys)]

    check(function, tensors(), [x.double() + 1 for x in tensors()])


def test_integers() -> None:
    xs = [torch.arange(4), torch.tensor(3)]
    check(lambda xs: [torch._foreach_add(xs, 1), torch._foreach_mul(xs, 0.5)], xs)
    check(lambda xs: [torch._foreach_div(xs, 2), torch._foreach_sqrt(xs)], xs)
    check(lambda xs: torch._foreach_add(xs, [1, 2]), xs)


def test_refusals() -> None:
    check_raises(lambda xs: torch._foreach_add(xs, xs[:2]), tensors())
    check_raises(lambda xs: torch._foreach_lerp(xs, xs, 0.5), [torch.arange(3)])


def test_clip_grad_norm() -> None:
    def function(xs):
        parameters = [torch.nn.Parameter(x) for x in xs]
        for p in parameters:
            p.grad = p.detach() * 10
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        return [norm, *[p.grad for p in parameters]]

    check(function, tensors())
