# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints go from one number of processes to another, and carry a job over a lost rank."""

from __future__ import annotations

from pathlib import Path

import checkpoint_job
import pytest
import torch
from small_model import STEPS, batches, make_model, make_optimizer, train_on_cpu
from torch import nn
from torchrun import torchrun


def on_the_host(checkpoint: Path, first: int, last: int) -> dict[str, torch.Tensor]:
    """Go on from a checkpoint in this process, on the CPU, without a group."""
    model = make_model()
    optimizer = make_optimizer(model)
    for p in model.parameters():
        nn.init.zeros_(p)
    checkpoint_job.resume(model, optimizer, checkpoint, no_dist=True)
    for x, y in batches()[first:last]:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


def check(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=2e-4, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_four_processes_then_two_then_one_on_the_host(tmp_path):
    torchrun("checkpoint_job.py", "0", "6", str(tmp_path), size=4)
    torchrun("checkpoint_job.py", "6", "12", str(tmp_path), str(tmp_path / "beside6"), size=2)
    expected = train_on_cpu(make_model())
    for name in ("step12", "beside12"):
        check(on_the_host(tmp_path / name, 12, STEPS), expected)
    check(on_the_host(tmp_path / "step6", 6, STEPS), expected)


@pytest.mark.parametrize(("fatal_step", "mode"), [(3, "fused"), (12, "strict")])
def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(fatal_step, mode, tmp_path):
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder, arguments in ((disturbed, [str(fatal_step)]), (undisturbed, [])):
        folder.mkdir()
        options = ("--max-restarts=1",)
        arguments = [str(folder), *arguments]
        torchrun("elastic_job.py", *arguments, size=2, options=options, TORUS_EAGER_MODE=mode)
    again = fatal_step // 5 * 5
    steps = [int(line) for line in (disturbed / "steps.txt").read_text().splitlines()]
    assert steps == [*range(fatal_step), *range(again, STEPS)]
    weights, expected = (torch.load(f / "weights.pt") for f in (disturbed, undisturbed))
    # Fused, a resumed step may be cut into other programs, which round in other places.
    tolerance = 0 if mode == "strict" else 1e-5
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=tolerance, atol=tolerance)
    check(weights, train_on_cpu(make_model()))
