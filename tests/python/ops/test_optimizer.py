# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch.optim on the device: plain, foreach and fused, and gradient scaling."""

from __future__ import annotations

import pytest
import torch
from against_cpu import check

CASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "sgd_maximize": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.5, "dampening": 0.1, "maximize": True},
    ),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adam_amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01}),
}
FOREACH_ONLY = {
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "asgd": (torch.optim.ASGD, {}),
    "rprop": (torch.optim.Rprop, {}),
}


def train(make, options, steps: int = 3):
    def function(xs):
        parameters = [torch.nn.Parameter(x) for x in xs]
        optimizer = make(parameters, **options)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = sum(((p.float() - 0.3).sin() ** 2).sum() for p in parameters)
            loss.backward()
            optimizer.step()
        return [p.detach() for p in parameters]

    return function


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, 6).reshape(2, 3).to(dtype), torch.linspace(0, 1, 4).to(dtype)]


@pytest.mark.parametrize("kind", ["plain", "foreach", "fused"])
@pytest.mark.parametrize("name", CASES)
def test_steps(name: str, kind: str) -> None:
    make, options = CASES[name]
    extra = {"foreach": kind == "foreach"} if kind != "fused" else {"fused": True}
    check(train(make, {**options, **extra}), parameters())


@pytest.mark.parametrize("name", FOREACH_ONLY)
def test_foreach_steps(name: str) -> None:
    make, options = FOREACH_ONLY[name]
    check(train(make, {**options, "foreach": True}), parameters())


@pytest.mark.parametrize("name", ["sgd_momentum", "adamw"])
def test_modes(name: str, mode: str) -> None:
    make, options = CASES[name]
    check(train(make, {**options, "fused": True}), parameters())


def test_half_parameters() -> None:
    check(train(torch.optim.AdamW, {"fused": True, "lr": 0.05}), parameters(torch.bfloat16))
    check(train(torch.optim.SGD, {"foreach": True, "lr": 0.05}), parameters(torch.bfloat16))


def test_tensor_learning_rate() -> None:
    def function(xs, lr):
        return train(torch.optim.AdamW, {"fused": True, "lr": lr})(xs)

    check(function, parameters(), torch.tensor(0.01))


def test_scheduled_learning_rate_needs_no_new_program() -> None:
    x = torch.nn.Parameter(torch.ones(8, device="tpu"))
    optimizer = torch.optim.AdamW([x], lr=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    for _ in range(4):
        (x * x).sum().backward()
        optimizer.step()
        schedule.step()
    assert torch.isfinite(x.detach().cpu()).all()


def test_gradient_scaling() -> None:
    def function(x, factor):
        parameter = torch.nn.Parameter(x)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        scaler = torch.amp.GradScaler(x.device.type, init_scale=4.0, growth_interval=2)
        scales = []
        for step in range(5):
            optimizer.zero_grad()
            loss = (parameter * parameter).sum() * (factor if step == 3 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return parameter.detach(), torch.tensor(scales, device=x.device)

    check(function, torch.ones(3), float("inf"))
    check(function, torch.ones(3), 2.0)


def test_found_inf_skips_the_step() -> None:
    x, g = torch.ones(3, device="tpu"), torch.ones(3, device="tpu")
    for found, expected in ((1.0, 1.0), (0.0, 0.95)):
        torch._fused_sgd_(
            [x], [g], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False, grad_scale=torch.tensor(2.0, device="tpu"),
            found_inf=torch.tensor(found, device="tpu"),
        )  # fmt: skip
        torch.testing.assert_close(x.cpu(), torch.full((3,), expected))
    torch.testing.assert_close(g.cpu(), torch.full((3,), 0.5))
