# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Ways to train one model in several processes; each must match one process on the CPU."""

from __future__ import annotations

import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import case
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

_STEPS = 20
_BATCH = 8
_WIDTH = 16


class Block(nn.Module):
    """A small residual block with a norm, as transformers have."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.down = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make_model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(Block(), Block(), nn.Linear(_WIDTH, 4))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [
        (
            torch.randn(_BATCH, _WIDTH, generator=generator),
            torch.randn(_BATCH, 4, generator=generator),
        )
        for _ in range(_STEPS)
    ]


def own_part(t: torch.Tensor) -> torch.Tensor:
    return t.chunk(dist.get_world_size())[dist.get_rank()].to("tpu")


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train_on_cpu(model: nn.Module, steps: int = _STEPS) -> dict[str, torch.Tensor]:
    optimizer = make_optimizer(model)
    for x, y in batches()[:steps]:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


def train(model: nn.Module, optimizer=None, part=own_part, steps=range(_STEPS)) -> None:
    optimizer = optimizer or make_optimizer(model)
    for x, y in [batches()[i] for i in steps]:
        nn.functional.mse_loss(model(part(x)), part(y)).backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(p: torch.Tensor) -> torch.Tensor:
    return (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu()


def check_parameters(model: nn.Module, expected=None, tolerance=2e-4) -> None:
    expected = expected or train_on_cpu(make_model())
    for name, p in model.named_parameters():
        name = name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")
        torch.testing.assert_close(
            whole(p),
            expected[name],
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )


# ---- data parallel ----


@case
def ddp():
    model = DistributedDataParallel(make_model().to("tpu"))
    train(model)
    check_parameters(model)


@case
def ddp_with_bucket_views_and_small_buckets():
    model = DistributedDataParallel(
        make_model().to("tpu"), gradient_as_bucket_view=True, bucket_cap_mb=0.001
    )
    train(model)
    check_parameters(model)


@case
def ddp_with_static_graph_and_device_ids():
    model = DistributedDataParallel(make_model().to("tpu"), device_ids=[0], static_graph=True)
    train(model)
    check_parameters(model)


@case
def ddp_accumulates_without_sync():
    model = DistributedDataParallel(make_model().to("tpu"))
    optimizer = make_optimizer(model)
    for x, y in batches():
        with model.no_sync():
            (nn.functional.mse_loss(model(own_part(x)), own_part(y)) / 2).backward()
        (nn.functional.mse_loss(model(own_part(x)), own_part(y)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    check_parameters(model)


@case
def ddp_with_an_unused_layer():
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    model = DistributedDataParallel(Choosing().to("tpu"), find_unused_parameters=True)
    model(torch.ones(2, 4, device="tpu")).sum().backward()
    assert model.module.used.weight.grad is not None


@case
def ddp_with_hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for hook, tolerance in (
        (default_hooks.allreduce_hook, 2e-4),
        (default_hooks.fp16_compress_hook, 5e-2),
    ):
        model = DistributedDataParallel(make_model().to("tpu"))
        model.register_comm_hook(None, hook)
        train(model)
        check_parameters(model, tolerance=tolerance)


@case
def ddp_broadcasts_buffers():
    model = nn.BatchNorm1d(3).to("tpu")
    model.running_mean.fill_(float(dist.get_rank()))
    wrapped = DistributedDataParallel(model)
    wrapped(torch.ones(2, 3, device="tpu"))
    means = [None] * dist.get_world_size()
    dist.all_gather_object(means, model.running_mean.tolist())
    assert all(mean == means[0] for mean in means)


@case
def rank_zero_prints_and_saves():
    model = DistributedDataParallel(make_model().to("tpu"))
    optimizer = make_optimizer(model)
    with tempfile.TemporaryDirectory() as folder:
        for x, y in batches():
            loss = nn.functional.mse_loss(model(own_part(x)), own_part(y))
            loss.backward()
            if dist.get_rank() == 0:
                assert float(loss.item()) > 0
                assert str(loss)
                torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
            optimizer.step()
            optimizer.zero_grad()
    check_parameters(model)


# ---- fully sharded ----


def sharded(**options) -> nn.Module:
    model = make_model().to("tpu")
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


@case
def fsdp():
    model = sharded()
    train(model)
    check_parameters(model)


@case
def fsdp_without_reshard():
    model = sharded(reshard_after_forward=False)
    train(model)
    check_parameters(model)


@case
def fsdp_with_mixed_precision():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(mp_policy=policy)
    assert next(model.parameters()).dtype is torch.float32
    x = own_part(batches()[0][0])
    assert model(x).dtype is torch.bfloat16
    optimizer = make_optimizer(model)
    for x, y in batches():
        nn.functional.mse_loss(model(own_part(x)).float(), own_part(y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    check_parameters(model, tolerance=0.1)


@case
def fsdp_with_activation_checkpointing():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    model = make_model().to("tpu")
    apply_activation_checkpointing(model, check_fn=lambda layer: isinstance(layer, Block))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    train(model)
    check_parameters(model)


@case
def fsdp_clips_gradients():
    model, reference = sharded(), make_model()
    x, y = batches()[0]
    nn.functional.mse_loss(model(own_part(x)), own_part(y)).backward()
    nn.functional.mse_loss(reference(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    torch.testing.assert_close(whole(norm), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        whole(model[0].up.weight.grad), reference[0].up.weight.grad, rtol=1e-3, atol=1e-5
    )


@case
def fsdp_with_parameters_on_the_host():
    model = make_model()
    for layer in model:
        fully_shard(layer, offload_policy=CPUOffloadPolicy(pin_memory=False))
    fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))
    train(model)
    check_parameters(model)


@case
def hybrid_sharding_on_two_dimensions():
    mesh = init_device_mesh("tpu", (1, dist.get_world_size()), mesh_dim_names=("copy", "shard"))
    model = sharded(mesh=mesh)
    train(model)
    check_parameters(model)


# ---- tensor parallel ----


def everything(t: torch.Tensor) -> torch.Tensor:
    return t.to("tpu")


@case
def tensor_parallel():
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
    x = torch.randn(2, 8, _WIDTH, generator=torch.Generator().manual_seed(1))
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
    train(model, optimizer, steps=range(_STEPS // 2))
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
    train(other, other_optimizer, steps=range(_STEPS // 2, _STEPS))
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
    train(model, optimizer, steps=range(5, _STEPS))
    saving.result()
    check_parameters(model)
    again = sharded()
    state = again.state_dict()
    dcp.load(state, checkpoint_id=folder)
    again.load_state_dict(state)
    check_parameters(again, train_on_cpu(make_model(), steps=5))
