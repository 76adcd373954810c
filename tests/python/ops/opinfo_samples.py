# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Entries of PyTorch's operator database as plain functions of their differentiable tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torus.opinfo import judge

Function = Callable[..., tuple[torch.Tensor, ...]]

# Numerical Jacobians cost an evaluation an element.
_SMALL = 64


@functools.cache
def _by_name() -> dict[str, Any]:
    return {judge.op_name(op): op for op in judge.entries("float64")}


def words(text: str) -> list[str]:
    """Return the names in a block of text."""
    return text.split()


def find(name: str) -> Any:
    """Return the entry of that name, its variant after a full stop."""
    return _by_name()[name]


def _elements(sample: Any) -> int:
    leaves, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    return sum(x.numel() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad)


def small_sample(op: Any) -> Any:
    """Return the first small sample in float64, or the smallest of the first few."""
    torch.manual_seed(0)
    samples = list(itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), 8))
    samples = [sample for sample in samples if _elements(sample) > 0]
    small = [sample for sample in samples if _elements(sample) <= _SMALL]
    return (small or sorted(samples, key=_elements))[0]


def as_function(op: Any, sample: Any, device: str) -> tuple[Function, tuple[torch.Tensor, ...]]:
    """Return a function of the tensors of a sample that require gradients, and those tensors.

    Both live on `device`; what the function returns are the differentiable results.
    """
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    moved = [x.detach().to(device) if isinstance(x, torch.Tensor) else x for x in leaves]
    moved = [torch.device(device) if isinstance(x, torch.device) else x for x in moved]
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.requires_grad]

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(moved)
        for place, value in zip(places, inputs, strict=True):
            values[place] = value
        first, args, kwargs = tree_unflatten(values, structure)
        result = op.gradcheck_wrapper(op.get_op(), first, *args, **kwargs)
        outputs, _ = tree_flatten(sample.output_process_fn_grad(result))
        return tuple(x for x in outputs if isinstance(x, torch.Tensor) and x.is_floating_point())

    return function, tuple(moved[place].clone() for place in places)
