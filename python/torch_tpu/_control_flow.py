# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""PyTorch's operators of control flow on the device.

While a program is recorded nobody can look at a condition, so that both branches become part of it.
Otherwise the condition is read, as on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C


def register() -> None:
    """Enter the kernels; harmless the second time."""
    cond = torch.ops.higher_order.cond
    if torch._C.DispatchKey.PrivateUse1 not in cond.py_kernels:
        cond.py_impl(torch._C.DispatchKey.PrivateUse1)(_cond)


def _cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any],
) -> Any:
    if not (_C._is_recording() and isinstance(pred, torch.Tensor)):
        return true_fn(*operands) if pred else false_fn(*operands)
    return pytree.tree_map(
        lambda if_true, if_false: _select(pred, if_true, if_false),
        true_fn(*operands),
        false_fn(*operands),
    )


def _select(pred: torch.Tensor, if_true: Any, if_false: Any) -> Any:
    if not isinstance(if_true, torch.Tensor):
        return if_true
    chosen = torch.where(pred.reshape(()), if_true, if_false)
    if chosen.stride() == if_true.stride():
        return chosen
    return torch.empty_like(if_true).copy_(chosen)
