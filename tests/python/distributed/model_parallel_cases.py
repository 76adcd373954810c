# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Tensor, sequence and pipeline parallel training, and checkpoints of sharded models."""

from __future__ import annotations

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import case
from small_model import (
    STEPS,
    WIDTH,
    Block,
    batches,
    check_parameters,
    everything,
    make_model,
    make_optimizer,
    sharded,
    train,
    train_on_cpu,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

# ---- tensor parallel ----


@case
def tensor_parallel():
    # The device is not in use yet when this case is the first: the mesh then selects one itself.
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = make_model().to("tpu")
    for layer in model[:2]:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # Lists of parameters that mix DTensors and plain tensors are not for the foreach optimizers.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    train(model, optimizer, part=everything)
    check_parameters(model)


@case
def sequence_parallel():
    from torch.distributed.tensor import Replicate, Shard

    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = make_model().to("tpu")[0]
    reference = make_model()[0]
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, plan)
    x = torch.randn(2, 8, WIDTH, generator=torch.Generator().manual_seed(1))
    split = DTensor.from_local(x.to("tpu"), mesh, [Replicate()]).redistribute(mesh, [Shard(1)])
    result = split.to_local() + model.down(nn.functional.gelu(model.up(model.norm(split))))
    gathered = DTensor.from_local(result, mesh, [Shard(1)]).full_tensor()
    torch.testing.assert_close(gathered.cpu(), reference(x), rtol=1e-4, atol=1e-4)


@case
def tensor_parallel_and_fsdp():
    mesh = init_device_mesh("tpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
    if dist.get_world_size() == 4:
        mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = make_model().to("tpu")
    for layer in model[:2]:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    rows = mesh["dp"].size()
    train(model, part=lambda t: t.chunk(rows)[mesh["dp"].get_local_rank()].to("tpu"))
    check_parameters(model)


# ---- pipelines ----


def run_pipeline(schedule_class, stages_per_rank: int = 1) -> None:
    from torch.distributed.pipelining import PipelineStage

    rank, size = dist.get_rank(), dist.get_world_size()
    count = size * stages_per_rank
    torch.manual_seed(5)
    layers = [Block() for _ in range(count)]
    reference = copy.deepcopy(nn.Sequential(*layers))
    stages = [
        PipelineStage(layers[i].to("tpu"), i, count, torch.device("tpu:0"))
        for i in range(rank, count, size)
    ]
    schedule = schedule_class(
        stages if stages_per_rank > 1 else stages[0],
        n_microbatches=4,
        loss_fn=nn.functional.mse_loss,
    )
    optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=0.05)
    expected = torch.optim.SGD(reference.parameters(), lr=0.05)
    for x, _ in batches():
        target = torch.tanh(x)
        inputs = (x.to("tpu"),) if rank == 0 else ()
        last = {"target": target.to("tpu"), "losses": []} if rank == size - 1 else {}
        schedule.step(*inputs, **last)
        optimizer.step()
        optimizer.zero_grad()
        nn.functional.mse_loss(reference(x), target).backward()
        expected.step()
        expected.zero_grad()
    for index, stage in zip(range(rank, count, size), stages, strict=True):
        for p, q in zip(stage.submod.parameters(), reference[index].parameters(), strict=True):
            torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4)


@case
def pipeline_gpipe():
    from torch.distributed.pipelining import ScheduleGPipe

    run_pipeline(ScheduleGPipe)


@case
def pipeline_one_forward_one_backward():
    from torch.distributed.pipelining import Schedule1F1B

    run_pipeline(Schedule1F1B)


@case
def pipeline_interleaved():
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    run_pipeline(ScheduleInterleaved1F1B, stages_per_rank=2)


# ---- checkpoints ----


def shared_folder() -> str:
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    return folder[0]


@case
def checkpoint_resumes():
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = shared_folder()
    model = sharded()
    optimizer = make_optimizer(model)
    train(model, optimizer, steps=range(STEPS // 2))
    parts = get_state_dict(model, optimizer)
    dcp.save({"model": parts[0], "optimizer": parts[1]}, checkpoint_id=folder)
    torch.manual_seed(77)
    other = sharded()
    for p in other.parameters():
        nn.init.zeros_(p)
    other_optimizer = make_optimizer(other)
    parts = get_state_dict(other, other_optimizer)
    state = {"model": parts[0], "optimizer": parts[1]}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        other,
        other_optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    train(other, other_optimizer, steps=range(STEPS // 2, STEPS))
    check_parameters(other)


@case
def checkpoint_loads_on_one_process_of_the_host():
    folder = shared_folder()
    model = sharded()
    train(model, steps=range(5))
    dcp.save(model.state_dict(), checkpoint_id=folder)
    if dist.get_rank() == 0:
        plain = make_model()
        state = plain.state_dict()
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        plain.load_state_dict(state)
        expected = train_on_cpu(make_model(), steps=5)
        for name, p in plain.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], rtol=2e-4, atol=2e-4)
    dist.barrier()


@case
def checkpoint_saved_beside_training():
    folder = shared_folder()
    model = sharded()
    optimizer = make_optimizer(model)
    train(model, optimizer, steps=range(5))
    saving = dcp.async_save(model.state_dict(), checkpoint_id=folder)
    train(model, optimizer, steps=range(5, STEPS))
    saving.result()
    check_parameters(model)
    again = sharded()
    state = again.state_dict()
    dcp.load(state, checkpoint_id=folder)
    again.load_state_dict(state)
    check_parameters(again, train_on_cpu(make_model(), steps=5))
