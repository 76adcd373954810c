# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Runs a function on device "tpu" and on "cpu" and compares results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.complex128: 1e-9,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return normal numbers that depend on `shape` and `seed` alone."""
    generator = torch.Generator().manual_seed(seed + 31 * sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _leaf(value: Any, device: str, gradient: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone().to(device)
    differentiable = value.is_floating_point() or value.is_complex()
    return copy.requires_grad_(gradient and differentiable)


def _run(function: Callable, arguments: tuple, device: str, gradient: bool) -> list[torch.Tensor]:
    leaves = [_leaf(a, device, gradient) for a in arguments]
    results = function(*leaves)
    results = list(results) if isinstance(results, tuple | list) else [results]
    outputs = [r for r in results if isinstance(r, torch.Tensor)]
    if gradient:
        roots = [r for r in outputs if r.requires_grad]
        seeds = [rand(*r.shape, dtype=r.dtype, seed=7).to(device) for r in roots]
        wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        grads = torch.autograd.grad(roots, wanted, seeds, allow_unused=True) if wanted else []
        outputs += [g for g in grads if g is not None]
    return [r.detach().cpu() for r in outputs]


def check(
    function: Callable,
    *arguments: Any,
    gradient: bool = True,
    tolerance: float | None = None,
) -> None:
    """Assert that `function` gives the same results and gradients on "tpu" as on "cpu".

    Parameters
    ----------
    function : callable
        Called with `arguments`; returns a tensor or a sequence of tensors.
    *arguments
        Tensors on the CPU, moved to each device, and other values, passed as they are.
    gradient : bool
        Also compare the gradients of every floating point argument.
    tolerance : float, optional
        Relative and absolute; by default one that fits the dtype.
    """
    expected = _run(function, arguments, "cpu", gradient)
    actual = _run(function, arguments, "tpu", gradient)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        limit = TOLERANCES.get(theirs.dtype, 0) if tolerance is None else tolerance
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit, equal_nan=True)
