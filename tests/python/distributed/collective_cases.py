# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Collectives as programs of eight devices against Gloo; ``python collective_cases.py NAME``."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from spmd_cases import case, main, raises
from torch_tpu.distributed import programs

SIZE, COUNT = 8, 5
Step = Callable[[dist.ProcessGroup, torch.Tensor], torch.Tensor]


def with_gloo(step: Step, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run `step` in a thread for each member of one Gloo group."""
    store, results = dist.HashStore(), [torch.empty(0)] * SIZE

    def member(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, SIZE)
        results[rank] = step(group, rows[rank].clone())

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def make_rows(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    numbers = torch.randint(1, 5, (SIZE, count), generator=generator)
    return list((numbers if not dtype.is_floating_point else numbers / 4 - 1).to(dtype))


def same(collective: programs.Collective, rows: list[torch.Tensor], step: Step) -> None:
    actual, expected = programs.run(collective, rows), with_gloo(step, rows)
    for rank in range(SIZE):
        torch.testing.assert_close(actual[rank], expected[rank], rtol=1e-6, atol=1e-6)


def all_reduce(group: dist.ProcessGroup, x: torch.Tensor, op: dist.ReduceOp) -> torch.Tensor:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    group.allreduce([x], options).wait()
    return x


@case
def reductions_are_those_of_gloo() -> None:
    kinds = {
        "sum": (dist.ReduceOp.SUM, torch.float32, torch.int64),
        "product": (dist.ReduceOp.PRODUCT, torch.float32, torch.int32),
        "min": (dist.ReduceOp.MIN, torch.float32),
        "max": (dist.ReduceOp.MAX, torch.int64),
    }
    for name, (op, *dtypes) in kinds.items():
        for dtype in dtypes:
            collective = programs.Collective("all_reduce", dtype, COUNT, SIZE, reduction=name)
            rows = make_rows(COUNT, dtype)
            same(collective, rows, lambda group, x, op=op: all_reduce(group, x, op))
    rows = make_rows(COUNT, torch.float32)
    average = programs.Collective("all_reduce", torch.float32, COUNT, SIZE, reduction="avg")
    same(average, rows, lambda group, x: all_reduce(group, x, dist.ReduceOp.SUM) / SIZE)
    scatter = programs.Collective("reduce_scatter", torch.float32, COUNT, SIZE)
    same(
        scatter,
        make_rows(SIZE * COUNT, torch.float32),
        lambda group, x: all_reduce(group, x, dist.ReduceOp.SUM).chunk(SIZE)[group.rank()],
    )


def all_gather(group: dist.ProcessGroup, x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(SIZE)]
    group.allgather([parts], [x]).wait()
    return torch.cat(parts)


def all_to_all(group: dist.ProcessGroup, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    group.alltoall_base(out, x, [], []).wait()
    return out


def broadcast(group: dist.ProcessGroup, x: torch.Tensor) -> torch.Tensor:
    options = dist.BroadcastOptions()
    options.rootRank = 3
    group.broadcast([x], options).wait()
    return x


@case
def what_is_moved_arrives_as_with_gloo() -> None:
    for dtype in (torch.float32, torch.int64):
        rows = make_rows(COUNT, dtype)
        same(programs.Collective("all_gather", dtype, COUNT, SIZE), rows, all_gather)
        same(programs.Collective("broadcast", dtype, COUNT, SIZE, root=3), rows, broadcast)
        whole = make_rows(SIZE * COUNT, dtype)
        same(programs.Collective("all_to_all", dtype, COUNT, SIZE), whole, all_to_all)
    odd = torch.tensor([float("nan"), -0.0, float("inf")])
    rows = [odd if rank == 3 else torch.full((3,), float("nan")) for rank in range(SIZE)]
    for got in programs.run(programs.Collective("broadcast", odd.dtype, 3, SIZE, root=3), rows):
        assert torch.equal(got.view(torch.int32), odd.view(torch.int32))


@case
def permutations_go_where_they_are_sent() -> None:
    pairs = [(k, (k + 1) % SIZE) for k in range(SIZE)]
    rows = make_rows(COUNT, torch.float32)
    ring = programs.Collective("permute", torch.float32, COUNT, SIZE, pairs=pairs)
    for rank, got in enumerate(programs.run(ring, rows)):
        assert torch.equal(got, rows[rank - 1])
    for rank, got in enumerate(programs.run(ring, rows, devices=list(range(SIZE))[::-1])):
        assert torch.equal(got, rows[rank - 1])
    one = programs.Collective("permute", torch.float32, COUNT, SIZE, pairs=[(2, 5)])
    for rank, got in enumerate(programs.run(one, rows)):
        assert torch.equal(got, rows[2] if rank == 5 else torch.zeros(COUNT))


@case
def what_cannot_be_is_named() -> None:
    def text(*arguments: object, **named: object) -> Callable[[], object]:
        return lambda: programs.Collective(*arguments, **named).text

    f, i = torch.float32, torch.int32
    raises(ValueError, "a collective is one of", text("gather", f, 1, 8))
    raises(ValueError, "a reduction is one of", text("all_reduce", f, 1, 8, reduction="mean"))
    raises(ValueError, "average", text("all_reduce", i, 1, 8, reduction="avg"))
    raises(ValueError, "not a member", text("broadcast", f, 1, 8, root=8))
    raises(ValueError, "a member twice", text("permute", f, 1, 8, pairs=[(0, 1), (0, 2)]))
    collective = programs.Collective("all_reduce", f, 2, 8)
    raises(ValueError, "rows of all members", lambda: programs.run(collective, [torch.zeros(2)]))


if __name__ == "__main__":
    main()
