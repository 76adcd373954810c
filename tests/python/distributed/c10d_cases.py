# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Collectives as users write them; each function runs in every rank."""

from __future__ import annotations

import datetime

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from harness import case
from torch.distributed.device_mesh import init_device_mesh

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def total() -> int:
    return size() * (size() + 1) // 2


def on_tpu(values, dtype=torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device="tpu")


def check(actual: torch.Tensor, expected) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.cpu(), expected.cpu())


# ---- all_reduce and reduce ----


@case
def all_reduce_sums_floats():
    for dtype in _FLOATS:
        t = on_tpu([1, 2], dtype) * (rank() + 1)
        dist.all_reduce(t)
        check(t, [total(), 2 * total()])


@case
def all_reduce_sums_integers():
    for dtype in _INTEGERS:
        t = on_tpu([1, 2], dtype) * (rank() + 1)
        dist.all_reduce(t)
        check(t, [total(), 2 * total()])


@case
def all_reduce_keeps_large_int64():
    t = on_tpu([2**53 + rank()], torch.int64)
    dist.all_reduce(t)
    check(t, [size() * 2**53 + total() - size()])


@case
def all_reduce_max_and_min():
    for dtype in (torch.int64, torch.float32, torch.bfloat16):
        t, u = on_tpu([rank(), -rank()], dtype), on_tpu([rank(), -rank()], dtype)
        dist.all_reduce(t, dist.ReduceOp.MAX)
        dist.all_reduce(u, dist.ReduceOp.MIN)
        check(t, [size() - 1, 0])
        check(u, [0, 1 - size()])


@case
def all_reduce_product():
    t = on_tpu([2.0, rank() + 1.0])
    dist.all_reduce(t, dist.ReduceOp.PRODUCT)
    check(t, [2.0 ** size(), {2: 2.0, 3: 6.0, 4: 24.0}[size()]])


@case
def all_reduce_average():
    for dtype in _FLOATS:
        t = on_tpu([rank(), 4], dtype)
        dist.all_reduce(t, dist.ReduceOp.AVG)
        check(t, [(size() - 1) / 2, 4])


