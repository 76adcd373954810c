# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Pointwise operators of one, two and three operands."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from against_cpu import check, check_raises

inf, nan = math.inf, math.nan
EDGES = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-30, -1e30]

# Functions for any float, with values where they are smooth for the gradient.
SMOOTH = [
    torch.abs, torch.acos, torch.asin, torch.asinh, torch.atan, torch.atanh, torch.cos, torch.cosh,
    torch.digamma, torch.erf, torch.erfc, torch.erfinv, torch.exp, torch.exp2, torch.expm1,
    torch.frac, torch.i0, torch.lgamma, torch.log, torch.log10, torch.log1p, torch.log2, torch.neg,
    torch.reciprocal, torch.rsqrt, torch.sigmoid, torch.sin, torch.sinc, torch.sinh, torch.sqrt,
    torch.square, torch.tan, torch.tanh, torch.special.entr, torch.special.i0e, torch.special.i1,
    torch.special.i1e, torch.logit, torch.deg2rad, torch.positive,
    torch.alias_copy,
]  # fmt: skip
STEPS = [
    torch.ceil, torch.floor, torch.round, torch.trunc, torch.sign, torch.sgn, torch.signbit,
    torch.isnan, torch.isinf, torch.isposinf, torch.isneginf, torch.isfinite, torch.logical_not,
    torch.nan_to_num, torch.angle, torch.relu,
]  # fmt: skip
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def unit(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values in (0, 1)."""
    return torch.linspace(0.05, 0.95, math.prod(shape), dtype=dtype).reshape(shape)


def wave(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(math.prod(shape)).reshape(shape).sin() * 3).to(dtype)


def each(functions, *args):
    return [f(*args) for f in functions]


def test_smooth_values_and_gradients() -> None:
    check(lambda x: each(SMOOTH, x), unit(2, 3), grad=True, tolerance=1e-4)
    check(lambda x: [x.acosh(), torch.polygamma(1, x), torch.polygamma(2, x)], unit(3) + 1)


def test_steps() -> None:
    check(lambda x: each(STEPS, x), torch.tensor(EDGES))
    check(lambda x: [x.round(decimals=2), x.round(decimals=-1)], wave(7) * 20)
    check(lambda x: [*x.frexp()], torch.tensor([nan, inf, -inf, 0, 1.5, -3, 1e20, 0.1]))


def test_edges() -> None:
    functions = [f for f in SMOOTH if f not in (torch.digamma, torch.lgamma)]
    check(lambda x: each(functions, x), torch.tensor(EDGES[:-2]), tolerance=1e-4)
    check(torch.digamma, torch.tensor([0.0, -0.0, -2.5, inf, 3.0]))
    check(lambda x: each(SMOOTH, x), torch.zeros(0, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_float_types(dtype: torch.dtype) -> None:
    check(lambda x: each(SMOOTH[1:28], x), unit(5, dtype=dtype))
    check(lambda x: each(STEPS, x), torch.tensor(EDGES[:10], dtype=dtype))


def test_integer_types() -> None:
    functions = [
        torch.abs, torch.neg, torch.sign, torch.floor, torch.round, torch.exp, torch.sqrt,
        torch.sigmoid, torch.logical_not, torch.bitwise_not, torch.signbit, torch.isnan,
    ]  # fmt: skip
    for dtype in (torch.int8, torch.int32, torch.int64):
        check(lambda x: each(functions, x), torch.tensor([-3, 0, 1, 7], dtype=dtype))
    check(
        lambda x: [x.abs(), x.sign(), x.neg(), x.bitwise_not(), x.sin()],
        torch.tensor([0, 1, 255], dtype=torch.uint8),
    )
    check(lambda x: [x.bitwise_not(), x.sign(), x.sin()], torch.tensor([True, False]))


def test_complex() -> None:
    x = torch.tensor([1 + 2j, -0.5j, -3 + 0j, 0j])
    functions = [
        torch.abs, torch.angle, torch.sgn, torch.exp, torch.sin, torch.tanh, torch.conj_physical,
        torch.sqrt, torch.sigmoid, torch.neg, torch.square, torch.isnan,
    ]  # fmt: skip
    check(lambda x: each(functions, x), x, tolerance=1e-4)
    check(lambda x, y: [x + y, x - y, x * y, x / (y + 3), x == y, x != y], x, x.flip(0), grad=True)
    check(lambda x: [x + 2, x * 1j, 2j - x, x**2], x)


# ---- two operands ----


def test_arithmetic() -> None:
    def function(x, y):
        return [x + y, x - y, x * y, x / y, torch.add(x, y, alpha=2.5), torch.rsub(x, y, alpha=3)]

    check(function, wave(2, 3), unit(3), grad=True)
    check(function, wave(4, 1, dtype=torch.bfloat16), unit(1, 3, dtype=torch.bfloat16))
    check(lambda x: [x + 1, 1 - x, x * 2.5, 2 / x, x / 4, x - 0.5], unit(4), grad=True)


def test_binary_values_and_gradients() -> None:
    functions = [
        torch.atan2, torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.copysign,
        torch.hypot, torch.logaddexp, torch.logaddexp2, torch.pow, torch.remainder, torch.fmod,
        torch.xlogy, torch.special.xlog1py,
    ]  # fmt: skip
    check(lambda x, y: each(functions, x, y), unit(2, 3) * 3, unit(2, 3).flip(1), grad=True)
    check(lambda x, y: each([*functions, torch.heaviside, torch.nextafter], x, y),
          torch.tensor(EDGES[:8]), torch.tensor(EDGES[:8]).flip(0), tolerance=1e-4)  # fmt: skip
    check(torch.special.zeta, unit(3) + 2, unit(3) + 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_truncated_quotients_of_half_precision(dtype) -> None:
    # 504 / 101 is nearer to 5 than to the bfloat16 below it: rounding decides.
    x, y = (2 * torch.arange(1, 257).to(dtype)).unsqueeze(1), torch.arange(1, 257).to(dtype)
    check(lambda x, y: torch.div(x, y, rounding_mode="trunc"), x, y, tolerance=0)


def test_divisions() -> None:
    def function(x, y):
        modes = [torch.div(x, y, rounding_mode=m) for m in (None, "floor", "trunc")]
        return [*modes, x // y, x % y, torch.fmod(x, y)]

    x = torch.tensor([7, -7, 7, -7, 0, -6])
    y = torch.tensor([2, 2, -2, -2, 3, 3])
    for dtype in (torch.int32, torch.int64, torch.float32, torch.float64):
        check(function, x.to(dtype), y.to(dtype))
    check(
        function, torch.tensor([7, 200], dtype=torch.uint8), torch.tensor([2, 3], dtype=torch.uint8)
    )
    check(lambda x: [x // 2, x % 3, x % -3, 7 % x, 7 // x, x / 2, x // 0.5], x[:4])
    check(function, torch.tensor([1.0, -1, 0, inf, nan]), torch.tensor([0.0, 0, 0, 2, 2]))
    check_raises(lambda x: x // 0, x)
    check_raises(lambda x, y: x % y, x, torch.zeros_like(x))


def test_powers() -> None:
    exponents = [0, 1, 2, 3, 0.5, -0.5, -1, -2, 1.7, 5]
    check(lambda x: [x**e for e in exponents], unit(4), grad=True, tolerance=1e-4)
    check(lambda x: [x**e for e in exponents], torch.tensor([0.0, -1.5, inf, nan]))
    check(lambda x: [x**0, x**2, x**5, 2**x, x**0.5], torch.tensor([3, 0, 1]))
    check(lambda x: [3**x, 1**x, 2.5**x], wave(4), grad=True)
    check(torch.pow, torch.tensor([2, 1, -1, -1, 3]), torch.tensor([-1, -1, -3, -2, 4]))
    check_raises(lambda x: x**-1, torch.tensor([2]))


def test_comparisons() -> None:
    check(
        lambda x, y: each(COMPARISONS, x, y), torch.tensor([1, 2, nan]), torch.tensor([1.0, 1, nan])
    )
    check(lambda x: each(COMPARISONS, x, 2), torch.tensor([1, 2, 3]))
    check(lambda x: each(COMPARISONS, x, 2.5), torch.tensor([1, 2, 3]))
    check(lambda x: each(COMPARISONS, x, 0.1), torch.tensor([0.1, 0.2], dtype=torch.bfloat16))
    check(lambda x: each(COMPARISONS, x, True), torch.tensor([True, False]))
    check(lambda x, y: x < y, torch.ones(2, 1), torch.ones(0))


def test_bits_and_logic() -> None:
    x, y = torch.tensor([5, -3, 0, 12]), torch.tensor([3, 6, -1, 12])
    functions = [
        torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.logical_and,
        torch.logical_or, torch.logical_xor, torch.gcd, torch.lcm,
    ]  # fmt: skip
    check(lambda x, y: each(functions, x, y), x, y)
    check(lambda x, y: each(functions[:6], x, y), x > 0, y > 0)
    check(lambda x: [x & 6, x | 1, x ^ 3, 7 & x, x << 2, x >> 1, 1 << x.abs()], x)
    counts = torch.tensor([64, -1, 63, 1])
    check(lambda x, y: [x << y, x >> y], torch.tensor([1, 1, 1, -8]), counts)
    check(lambda x: [x >> 1, x << 1], torch.tensor([200, 3], dtype=torch.uint8))

    def shifted(x):
        x <<= 2
        x >>= 1
        return x

    check(shifted, x)


def test_promotion() -> None:
    tensors = [
        torch.tensor([1, 2]), torch.tensor([1.5, 2.5]), torch.tensor([True, False]),
        torch.tensor(3), torch.tensor(2.5, dtype=torch.float64), torch.tensor([1.0]).half(),
        torch.tensor([3], dtype=torch.uint8), torch.tensor([2.0]).bfloat16(),
    ]  # fmt: skip
    check(lambda xs: [x + y for x in xs for y in xs], tensors)
    check(lambda xs: [x * 2.5 for x in xs] + [x + 2 for x in xs] + [x + True for x in xs], tensors)
    check(lambda xs: [x / 2 for x in xs] + [torch.maximum(x, xs[0]) for x in xs], tensors)


def test_refusals() -> None:
    flags, numbers = torch.tensor([True, False]), torch.tensor([1, 2])
    check_raises(torch.neg, flags)
    check_raises(operator.sub, flags, flags)
    check_raises(lambda x: torch.add(x, x, alpha=0.5), numbers)
    check_raises(operator.add, torch.ones(2), torch.ones(3))
    check_raises(operator.and_, torch.ones(2), torch.ones(2))
    check_raises(lambda x: x.div_(2), numbers)
    check_raises(lambda x: x.add_(torch.ones(2, 2)), torch.ones(2))
    check_raises(lambda x: x.clamp(), torch.ones(2))
    check_raises(lambda x, m: x.masked_fill(m, 1), torch.ones(2), numbers)


# ---- in place and out= ----


def test_in_place_and_out(mode: str) -> None:
    def in_place(x, y):
        x.add_(y, alpha=2).mul_(3).sub_(1).div_(4)
        x[0].exp_()
        x.t()[1].clamp_(max=0.5).neg_()
        return x

    check(in_place, wave(3, 3), unit(3))
    # Their functional forms have other overload names.
    check(lambda x, y: [x.clone().floor_divide_(y), x.clone().pow_(y)], unit(3, 3), unit(3))

    def out(x):
        result = torch.empty(0, device=x.device)
        torch.exp(x, out=result)
        flags = torch.empty(2, 3, device=x.device)
        torch.lt(x, 0.5, out=flags)
        return result, flags

    check(out, unit(2, 3))


def test_memory_order() -> None:
    x = wave(2, 3, 4, 5).to(memory_format=torch.channels_last).to("tpu")
    assert (x + 1).is_contiguous(memory_format=torch.channels_last)
    assert torch.relu(x).stride() == x.stride()
    assert (x.permute(3, 1, 0, 2) * 2).stride() == x.permute(3, 1, 0, 2).stride()
    check(lambda x: [x.t() + x[:, :1], x[::2, 1:] * x.t()[::2, 1:]], wave(4, 4), grad=True)


# ---- three operands ----


def test_choosing() -> None:
    mask = torch.tensor([[True, False, True]])
    check(lambda m, x, y: torch.where(m, x, y), mask, wave(2, 3), unit(2, 1), grad=True)
    check(lambda m, x: [torch.where(m, x, 0), torch.where(m, 1.5, x)], mask, torch.arange(3))
    check(lambda x, m: x.masked_fill(m, -inf), wave(2, 3), mask, grad=True)
    check(lambda x, m, v: x.masked_fill(m, v), wave(2, 3), mask, torch.tensor(2.0), grad=True)
    check(lambda x, m: x.masked_fill_(m, 7), torch.arange(6).reshape(2, 3), mask)
    check(lambda x, m: x.masked_fill(m, 1), torch.tensor(2.0), mask)


def test_filling() -> None:
    check(lambda x: [x.fill_(3), x.new_zeros(2).fill_(2.5)], torch.arange(4))
    check(lambda x, v: x.fill_(v), wave(2, 2), torch.tensor(7))
    check(lambda x: [x.clone().zero_(), x.clone()[0].zero_()], wave(2, 2))
    check(lambda x: x.fill_(1 + 2j), torch.zeros(2, dtype=torch.complex64))


def test_clamping() -> None:
    x = torch.tensor([nan, -inf, -2.0, 0.3, 2.0, inf])
    check(lambda x: [x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0.5), x.clamp(1, -1)], x)
    check(lambda x, y: [x.clamp(y, y + 1), x.clamp(min=y), torch.clamp(x, max=y)], x, wave(6))
    check(lambda x: [x.clamp(0, 1), x.clamp(min=0.5), x.clamp_min(0), x.clamp_max(1)],
          torch.tensor([-2, 0, 3]))  # fmt: skip
    check(lambda x: x.clamp(-1, 1), wave(5), grad=True)
    check(lambda x: x.nan_to_num(1, 2, -3), x)
    check(lambda x: torch.nn.functional.threshold(x, 0.25, 9), x[1:])


def test_interpolating() -> None:
    x, y, w = wave(2, 3), unit(3), unit(2, 1)
    check(lambda x, y, w: [torch.lerp(x, y, w), x.lerp(y, 0.3), x.lerp(y, 0.7)], x, y, w, grad=True)
    check(lambda x, y, z: [torch.addcmul(x, y, z, value=0.5), torch.addcmul(x, y, z)], x, y, w,
          grad=True)  # fmt: skip
    check(lambda x, y, z: torch.addcdiv(x, y, z, value=-2), x, y, w, grad=True)
    check(lambda x: torch.addcmul(x, x, x, value=2), torch.arange(3))
    check(lambda x, y: x.lerp_(y, 0.25), x.bfloat16(), wave(2, 3).bfloat16())
    check_raises(lambda x: torch.addcdiv(x, x, x), torch.arange(3))


def test_changing_numbers() -> None:
    x = wave(5)
    for number in (0.1, 0.2, 0.3, -4.0):
        check(lambda x, n=number: (x * n + n).clamp(max=n), x)
