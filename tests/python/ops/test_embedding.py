# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Embedding tables against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from layer_checks import check, rand

INDICES = torch.tensor([[1, 4, 4], [0, 9, 1]])


@pytest.mark.parametrize("options", [{}, {"padding_idx": 4}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_embedding(options: dict, kind: torch.dtype) -> None:
    check(lambda i, w: F.embedding(i, w, **options), INDICES.to(kind), rand(10, 3))


def test_embedding_modes(mode: str) -> None:
    check(F.embedding, INDICES, rand(10, 3))


def test_embedding_shapes() -> None:
    check(F.embedding, torch.tensor(3), rand(10, 3))
    check(F.embedding, torch.zeros(0, 2, dtype=torch.int64), rand(10, 3))
    check(F.embedding, INDICES, rand(10, 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0])
def test_renorm(norm_type: float) -> None:
    def run(i: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = F.embedding(i, w, max_norm=0.7, norm_type=norm_type)
        return [y, w]

    check(run, INDICES, rand(10, 3), gradient=False)


def test_index_out_of_range() -> None:
    with pytest.raises(IndexError):
        F.embedding(torch.tensor([10], device="tpu"), rand(10, 3).to("tpu")).cpu()


FLAT = torch.tensor([1, 2, 4, 5, 4, 3, 9])
OFFSETS = torch.tensor([0, 2, 2, 5])


@pytest.mark.parametrize("bag_mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 4}, {"include_last_offset": True}])
def test_bags(bag_mode: str, options: dict) -> None:
    offsets = torch.tensor([0, 2, 2, 5, 7]) if "include_last_offset" in options else OFFSETS
    check(
        lambda i, w, o: F.embedding_bag(i, w, o, mode=bag_mode, **options),
        FLAT,
        rand(10, 3),
        offsets,
    )


def test_bags_more() -> None:
    check(lambda i, w: F.embedding_bag(i, w, mode="sum"), INDICES, rand(10, 3))
    check(
        lambda i, w, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
        FLAT,
        rand(10, 3),
        OFFSETS,
        rand(7, seed=3),
    )


def test_bags_scaled_by_frequency() -> None:
    """An index that occurs n times gets the n-th part of its gradient."""
    weight = rand(10, 3).to("tpu").requires_grad_()
    indices, offsets = FLAT.to("tpu"), OFFSETS.to("tpu")
    F.embedding_bag(indices, weight, offsets, mode="sum", scale_grad_by_freq=True).sum().backward()
    expected = torch.zeros(10, 3)
    expected[FLAT] = 1
    torch.testing.assert_close(weight.grad.cpu(), expected)
