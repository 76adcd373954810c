# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Run a function on the device and on the CPU and compare what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

_TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-9}


def _moved(tree: Any, device: str, grad: bool) -> Any:
    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        copy = leaf.detach().clone().to(device)
        wanted = grad and (leaf.is_floating_point() or leaf.is_complex())
        return copy.requires_grad_() if wanted else copy

    return tree_map(move, tree)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _run(function: Callable[..., Any], args: Any, grad: bool) -> list[torch.Tensor | None]:
    """Results of `function`, then its arguments (which it may write) or their gradients."""
    results = _tensors(function(*args))
    if not grad:
        return [*results, *_tensors(args)]
    outputs = [x for x in results if x.requires_grad]
    inputs = [x for x in _tensors(args) if x.requires_grad]
    # Weights that differ from element to element show a gradient at the wrong place.
    weights = [
        torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64).reshape(x.shape).to(x.dtype)
        for x in outputs
    ]
    weights = [w.to(x.device) for w, x in zip(weights, outputs, strict=True)]
    grads = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    return [*results, *grads]


def check(
    function: Callable[..., Any], *args: Any, grad: bool = False, tolerance: float = 2e-5
) -> None:
    """Assert that `function` gives the same tensors on "tpu" and on "cpu".

    Parameters
    ----------
    function
        Called with `args`, the tensors in them (also nested) copied to the device.
    args
        CPU tensors and anything else.
    grad
        Compare the gradients with respect to every real or complex argument too.
    tolerance
        Relative and absolute, for float32; other types have their own.
    """
    expected = _run(function, _moved(args, "cpu", grad), grad)
    actual = _run(function, _moved(args, "tpu", grad), grad)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        if e is None or a is None:
            assert a is None
            assert e is None
            continue
        assert a.device.type == "tpu"
        limit = _TOLERANCES.get(e.dtype, tolerance)
        torch.testing.assert_close(a.cpu(), e, rtol=limit, atol=limit, equal_nan=True)


def check_raises(function: Callable[..., Any], *args: Any) -> None:
    """Assert that both devices refuse the call.

    PyTorch itself is not of one mind whether a mistake is an IndexError or a RuntimeError: its
    kernels for the CPU and for meta tensors, which word the errors here, differ.
    """

    def attempt(device: str) -> None:
        function(*_moved(args, device, False))
        torch.tpu.synchronize()

    for device in ("cpu", "tpu"):
        with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)):
            attempt(device)
