# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Distributed tensors on device "tpu", compared with plain tensors on the host."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from harness import case
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)


def mesh():
    return init_device_mesh("tpu", (dist.get_world_size(),))


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def placed(t: torch.Tensor, placement) -> DTensor:
    return distribute_tensor(t.to("tpu"), mesh(), [placement])


def check(actual: DTensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.full_tensor().cpu(), expected, rtol=1e-4, atol=1e-5)


@case
def every_placement_gives_the_whole_back():
    t = sample(6, 8)
    for placement in (Replicate(), Shard(0), Shard(1), Shard(-1)):
        check(placed(t, placement), t)


@case
def uneven_shards():
    t = sample(5, 3)
    d = placed(t, Shard(0))
    assert d.to_local().shape[0] == t.chunk(dist.get_world_size())[dist.get_rank()].shape[0]
    check(d, t)
    check(d + 1, t + 1)
    check(placed(sample(1, 4), Shard(0)), sample(1, 4))


@case
def shards_of_one_element_with_a_stride():
    t = sample(dist.get_world_size() * 2)[::2]
    local = torch.empty(2, device="tpu")[::2][:1].fill_(float(dist.get_rank()))
    d = DTensor.from_local(local, mesh(), [Shard(0)])
    check(d, torch.arange(float(dist.get_world_size())))
    check(placed(t.unsqueeze(0), Shard(1)).t(), t.unsqueeze(0).t())


@case
def redistributes_between_all_placements():
    t = sample(4, 6)
    for source, target in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        d = placed(t, source).redistribute(mesh(), [target])
        assert d.placements == (target,)
        check(d, t)


@case
def partial_sums_and_averages():
    local = torch.ones(4, 2, device="tpu") * (dist.get_rank() + 1)
    size = dist.get_world_size()
    for op, value in (("sum", size * (size + 1) / 2), ("avg", (size + 1) / 2), ("max", size)):
        d = DTensor.from_local(local, mesh(), [Partial(op)])
        check(d.redistribute(mesh(), [Replicate()]), torch.full((4, 2), float(value)))
        if op != "max":
            check(d.redistribute(mesh(), [Shard(0)]), torch.full((4, 2), float(value)))


@case
def two_dimensional_mesh():
    grid = init_device_mesh("tpu", (1, dist.get_world_size()), mesh_dim_names=("a", "b"))
    t = sample(4, 6)
    for placements in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        d = distribute_tensor(t.to("tpu"), grid, list(placements))
        check(d, t)
    assert grid["b"].size() == dist.get_world_size()


@case
def factories():
    for make, value in ((zeros, 0.0), (ones, 1.0)):
        d = make(4, 6, device_mesh=mesh(), placements=[Shard(0)])
        check(d, torch.full((4, 6), value))
    check(full((4,), 3.0, device_mesh=mesh(), placements=[Replicate()]), torch.full((4,), 3.0))
    assert empty(4, device_mesh=mesh(), placements=[Shard(0)]).shape == (4,)


@case
def elementwise_and_reductions():
    t, u = sample(4, 6), sample(4, 6).flip(0)
    for a, b in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        x, y = placed(t, a), placed(u, b)
        check(x + y, t + u)
        check(torch.tanh(x) * 2, torch.tanh(t) * 2)
        check(torch.where(x > 0, x, y), torch.where(t > 0, t, u))
        check(x.sum(), t.sum())
        check(x.mean(0), t.mean(0))
        check(x.amax(1), t.amax(1))
        check(torch.linalg.vector_norm(x), torch.linalg.vector_norm(t))


@case
def matrix_products():
    t, u = sample(4, 6), sample(8, 6)
    for a, b in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        check(placed(t, a) @ placed(u, b).t(), t @ u.t())
    v, w = sample(2, 4, 6), sample(2, 6, 4)
    for a, b in itertools.product((Replicate(), Shard(0), Shard(2)), repeat=2):
        check(torch.bmm(placed(v, a), placed(w, b)), torch.bmm(v, w))


@case
def views_and_indexing():
    t = sample(4, 6)
    for placement in (Replicate(), Shard(0), Shard(1)):
        d = placed(t, placement)
        check(d.t(), t.t())
        check(d.view(4, 2, 3), t.view(4, 2, 3))
        check(d.flatten(), t.flatten())
        check(d[:, 1:3], t[:, 1:3])
        check(torch.cat([d, d], 1), torch.cat([t, t], 1))
        check(d.unsqueeze(0), t.unsqueeze(0))
        check(torch.stack(list(d.split(2, 0))), torch.stack(list(t.split(2, 0))))