@case
def all_reduce_average_of_integers_truncates():
    t = on_tpu([7 if rank() == 0 else 0], torch.int64)
    dist.all_reduce(t, dist.ReduceOp.AVG)
    check(t, [7 // size()])


@case
def all_reduce_premultiplied_sum():
    t = on_tpu([3.0])
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
    check(t, [1.5 * size()])
    u = on_tpu([3.0])
    dist.all_reduce(u, dist._make_nccl_premul_sum(on_tpu([2.0])))
    check(u, [6.0 * size()])


@case
def all_reduce_bits():
    for op, expected in ((dist.ReduceOp.BAND, 4), (dist.ReduceOp.BOR, 7)):
        t = on_tpu([4 if rank() else 7], torch.int32)
        dist.all_reduce(t, op)
        check(t, [expected])
    t = on_tpu([1], torch.int64)
    dist.all_reduce(t, dist.ReduceOp.BXOR)
    check(t, [size() % 2])


@case
def all_reduce_bool():
    wanted = {
        dist.ReduceOp.SUM: [True, True, False],
        dist.ReduceOp.BOR: [True, True, False],
        dist.ReduceOp.MAX: [True, True, False],
        dist.ReduceOp.PRODUCT: [False, True, False],
        dist.ReduceOp.BAND: [False, True, False],
        dist.ReduceOp.MIN: [False, True, False],
    }
    for op, expected in wanted.items():
        t = on_tpu([rank() == 0, True, False], torch.bool)
        dist.all_reduce(t, op)
        check(t, expected)


@case
def all_reduce_complex():
    t = on_tpu([1 + 2j], torch.complex64)
    dist.all_reduce(t)
    check(t, [size() * (1 + 2j)])


@case
def all_reduce_refuses_bits_of_floats():
    with pytest.raises(TypeError, match="integers"):
        dist.all_reduce(on_tpu([1.0]), dist.ReduceOp.BAND)


@case
def all_reduce_of_a_view_leaves_the_rest():
    base = torch.zeros(4, 4, device="tpu")
    view = base[1:3, 1:3]
    view.fill_(1)
    dist.all_reduce(view)
    assert base.sum().item() == 4 * size()
    turned = torch.arange(6.0, device="tpu").view(2, 3).t()
    dist.all_reduce(turned)
    check(turned, torch.arange(6.0).view(2, 3).t() * size())


@case
def all_reduce_of_scalars_and_nothing():
    t = torch.ones((), device="tpu")
    dist.all_reduce(t)
    assert t.item() == size()
    dist.all_reduce(torch.empty(0, device="tpu"))


@case
def all_reduce_of_host_tensors():
    t = torch.ones(3)
    dist.all_reduce(t)
    check(t, [size()] * 3)


@case
def all_reduce_reads_what_was_queued():
    t = torch.ones(64, 64, device="tpu")
    for _ in range(5):
        t = t @ t / 64
    dist.all_reduce(t)
    check((t + 1)[0, :2], [size() + 1.0] * 2)


@case
def all_reduce_coalesced():
    tensors = [on_tpu([1.0]), on_tpu([2, 3], torch.int64)]
    with dist._coalescing_manager():
        for t in tensors:
            dist.all_reduce(t)
    check(tensors[0], [size()])
    check(tensors[1], [2 * size(), 3 * size()])


@case
def reduce_changes_only_the_root():
    for root in range(size()):
        t = on_tpu([1.0, rank()])
        dist.reduce(t, root)
        check(t, [size(), total() - size()] if rank() == root else [1.0, rank()])


# ---- broadcast, gather, scatter ----


@case
def broadcast_of_every_type():
    kinds = (*_INTEGERS, *_FLOATS, torch.bool, torch.complex64, torch.float8_e4m3fn)
    for dtype in kinds:
        source = torch.tensor([0, 1, 1]).to(dtype)
        t = source.to("tpu") if rank() == 1 else torch.zeros(3, dtype=dtype).to("tpu")
        dist.broadcast(t, 1)
        assert torch.equal(t.cpu().to(torch.complex64), source.to(torch.complex64)), dtype


@case
def broadcast_from_each_rank():
    for root in range(size()):
        t = on_tpu([float(rank())])
        dist.broadcast(t, root)
        check(t, [float(root)])


@case
def all_gather():
    outputs = [torch.empty(2, device="tpu") for _ in range(size())]
    dist.all_gather(outputs, on_tpu([rank(), rank() + 0.5]))
    for r, t in enumerate(outputs):
        check(t, [r, r + 0.5])


@case
def all_gather_of_uneven_sizes():
    outputs = [torch.empty(r + 1, device="tpu") for r in range(size())]
    dist.all_gather(outputs, torch.full((rank() + 1,), float(rank()), device="tpu"))
    for r, t in enumerate(outputs):
        check(t, [float(r)] * (r + 1))


@case
def all_gather_with_an_empty_part():
    outputs = [torch.empty(r, device="tpu") for r in range(size())]
    dist.all_gather(outputs, torch.full((rank(),), 7.0, device="tpu"))
    for r, t in enumerate(outputs):
        check(t, [7.0] * r)


@case
def all_gather_into_tensor():
    for dtype in (torch.float32, torch.bool, torch.int64, torch.bfloat16):
        output = torch.empty(size() * 2, dtype=dtype, device="tpu")
        dist.all_gather_into_tensor(output, on_tpu([rank() == 0, True], dtype))
        check(output, [True, True] + [False, True] * (size() - 1))


@case
def all_gather_into_tensor_coalesced():
    outputs = [torch.empty(size(), device="tpu"), torch.empty(size(), 2, device="tpu")]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(outputs[0], on_tpu([float(rank())]))
        dist.all_gather_into_tensor(outputs[1], on_tpu([[1.0, rank()]]))
    check(outputs[0], [float(r) for r in range(size())])
    check(outputs[1], [[1.0, r] for r in range(size())])


@case
def all_gather_coalesced():
    inputs = [on_tpu([rank()]), on_tpu([1.0, rank()])]
    outputs = [[torch.empty_like(t) for t in inputs] for _ in range(size())]
    dist.all_gather_coalesced(outputs, inputs)
    for r, (first, second) in enumerate(outputs):
        check(first, [r])
        check(second, [1.0, r])


@case
def gather():
    for root in range(size()):
        outputs = [torch.empty(1, device="tpu") for _ in range(size())]
        dist.gather(on_tpu([float(rank())]), outputs if rank() == root else None, dst=root)
        if rank() == root:
            check(torch.cat(outputs), [float(r) for r in range(size())])


@case
def gather_of_uneven_sizes():
    outputs = [torch.empty(r + 1, device="tpu") for r in range(size())]
    mine = torch.full((rank() + 1,), float(rank()), device="tpu")
    dist.gather(mine, outputs if rank() == 0 else None)
    if rank() == 0:
        for r, t in enumerate(outputs):
            check(t, [float(r)] * (r + 1))


@case
def scatter():
    for root in range(size()):
        t = torch.empty(2, device="tpu")
        parts = [on_tpu([r, root]) for r in range(size())] if rank() == root else None
        dist.scatter(t, parts, src=root)
        check(t, [rank(), root])


# ---- reduce_scatter ----


@case
def reduce_scatter():
    t = torch.empty(2, device="tpu")
    dist.reduce_scatter(t, [on_tpu([r, 1]) for r in range(size())])
    check(t, [rank() * size(), size()])


@case
def reduce_scatter_of_uneven_sizes():
    t = torch.empty(rank() + 1, device="tpu")
    parts = [torch.full((r + 1,), float(r), device="tpu") for r in range(size())]
    dist.reduce_scatter(t, parts)
    check(t, [float(rank() * size())] * (rank() + 1))


@case
def reduce_scatter_tensor():
    for op, factor in ((dist.ReduceOp.SUM, size()), (dist.ReduceOp.AVG, 1), (dist.ReduceOp.MAX, 1)):
        for dtype in (torch.float32, torch.bfloat16):
            t = torch.empty(2, 3, dtype=dtype, device="tpu")
            whole = torch.arange(size() * 6, dtype=dtype).view(size() * 2, 3)
            dist.reduce_scatter_tensor(t, whole.to("tpu"), op)
            check(t, whole[2 * rank() : 2 * rank() + 2] * factor)


@case
def reduce_scatter_tensor_coalesced():
    outputs = [torch.empty(1, device="tpu"), torch.empty(2, device="tpu")]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(outputs[0], torch.arange(float(size()), device="tpu"))
        dist.reduce_scatter_tensor(outputs[1], torch.ones(2 * size(), device="tpu"))
    check(outputs[0], [rank() * size()])
    check(outputs[1], [size()] * 2)


# ---- all_to_all ----


@case
def all_to_all_single():
    t = torch.empty(size(), dtype=torch.int64, device="tpu")
    dist.all_to_all_single(t, torch.arange(size(), device="tpu") + 10 * rank())
    check(t, [10 * r + rank() for r in range(size())])


@case
def all_to_all_single_of_uneven_sizes():
    sent = [r + 1 for r in range(size())]
    t = torch.empty(size() * (rank() + 1), 2, device="tpu")
    source = torch.full((sum(sent), 2), float(rank()), device="tpu")
    dist.all_to_all_single(t, source, [rank() + 1] * size(), sent)
    expected = torch.arange(float(size())).repeat_interleave(rank() + 1)
    check(t, expected[:, None].expand(-1, 2))


@case
def all_to_all_lists():
    outputs = [torch.empty(rank() + 1, device="tpu") for _ in range(size())]
    inputs = [torch.full((r + 1,), float(rank()), device="tpu") for r in range(size())]
    dist.all_to_all(outputs, inputs)
    for r, t in enumerate(outputs):
        check(t, [float(r)] * (rank() + 1))


@case
def all_to_all_refuses_wrong_splits():
    with pytest.raises(ValueError, match="add up"):
        dist.all_to_all_single(on_tpu([1.0] * 3), on_tpu([1.0] * 3), [1] * size(), [7] * size())


# ---- send and receive ----


@case
def send_and_receive():
    if rank() == 0:
        dist.send(on_tpu([1.0, 2.0]), 1)
    elif rank() == 1:
        t = torch.empty(2, device="tpu")
        assert dist.recv(t, 0) == 0
        check(t, [1.0, 2.0])


@case
def receive_from_anyone():
    if rank() == 0:
        seen = set()
        for _ in range(1, size()):
            t = torch.empty(1, device="tpu")
            source = dist.recv(t)
            check(t, [float(source)])
            seen.add(source)
        assert seen == set(range(1, size()))
    else:
        dist.send(on_tpu([float(rank())]), 0)


@case
def tags_keep_messages_apart():
    if rank() == 0:
        works = [dist.isend(on_tpu([float(tag)]), 1, tag=tag) for tag in (5, 6)]
        for work in works:
            work.wait()
    elif rank() == 1:
        for tag in (6, 5):
            t = torch.empty(1, device="tpu")
            dist.recv(t, 0, tag=tag)
            check(t, [float(tag)])


@case
def ring_of_batched_messages():
    t = torch.empty(3, dtype=torch.bfloat16, device="tpu")
    mine = on_tpu([rank()] * 3, torch.bfloat16)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, (rank() + 1) % size()),
            dist.P2POp(dist.irecv, t, (rank() - 1) % size()),
        ]
    )
    for work in works:
        work.wait()
    check(t, [(rank() - 1) % size()] * 3)


