# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Compiled functions of distributed tensors; ``python spmd_compile_cases.py NAME`` runs one."""

from __future__ import annotations

import torch
from spmd_cases import (
    case,
    close,
    collectives,
    counts,
    main,
    make_llama,
    make_mlp,
    mesh_for,
    place_mlp,
    placed,
    tokens,
    train_cpu,
)
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch_tpu.distributed import spmd


def launched() -> tuple[int, int]:
    """Launches and compilations since the last look, once everything has run."""
    torch.tpu.synchronize()
    return counts()


@case
def a_compiled_module_is_one_program_on_all_devices() -> None:
    mesh = spmd.init_mesh((8,), ("model",))
    model, x = make_mlp(), torch.randn(32, 16)
    expected = model(x)
    spmd.parallelize(model, mesh, place_mlp)
    compiled = torch.compile(model, fullgraph=True)
    batch = placed(x, mesh)
    launched()
    with torch.no_grad():
        close(compiled(batch), expected)
        assert launched()[0] == 1
        assert collectives() == {"all-reduce": 1}, collectives()
        y = compiled(batch)
        assert spmd.layout_of(y).is_replicated
        close(y, expected)
    assert launched() == (1, 0)


@case
def programs_follow_the_layouts_of_their_arguments() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    a, b = torch.randn(16, 8), torch.randn(8, 8)

    @torch.compile(fullgraph=True)
    def f(x: torch.Tensor, y: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        return (x @ y).softmax(-1) * scale, x.t()

    layouts = ([Shard(0), Shard(1)], [Replicate(), Shard(0)], [Replicate(), Replicate()])
    for scale in (2.0, 3.0):
        for place in layouts:
            x, y = (spmd.distribute_tensor(t, mesh, place) for t in (a, b))
            launched()
            product, view = f(x, y, scale)
            close(product, (a @ b).softmax(-1) * scale)
            close(view, a.t())
            close(f(x, b.to("tpu"), scale)[0], (a @ b).softmax(-1) * scale)
        close(f(a.to("tpu"), b.to("tpu"), scale)[0], (a @ b).softmax(-1) * scale)
    large = spmd.distribute_tensor(torch.cat([a, a]), mesh, layouts[0])
    for _ in range(2):
        close(f(large[5:21], y, 2.0)[0], (torch.cat([a, a])[5:21] @ b).softmax(-1) * 2)
        close(f(x + 0, y * 1, 2.0)[0], (a @ b).softmax(-1) * 2)


@case
def what_a_compiled_function_writes_stays_where_it_is() -> None:
    mesh = spmd.init_mesh((8,), ("data",))
    norm, reference = (nn.BatchNorm1d(6).requires_grad_(False) for _ in range(2))
    total = spmd.distribute_tensor(torch.zeros(16, 6), mesh, [Shard(0)])
    before = spmd.layout_of(total)
    spmd.parallelize(norm, mesh, "data")

    @torch.compile(fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        y = norm(x)
        total.add_(y)
        total[3].mul_(2)
        return y

    expected = torch.zeros(16, 6)
    for _ in range(3):
        x = torch.randn(16, 6)
        y = reference(x)
        expected.add_(y)
        expected[3].mul_(2)
        close(step(placed(x, mesh)), y)
        close(total, expected)
        assert spmd.layout_of(total) == before
        close(norm.running_var, reference.running_var)
    launched()
    step(placed(x, mesh))
    seen = launched()
    assert seen == (1, 0), seen


@case
def compiled_training_agrees_with_the_cpu() -> None:
    mesh = spmd.init_mesh((8,), ("model",))
    reference, model = make_mlp(), make_mlp()
    spmd.parallelize(model, mesh, place_mlp)
    layouts = [spmd.layout_of(p) for p in model.parameters()]
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    loss_of = torch.compile(lambda x: model(x).square().mean(), fullgraph=True)
    update = torch.compile(optimizer.step)
    for _ in range(6):
        x = torch.randn(16, 16)
        expected = reference(x).square().mean()
        expected.backward()
        plain.step()
        plain.zero_grad()
        batch = placed(x, mesh)
        launched()
        loss = loss_of(batch)
        loss.backward()
        update()
        seen = launched()
        optimizer.zero_grad()
        close(loss, expected)
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            close(p, q)
    assert [spmd.layout_of(p) for p in model.parameters()] == layouts
    # Forward, backward, the optimizer; the gradient of the loss by itself is the fourth.
    assert seen == (4, 0), seen


@case
def a_compiled_llama_trains_on_two_axes() -> None:
    steps = 4
    reference, expected = train_cpu(steps)
    mesh = mesh_for("2d")
    model = spmd.parallelize(make_llama(), mesh, "2d")
    layouts = [spmd.layout_of(p) for p in model.parameters()]
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    update = torch.compile(optimizer.step)
    ids, mask = (placed(t, mesh) for t in tokens())
    losses = []
    for _ in range(steps):
        launched()
        loss = compiled(input_ids=ids, attention_mask=mask, labels=ids).loss
        assert _launches_are(1), "forward"
        loss.backward()
        assert _launches_are(2), "the loss's gradient and backward"
        update()
        assert _launches_are(1), "optimizer"
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        close(p, q, 2e-5)
    assert [spmd.layout_of(p) for p in model.parameters()] == layouts


def _launches_are(expected: int) -> bool:
    return launched()[0] == expected


if __name__ == "__main__":
    main()
