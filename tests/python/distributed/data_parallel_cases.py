# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Data parallel and sharded training; each way must match one process on the CPU."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
from harness import case
from small_model import (
    Block,
    batches,
    check_parameters,
    make_model,
    make_optimizer,
    own_part,
    sharded,
    train,
    whole,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

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
