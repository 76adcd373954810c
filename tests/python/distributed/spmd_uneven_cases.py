# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sizes that the mesh does not divide; ``python spmd_uneven_cases.py NAME`` runs one case."""

from __future__ import annotations

import itertools

import torch
from spmd_cases import case, close, counts, main
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch_tpu.distributed import spmd

PLACES = list(itertools.product((Shard(0), Shard(1), Replicate()), repeat=2))
SIZES = ((13, 7), (9, 10), (3, 1), (1, 17), (1, 1))


@case
def every_element_comes_back() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    for size, places in itertools.product(SIZES, PLACES):
        x = torch.randn(size)
        for source in (x, x.to("tpu")):
            laid = spmd.distribute_tensor(source, mesh, places)
            assert laid.shape == x.shape
            assert torch.equal(laid.cpu(), x)
            assert torch.equal(spmd.full_tensor(laid).cpu(), x)
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float64):
        y = (torch.randn(13, 7) * 10).to(dtype)
        laid = spmd.distribute_tensor(y, mesh, [Shard(0), Shard(1)])
        before = spmd.layout_of(laid)
        laid.copy_(laid.flip(0))
        assert torch.equal(laid.cpu(), y.flip(0)), dtype
        assert spmd.layout_of(laid) == before
    layout = spmd.layout_of(laid)
    assert layout.parts == (2, 4)
    assert layout.holders()[1, 3] == (7,)


def results(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """Operators that would see what the parts are filled up with."""
    first = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    return [
        x @ w,
        x.t() @ x,
        1 / x.abs().add(1) - x.mean(),
        x.sum(),
        x.prod(0),
        x.amin(1),
        (x == 0).sum(),
        x.softmax(0),
        x.cumsum(0),
        x.flip(0) * 2,
        x.sort(0).values,
        x.reshape(-1) + 1,
        torch.cat([x, x * 2]),
        x[x.shape[0] // 2 :] * 3,
        x.index_add(0, first, x),
        nn.functional.layer_norm(x, x.shape[1:]),
    ]


@case
def operators_do_not_see_what_fills_the_parts() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    for (rows, columns), places in (
        ((13, 7), (Shard(0), Shard(1))),
        ((9, 10), (Shard(0), Shard(0))),
        ((3, 1), (Replicate(), Shard(0))),
    ):
        x, w = torch.randn(rows, columns), torch.randn(columns, 5)
        a = spmd.distribute_tensor(x, mesh, places)
        b = spmd.distribute_tensor(w, mesh, [Replicate(), Shard(1)])
        for actual, expected in zip(results(a, b), results(x, w), strict=True):
            close(actual, expected)


@case
def what_is_written_in_place_stays_where_it_is() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    for size in ((13, 7), (9, 10), (3, 1)):
        x = torch.randn(size)
        a = spmd.distribute_tensor(x, mesh, [Shard(0), Shard(1)])
        before = spmd.layout_of(a)
        for t in (a, x):
            t.mul_(3)
            t[0].add_(1)
            t[-1:].copy_(t[:1])
        close(a, x)
        assert spmd.layout_of(a) == before
        assert spmd.layout_of(torch.zeros_like(a)) == before


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 3))


def train(model: nn.Module, batches: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@case
def training_agrees_with_the_cpu() -> None:
    mesh = spmd.init_mesh((8,), ("data",))
    batches = torch.randn(4, 11, 7)
    reference = make_model()
    expected = train(reference, batches)
    for compiled in (False, True):
        model = spmd.parallelize(make_model(), mesh, lambda name, parameter: [Shard(0)])
        layouts = [spmd.layout_of(p) for p in model.parameters()]
        laid = [spmd.distribute_tensor(b, mesh, [Shard(0)]) for b in batches]
        counts()
        losses = train(torch.compile(model) if compiled else model, laid)
        for actual, loss in zip(losses, expected, strict=True):
            close(actual, loss)
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            close(p, q)
        assert [spmd.layout_of(p) for p in model.parameters()] == layouts


if __name__ == "__main__":
    main()
