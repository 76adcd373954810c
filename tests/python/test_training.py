# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Training follows the CPU's path step by step, in every mode and without falling back to it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 20

Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[nn.Module, Batch], torch.Tensor]
Optimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def no_fallbacks() -> Iterator[None]:
    """Everything here runs on the device itself."""
    torch.manual_seed(0)
    torch.tpu.reset_metrics()
    yield
    assert torch.tpu.metrics()["fallbacks"] == {}


def cross_entropy(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def train(
    model: nn.Module,
    batches: list[Batch],
    optimizer: torch.optim.Optimizer,
    loss_of: Loss = cross_entropy,
    clip: float | None = None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> list[float]:
    device = next(model.parameters()).device
    losses = []
    for step in range(STEPS):
        batch = tuple(part.to(device) for part in batches[step % len(batches)])
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def check_same_path(
    model: nn.Module,
    batches: list[Batch],
    make_optimizer: Optimizer,
    tolerance: float = 1e-4,
    make_scheduler: Callable[..., torch.optim.lr_scheduler.LRScheduler] | None = None,
    **options,
) -> None:
    paths = []
    for device in ("cpu", "tpu"):
        own = copy.deepcopy(model).to(device)
        optimizer = make_optimizer(own.parameters())
        scheduler = make_scheduler(optimizer) if make_scheduler else None
        losses = train(own, batches, optimizer, scheduler=scheduler, **options)
        state = {name: value.cpu() for name, value in own.state_dict().items()}
        paths.append((losses, state, [group["lr"] for group in optimizer.param_groups]))
    (expected, expected_state, expected_rates), (actual, state, rates) = paths
    assert expected[-1] < expected[0]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(state, expected_state, rtol=10 * tolerance, atol=10 * tolerance)
    assert rates == expected_rates


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)
    )


def points() -> list[Batch]:
    return [(torch.randn(12, 8), torch.randint(0, 4, (12,))) for _ in range(2)]


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw for-loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adamw default": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.003, momentum=0.5),
}


@pytest.mark.parametrize("name", ["sgd", "adamw foreach", "adamw for-loop"])
def test_mlp(mode: str, name: str) -> None:
    check_same_path(mlp(), points(), OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["momentum", "adam amsgrad", "rmsprop"])
def test_other_optimizers(name: str) -> None:
    check_same_path(mlp(), points(), OPTIMIZERS[name])


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def pictures() -> list[Batch]:
    return [(torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))) for _ in range(2)]


def test_convnet(mode: str) -> None:
    check_same_path(convnet(), pictures(), OPTIMIZERS["momentum"], tolerance=1e-3)


def test_convnet_channels_last() -> None:
    model = convnet().to(memory_format=torch.channels_last)
    check_same_path(model, pictures(), OPTIMIZERS["sgd"], tolerance=1e-3)


def test_batch_norm_evaluates_with_running_statistics(mode: str) -> None:
    model = convnet()
    batches = pictures()
    outputs = []
    for device in ("cpu", "tpu"):
        own = copy.deepcopy(model).to(device)
        for batch, _ in batches:
            own(batch.to(device))
        own.eval()
        with torch.no_grad():
            outputs.append(own(batches[0][0].to(device)).cpu())
        assert own[1].num_batches_tracked.item() == len(batches)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.0,
    )
    return LlamaForCausalLM(config)


def next_token(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(input_ids=batch[0], labels=batch[1]).loss


def test_llama(mode: str) -> None:
    tokens = torch.randint(0, 64, (2, 12))
    check_same_path(
        llama(), [(tokens, tokens)], OPTIMIZERS["adamw default"], tolerance=1e-3, loss_of=next_token
    )


def test_schedule_and_clipping(mode: str) -> None:
    def warm_up_then_cosine(step: int) -> float:
        return min(1.0, (step + 1) / 5) * 0.5 * (1 + math.cos(math.pi * step / STEPS))

    check_same_path(
        mlp(),
        points(),
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9),
        make_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, warm_up_then_cosine),
        clip=0.5,
    )


def test_schedule_compiles_once() -> None:
    """The learning rate differs in every step; the programs do not."""
    with torch.tpu.set_eager_mode("fused"):
        model = mlp().tpu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        batches = points()[:1]
        for _ in range(2):
            train(model, batches, optimizer, scheduler=scheduler)
        before = torch.tpu.metrics()["compilations"]
        train(model, batches, optimizer, scheduler=scheduler)
        assert torch.tpu.metrics()["compilations"] == before


def autocast_step(device: str, model: nn.Module, scaler, optimizer, batch: Batch) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.bfloat16):
        output = model(batch[0].to(device))
        loss = F.cross_entropy(output.float(), batch[1].to(device))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def test_autocast_and_grad_scaler(mode: str) -> None:
    model, batches, losses = mlp(), points(), {}
    for device in ("cpu", "tpu"):
        own = copy.deepcopy(model).to(device)
        optimizer = torch.optim.AdamW(own.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device, init_scale=256.0)
        steps = [
            autocast_step(device, own, scaler, optimizer, batches[step % 2])
            for step in range(STEPS)
        ]
        losses[device] = torch.stack(steps).tolist()
        assert scaler.get_scale() == 256.0
        assert next(own.parameters()).dtype == torch.float32
    assert losses["tpu"][-1] < losses["tpu"][0]
    torch.testing.assert_close(losses["tpu"], losses["cpu"], rtol=0.03, atol=0.03)


def test_grad_scaler_skips_infinite_steps(mode: str) -> None:
    model = nn.Linear(4, 2).tpu()
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=1024.0, growth_interval=1)
    x = torch.ones(3, 4, device="tpu")
    scaler.scale(model(x * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert torch.equal(model.weight, before)
    optimizer.zero_grad()
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1024.0
    assert not torch.equal(model.weight, before)


def test_gradient_accumulation_and_freezing(mode: str) -> None:
    model, batches, results = mlp(), points(), []
    for device in ("cpu", "tpu"):
        own = copy.deepcopy(model).to(device)
        own[0].requires_grad_(False)
        optimizer = torch.optim.AdamW([p for p in own.parameters() if p.requires_grad], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            for x, y in batches:
                (F.cross_entropy(own(x.to(device)), y.to(device)) / 2).backward()
            optimizer.step()
        assert own[0].weight.grad is None
        results.append({name: value.cpu() for name, value in own.state_dict().items()})
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_optimizer_state_moves(mode: str) -> None:
    """A checkpoint written on the CPU goes on training on the device."""
    model, batches = mlp(), points()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, batches, optimizer)
    moved = copy.deepcopy(model).tpu()
    resumed = torch.optim.AdamW(moved.parameters(), lr=0.01)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.state[moved[0].weight]["exp_avg"].is_tpu
    expected = train(model, batches, optimizer)
    actual = train(moved, batches, resumed)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