@case
def softmax_norm_and_loss():
    t = sample(4, 6)
    target = torch.tensor([0, 5, 2, 1])
    for placement in (Replicate(), Shard(0), Shard(1)):
        d = placed(t, placement)
        check(torch.softmax(d, 1), torch.softmax(t, 1))
        check(torch.nn.functional.layer_norm(d, [6]), torch.nn.functional.layer_norm(t, [6]))
        whole = d.redistribute(mesh(), [Replicate()])
        loss = torch.nn.functional.cross_entropy(whole, placed(target, Replicate()))
        check(loss, torch.nn.functional.cross_entropy(t, target))


@case
def gradients():
    t, u = sample(4, 6), sample(6, 2)
    for a, b in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        x, y = placed(t, a).requires_grad_(), placed(u, b).requires_grad_()
        p, q = t.clone().requires_grad_(), u.clone().requires_grad_()
        torch.relu(x @ y).sum().backward()
        torch.relu(p @ q).sum().backward()
        check(x.grad, p.grad)
        check(y.grad, q.grad)


@case
def embeddings():
    table, indices = sample(8, 4), torch.tensor([[0, 3], [7, 1]])
    for placement in (Replicate(), Shard(0), Shard(1)):
        d = placed(table, placement).requires_grad_()
        result = torch.nn.functional.embedding(placed(indices, Replicate()), d)
        check(result, torch.nn.functional.embedding(indices, table))
        result.sum().backward()
        plain = table.clone().requires_grad_()
        torch.nn.functional.embedding(indices, plain).sum().backward()
        check(d.grad, plain.grad)


@case
def random_factories_differ_between_shards():
    torch.manual_seed(11)
    d = rand(8, 4, device_mesh=mesh(), placements=[Shard(0)])
    whole = d.full_tensor().cpu()
    parts = whole.chunk(dist.get_world_size())
    assert not torch.equal(parts[0], parts[1])
    n = randn(64, 64, device_mesh=mesh(), placements=[Shard(1)]).full_tensor()
    assert abs(n.mean().item()) < 0.1
    assert abs(n.std().item() - 1) < 0.1


@case
def random_replicas_agree():
    torch.manual_seed(11)
    d = rand(4, 4, device_mesh=mesh(), placements=[Replicate()])
    parts = [torch.empty(4, 4, device="tpu") for _ in range(dist.get_world_size())]
    dist.all_gather(parts, d.to_local())
    assert all(torch.equal(parts[0].cpu(), part.cpu()) for part in parts)


@case
def random_operators_in_place():
    torch.manual_seed(4)
    d = zeros(8, 8, device_mesh=mesh(), placements=[Shard(0)])
    d.uniform_(-1, 1)
    first = d.full_tensor().cpu()
    assert len(first.unique()) > 60
    d.normal_()
    assert not torch.equal(first, d.full_tensor().cpu())
    torch.manual_seed(4)
    again = zeros(8, 8, device_mesh=mesh(), placements=[Shard(0)]).uniform_(-1, 1)
    assert torch.equal(first, again.full_tensor().cpu())


@case
def dropout():
    torch.manual_seed(4)
    d = ones(64, 64, device_mesh=mesh(), placements=[Shard(0)])
    kept = torch.nn.functional.dropout(d, 0.5).full_tensor().cpu()
    share = (kept != 0).float().mean().item()
    assert 0.4 < share < 0.6
    halves = kept.chunk(dist.get_world_size())
    assert not torch.equal(halves[0], halves[1])
    same = ones(8, 8, device_mesh=mesh(), placements=[Replicate()])
    dropped = torch.nn.functional.dropout(same, 0.5).to_local()
    parts = [torch.empty_like(dropped) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, dropped)
    assert all(torch.equal(parts[0].cpu(), part.cpu()) for part in parts)


@case
def modules():
    torch.manual_seed(dist.get_rank())
    layer = distribute_module(torch.nn.Linear(4, 4).to("tpu"), mesh())
    weights = [torch.empty(4, 4, device="tpu") for _ in range(dist.get_world_size())]
    dist.all_gather(weights, layer.weight.to_local().detach())
    assert all(torch.equal(weights[0].cpu(), w.cpu()) for w in weights)


@case
def prints_and_local_reads():
    d = placed(sample(4, 2), Shard(0))
    if dist.get_rank() == 0:
        assert "DTensor" in repr(d)
        assert d.to_local().sum().item() != 0
    dist.barrier()