@case
def objects_between_two():
    if rank() == 0:
        dist.send_object_list(["a", {"b": on_tpu([2.0]).cpu()}], 1)
    elif rank() == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received[0] == "a"
        assert received[1]["b"].item() == 2.0


# ---- handles ----


@case
def handles_tell_their_end():
    t = on_tpu([1.0])
    work = dist.all_reduce(t, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    check(t, [size()])
    check(work.result()[0], [size()])


@case
def handles_give_futures():
    t = on_tpu([1.0])
    future = dist.all_reduce(t, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    check(doubled.wait(), [2 * size()])


@case
def many_collectives_in_flight():
    tensors = [on_tpu([float(i)]) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    check(torch.cat(tensors), [float(i * size()) for i in range(20)])


@case
def coalescing_with_a_device():
    tensors = [on_tpu([float(rank())]), on_tpu([rank() + 5.0])]
    device = torch.device("tpu")
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for t in tensors:
            dist.broadcast(t, 0)
    manager.wait()
    check(torch.cat(tensors), [0.0, 5.0])


@case
def sequence_numbers_agree():
    backend = dist.group.WORLD._get_backend(torch.device("tpu"))
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(on_tpu([1.0]))
    after = backend._get_sequence_number_for_group()
    assert after == before + 1
    numbers = [None] * size()
    dist.all_gather_object(numbers, after)
    assert len(set(numbers)) == 1


# ---- barriers and objects ----


@case
def barriers():
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.barrier(async_op=True).wait()


@case
def barrier_orders_ranks():
    store = dist.distributed_c10d._get_default_store()
    store.set(f"barrier-order/{rank()}", "here")
    dist.barrier()
    assert store.check([f"barrier-order/{r}" for r in range(size())])


@case
def monitored_barriers():
    import torch_tpu.distributed

    torch_tpu.distributed.monitored_barrier()
    torch_tpu.distributed.monitored_barrier(
        timeout=datetime.timedelta(seconds=20), wait_all_ranks=True
    )


@case
def objects_to_everyone():
    gathered = [None] * size()
    dist.all_gather_object(gathered, {"rank": rank()})
    assert gathered == [{"rank": r} for r in range(size())]
    shared = [rank(), "x" * (rank() + 1)]
    dist.broadcast_object_list(shared, 1, device=torch.device("tpu"))
    assert shared == [1, "xx"]


@case
def objects_gathered_and_scattered():
    gathered = [None] * size() if rank() == 0 else None
    dist.gather_object(("r", rank()), gathered, dst=0)
    if rank() == 0:
        assert gathered == [("r", r) for r in range(size())]
    received = [None]
    dist.scatter_object_list(received, list(range(size())) if rank() == 0 else None, src=0)
    assert received == [rank()]


# ---- groups ----


@case
def names_and_defaults():
    assert dist.get_default_backend_for_device("tpu") == "tpu_dist"
    assert dist.get_default_backend_for_device("cpu") == "gloo"
    assert dist.get_backend() == "tpu_dist"
    assert dist.Backend.default_device_backend_map["tpu"] == "tpu_dist"
    assert dist.is_backend_available("tpu")
    assert dist.is_backend_available("tpu_dist")


@case
def subgroups():
    members = [0, size() - 1]
    group = dist.new_group(members)
    if rank() in members:
        t = on_tpu([1.0])
        dist.all_reduce(t, group=group)
        check(t, [2.0])
        u = on_tpu([float(rank())])
        dist.broadcast(u, size() - 1, group=group)
        check(u, [size() - 1])
        # split_group names its groups by how many a rank knows: all must know as many.
        dist.destroy_process_group(group)


@case
def subgroups_by_enumeration():
    own, _ = dist.new_subgroups_by_enumeration([[r] for r in range(size())])
    t = on_tpu([3.0])
    dist.all_reduce(t, group=own)
    check(t, [3.0])


@case
def second_group_under_the_other_name():
    group = dist.new_group(backend="tpu")
    t = on_tpu([1.0])
    dist.all_reduce(t, group=group)
    check(t, [size()])
    dist.destroy_process_group(group)


@case
def group_beside_gloo():
    group = dist.new_group(backend="cpu:gloo,tpu:tpu_dist")
    t, u = on_tpu([1.0]), torch.ones(1)
    dist.all_reduce(t, group=group)
    dist.all_reduce(u, group=group)
    check(t, [size()])
    check(u, [size()])


@case
def split_groups():
    parent = dist.group.WORLD
    parent.bound_device_id = torch.device("tpu:0")
    try:
        own = dist.split_group(parent, [[0], list(range(1, size()))])
        t = on_tpu([1.0])
        dist.all_reduce(t, group=own)
        check(t, [1.0 if rank() == 0 else size() - 1.0])
    finally:
        parent.bound_device_id = None


@case
def time_out_can_be_changed():
    group = dist.new_group()
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=25), group)
    dist.all_reduce(on_tpu([1.0]), group=group)


# ---- functional collectives ----


@case
def functional_collectives():
    mesh = init_device_mesh("tpu", (size(),))
    check(funcol.all_reduce(on_tpu([1.0]), "sum", mesh) + 0, [size()])
    gathered = funcol.all_gather_tensor(on_tpu([float(rank())]), 0, mesh)
    check(gathered + 0, [float(r) for r in range(size())])
    scattered = funcol.reduce_scatter_tensor(torch.ones(size(), device="tpu"), "avg", 0, mesh)
    check(scattered + 0, [1.0])
    mine = torch.full((size(),), float(rank()), device="tpu")
    swapped = funcol.all_to_all_single(mine, None, None, mesh)
    check(swapped + 0, [float(r) for r in range(size())])
    check(funcol.broadcast(on_tpu([float(rank())]), 1, mesh) + 0, [1.0])


@case
def functional_collectives_have_gradients():
    mesh = init_device_mesh("tpu", (size(),))
    t = on_tpu([float(rank())]).requires_grad_()
    gathered = funcol.all_gather_tensor_autograd(t, 0, mesh)
    gathered.sum().backward()
    check(t.grad, [size()])


@case
def divergent_ranks_do_not_wait():
    t = torch.ones(8, device="tpu") * 2
    if rank() == 0:
        assert "2" in str(t)
        assert (t.sum() * 3).item() == 48
    dist.all_reduce(t)
    if rank() == size() - 1:
        assert t.tolist()[0] == 2 * size()
    dist.barrier()
