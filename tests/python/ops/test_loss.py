# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Loss functions, every reduction, with gradients."""

from __future__ import annotations

import math

import pytest
import torch
from against_cpu import check, check_raises
from torch.nn import functional

REDUCTIONS = ["none", "mean", "sum"]


def values(*shape: int) -> torch.Tensor:
    return (torch.arange(math.prod(shape)).reshape(shape) * 1.7).sin() * 2


ELEMENTWISE = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": lambda x, y, **k: functional.smooth_l1_loss(x, y, beta=0.7, **k),
    "huber": lambda x, y, **k: functional.huber_loss(x, y, delta=0.7, **k),
    "bce_logits": lambda x, y, **k: functional.binary_cross_entropy_with_logits(
        x, y.sigmoid(), **k
    ),
    "bce": lambda x, y, **k: functional.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **k),
    "soft_margin": lambda x, y, **k: functional.soft_margin_loss(x, y.detach().sign(), **k),
    "kl_div": lambda x, y, **k: functional.kl_div(x.log_softmax(-1), y.softmax(-1), **k),
    "poisson": lambda x, y, **k: functional.poisson_nll_loss(x, y, **k),
    "gaussian": lambda x, y, **k: functional.gaussian_nll_loss(x, y, y.exp(), **k),
    "hinge": lambda x, y, **k: functional.hinge_embedding_loss(x, y.sign(), **k),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    loss = ELEMENTWISE[name]
    for reduction in REDUCTIONS:
        check(lambda x, y, r=reduction: loss(x, y, reduction=r), values(3, 4),
              values(3, 4).flip(1) + 0.1, grad=True)  # fmt: skip


def test_weights() -> None:
    x, y, w = values(3, 4), values(3, 4).flip(0).sigmoid(), values(4).abs()
    for reduction in REDUCTIONS:
        check(
            lambda x, y, w, r=reduction: [
                functional.binary_cross_entropy(x.sigmoid(), y, w, reduction=r),
                functional.binary_cross_entropy_with_logits(x, y, w, reduction=r, pos_weight=w + 1),
            ],
            x, y, w.detach(),
        )  # fmt: skip
    check_raises(functional.binary_cross_entropy, x, y)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy(reduction: str) -> None:
    target, weight = torch.tensor([1, 4, -100, 0]), torch.tensor([1.0, 0.5, 2, 1, 3])

    def function(x, t, w):
        return [
            functional.cross_entropy(x, t, reduction=reduction),
            functional.cross_entropy(x, t, w, reduction=reduction, label_smoothing=0.1),
            functional.nll_loss(x.log_softmax(1), t, w, reduction=reduction),
            functional.nll_loss(x, t.clamp(min=0), reduction=reduction, ignore_index=4),
        ]

    check(function, values(4, 5), target, weight, grad=False)
    check(lambda x, t: function(x, t, None)[0], values(4, 5), target, grad=True)
    check(lambda x, t: functional.nll_loss(x, t, weight.to(x.device), reduction=reduction),
          values(4, 5), target, grad=True)  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_images(reduction: str) -> None:
    target = torch.arange(2 * 4 * 4).reshape(2, 4, 4) % 3
    target[0, 0, 0] = -100
    check(lambda x, t: functional.cross_entropy(x, t, reduction=reduction),
          values(2, 3, 4, 4), target, grad=True)  # fmt: skip


def test_nll_edges() -> None:
    check(lambda x, t: functional.nll_loss(x, t), values(5), torch.tensor(3), grad=True)
    check(lambda x, t: functional.nll_loss(x, t), values(0, 5), torch.zeros(0, dtype=torch.long))
    ignored = torch.full((3,), -100)
    check(lambda x, t: functional.cross_entropy(x, t), values(3, 5), ignored, grad=True)
    check(lambda x, t: functional.nll_loss(x, t), values(3, 5),
          torch.tensor([0, 1, 2], dtype=torch.uint8), grad=True)  # fmt: skip
    check_raises(functional.nll_loss, values(3, 5), torch.tensor([0, 5, 1]))
    check_raises(functional.nll_loss, values(3, 5), torch.tensor([0, 1]))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins(reduction: str) -> None:
    target, weight = torch.tensor([1, 3, 0]), torch.tensor([1.0, 0.5, 2, 1])
    for p in (1, 2):
        check(
            lambda x, t, p=p: functional.multi_margin_loss(
                x, t, p, 0.8, weight.to(x.device), reduction=reduction
            ),
            values(3, 4), target, grad=True,
        )  # fmt: skip
    labels = torch.tensor([[3, 0, -1, 1], [-1, 2, 1, 0], [1, -1, -1, -1]])
    check(lambda x, t: functional.multilabel_margin_loss(x, t, reduction=reduction),
          values(3, 4), labels, grad=True)  # fmt: skip
    check(lambda x, t: functional.multi_margin_loss(x, t, reduction=reduction),
          values(4), torch.tensor(2), grad=True)  # fmt: skip
    check(lambda x, t: functional.multilabel_margin_loss(x, t, reduction=reduction),
          values(4), labels[0], grad=True)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    x, y, t = values(3, 5).to(dtype), values(3, 5).flip(0).to(dtype), torch.tensor([1, 0, 4])
    check(lambda x, y: [f(x, y, reduction="mean") for f in list(ELEMENTWISE.values())[:6]], x, y)
    check(lambda x, t: functional.cross_entropy(x, t), x, t, grad=True)
    check(functional.mse_loss, x, y, grad=True)


def test_modes(mode: str) -> None:
    check(lambda x, t: functional.cross_entropy(x, t), values(4, 5), torch.tensor([1, 2, 3, 4]),
          grad=True)  # fmt: skip
