# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The model, data and reference that the training cases share."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

STEPS = 20
BATCH = 8
WIDTH = 16


class Block(nn.Module):
    """A small residual block with a norm, as transformers have."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make_model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 4))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [
        (
            torch.randn(BATCH, WIDTH, generator=generator),
            torch.randn(BATCH, 4, generator=generator),
        )
        for _ in range(STEPS)
    ]


def own_part(t: torch.Tensor) -> torch.Tensor:
    return t.chunk(dist.get_world_size())[dist.get_rank()].to("tpu")


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train_on_cpu(model: nn.Module, steps: int = STEPS) -> dict[str, torch.Tensor]:
    optimizer = make_optimizer(model)
    for x, y in batches()[:steps]:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


def train(model: nn.Module, optimizer=None, part=own_part, steps=range(STEPS)) -> None:
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


def sharded(**options) -> nn.Module:
    model = make_model().to("tpu")
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def everything(t: torch.Tensor) -> torch.Tensor:
    return t.to("tpu")
