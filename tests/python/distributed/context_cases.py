# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Attention over a sequence or heads that lie on several processes; collectives in graphs."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from harness import case
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import (
    _cp_options,
    context_parallel_unshard,
)


def mesh():
    return init_device_mesh("tpu", (dist.get_world_size(),))


def attention_on_cpu(causal: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return query, key and value, and the result with their gradients."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 4, 16, 8, generator=generator).requires_grad_() for _ in range(3)]
    result = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    (result * torch.arange(8.0)).sum().backward()
    return inputs, [result.detach(), *(t.grad for t in inputs)]


def run_in_context(causal: bool) -> None:
    inputs, expected = attention_on_cpu(causal)
    buffers = [t.detach().to("tpu") for t in inputs]
    with context_parallel(mesh(), buffers=buffers, buffer_seq_dims=[2, 2, 2]):
        own = [t.detach().clone().requires_grad_() for t in buffers]
        assert own[0].shape[2] == 16 // dist.get_world_size()
        result = F.scaled_dot_product_attention(*own, is_causal=causal)
        (result * torch.arange(8.0, device="tpu")).sum().backward()
        parts = [result.detach(), *(t.grad for t in own)]
        wholes = context_parallel_unshard(mesh(), parts, [2] * 4)
    for whole, value in zip(wholes, expected, strict=True):
        torch.testing.assert_close(whole.cpu(), value, rtol=1e-4, atol=1e-4)


@case
def causal_attention_in_a_ring():
    run_in_context(causal=True)


@case
def full_attention_in_a_ring():
    balanced = _cp_options.enable_load_balance
    _cp_options.enable_load_balance = False  # balancing is for causal attention alone
    try:
        run_in_context(causal=False)
    finally:
        _cp_options.enable_load_balance = balanced


@case
def attention_with_heads_on_several_processes():
    for causal in (False, True):
        inputs, expected = attention_on_cpu(causal)
        own = [distribute_tensor(t.detach().to("tpu"), mesh(), [Shard(1)]) for t in inputs]
        own = [t.requires_grad_() for t in own]
        result = F.scaled_dot_product_attention(*own, is_causal=causal)
        assert result.placements == (Shard(1),)
        weights = distribute_tensor(torch.arange(8.0, device="tpu"), mesh())
        (result * weights).sum().backward()
        for t, value in zip([result.detach(), *(t.grad for t in own)], expected, strict=True):
            torch.testing.assert_close(t.full_tensor().cpu(), value, rtol=1e-4, atol=1e-4)


@case
def collectives_in_a_compiled_function():
    def function(x):
        total = collectives.all_reduce(x * 2, "sum", dist.group.WORLD)
        rows = collectives.all_gather_tensor(total + x, 0, dist.group.WORLD)
        return collectives.reduce_scatter_tensor(rows.sin(), "sum", 0, dist.group.WORLD) * 2

    rank, size = dist.get_rank(), dist.get_world_size()
    compiled = torch.compile(function, fullgraph=True)
    for scale in (1.0, 3.0):
        result = compiled(torch.arange(4.0, device="tpu") * scale + rank)
        parts = [torch.arange(4.0) * scale + r for r in range(size)]
        total = sum(parts) * 2
        rows = torch.cat([total + part for part in parts]).sin() * size * 2
        torch.testing.assert_close(result.cpu(), rows.chunk(size)[rank], rtol=1e-4, atol=1e-4)
