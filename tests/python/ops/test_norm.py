# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Batch, instance, layer, group, root-mean-square and weight norms."""

from __future__ import annotations

import pytest
import torch
from against_cpu import check, check_raises
from torch.nn import functional


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def channels(count: int) -> list[torch.Tensor]:
    """Weight, bias, running mean and running variance."""
    return [
        normal(count, seed=1),
        normal(count, seed=2),
        normal(count, seed=3),
        normal(count, seed=4).abs() + 0.5,
    ]


def batch_norm(x, weight, bias, mean, variance, training: bool):
    mean, variance = mean.detach().clone(), variance.detach().clone()
    y = functional.batch_norm(x, mean, variance, weight, bias, training, 0.3, 1e-4)
    return y, mean, variance


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2)])
def test_batch_norm(shape: tuple[int, ...], training: bool) -> None:
    check(batch_norm, normal(*shape), *channels(3), training, grad=True)


def test_batch_norm_modes(mode: str) -> None:
    check(batch_norm, normal(2, 3, 4, 5), *channels(3), True, grad=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_batch_norm_types(dtype: torch.dtype) -> None:
    check(batch_norm, normal(4, 3, 5).to(dtype), *(t.to(dtype) for t in channels(3)), True)
    if dtype == torch.bfloat16:
        check(batch_norm, normal(4, 3, 5).to(dtype), *channels(3), True)


def test_batch_norm_without_parameters() -> None:
    check(lambda x: functional.batch_norm(x, None, None, training=True), normal(4, 3, 2), grad=True)
    check(lambda x: functional.instance_norm(x), normal(2, 3, 5), grad=True)


def test_batch_norm_module_keeps_statistics() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        module = torch.nn.BatchNorm2d(3).to(x.device)
        module(x)
        module(x * 2)
        trained = module.running_mean, module.running_var, module.num_batches_tracked
        return *trained, module.eval()(x)

    check(function, normal(2, 3, 4, 4))


def test_batch_norm_keeps_channels_last() -> None:
    x = normal(2, 3, 4, 5).to(memory_format=torch.channels_last).to("tpu")
    y = functional.batch_norm(x, None, None, training=True)
    assert y.is_contiguous(memory_format=torch.channels_last)
    z = functional.group_norm(x, 3)
    assert z.is_contiguous(memory_format=torch.channels_last)


def test_newer_batch_norm_operators() -> None:
    x, (weight, bias, mean, variance) = normal(4, 3, 5), channels(3)

    def legit(x, weight, bias, mean, variance):
        mean, variance = mean.clone(), variance.clone()
        results = torch._native_batch_norm_legit(x, weight, bias, mean, variance, True, 0.1, 1e-5)
        return *results, mean, variance

    def with_update(x, weight, bias, mean, variance):
        mean, variance = mean.clone(), variance.clone()
        operator = torch.ops.aten._batch_norm_with_update
        return *operator(x, weight, bias, mean, variance, 0.1, 1e-5)[:3], mean, variance

    def update_stats(x, weight, bias, mean, variance):
        mean, variance = mean.clone(), variance.clone()
        return *torch.batch_norm_update_stats(x, mean, variance, 0.1), mean, variance

    for function in (legit, with_update, update_stats):
        check(function, x, weight, bias, mean, variance)
    check(
        lambda x: torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
        x,
    )


def test_sync_batch_norm_pieces() -> None:
    """Two halves of a batch, combined, behave as the whole batch."""
    x, grad = normal(8, 3, 5).to("tpu"), normal(8, 3, 5, seed=5).to("tpu")
    halves, grads = x.chunk(2), grad.chunk(2)
    weight, bias = (t.to("tpu") for t in channels(3)[:2])
    stats = [torch.batch_norm_stats(h, 1e-5) for h in halves]
    counts = torch.full((2,), 20.0, device="tpu")
    running = [torch.zeros(3, device="tpu"), torch.ones(3, device="tpu")]
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        x,
        torch.stack([s[0] for s in stats]),
        torch.stack([s[1] for s in stats]),
        *running,
        0.1,
        1e-5,
        counts,
    )
    expected = [torch.zeros(3), torch.ones(3)]
    whole = x.cpu().requires_grad_()
    parameters = [weight.cpu().requires_grad_(), bias.cpu().requires_grad_()]
    y = functional.batch_norm(whole, *expected, *parameters, True, 0.1, 1e-5)
    wanted = torch.autograd.grad(y, [whole, *parameters], grad.cpu())
    out = torch.cat([torch.batch_norm_elemt(h, weight, bias, mean, invstd, 1e-5) for h in halves])
    reduced = [
        torch.batch_norm_backward_reduce(g, h, mean, invstd, weight, True, True, True)
        for g, h in zip(grads, halves, strict=True)
    ]
    sums = [sum(r[k] for r in reduced) for k in range(4)]
    inputs = torch.cat(
        [
            torch.batch_norm_backward_elemt(g, h, mean, invstd, weight, sums[0], sums[1], counts)
            for g, h in zip(grads, halves, strict=True)
        ]
    )
    pairs = zip((out, *running, inputs, sums[2], sums[3]), (y, *expected, *wanted), strict=True)
    for actual, reference in pairs:
        torch.testing.assert_close(actual.cpu(), reference.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (4, 5)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    def function(x, weight, bias):
        return functional.layer_norm(x, shape, weight, bias, 1e-3)

    check(function, normal(3, 4, 5), normal(*shape, seed=1), normal(*shape, seed=2), grad=True)
    check(lambda x: functional.layer_norm(x, shape), normal(3, 4, 5), grad=True)


def test_layer_norm_modes(mode: str) -> None:
    check(lambda x, w: functional.layer_norm(x, (5,), w), normal(3, 5), normal(5), grad=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_layer_norm_types(dtype: torch.dtype) -> None:
    x, weight = normal(3, 5).to(dtype), normal(5, seed=1).to(dtype)
    check(lambda x, w: functional.layer_norm(x, (5,), w), x, weight, grad=True)
    check(lambda x, w: functional.rms_norm(x, (5,), w), x, weight, grad=True)


def test_layer_norm_edges() -> None:
    check(lambda x: functional.layer_norm(x, (3,)), torch.zeros(0, 3))
    check_raises(lambda x: functional.layer_norm(x, (4,)), torch.zeros(2, 3))
    check_raises(lambda x, w: functional.layer_norm(x, (3,), w), torch.zeros(2, 3), torch.ones(2))


@pytest.mark.parametrize("eps", [None, 1e-2])
def test_rms_norm(eps: float | None) -> None:
    x, weight = normal(3, 4, 5), normal(4, 5, seed=1)
    check(lambda x, w: functional.rms_norm(x, (4, 5), w, eps), x, weight, grad=True)
    check(lambda x: functional.rms_norm(x, (5,), eps=eps), x, grad=True)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4)])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    def function(x, weight, bias):
        return functional.group_norm(x, groups, weight, bias, 1e-4)

    check(function, normal(*shape), normal(6, seed=1), normal(6, seed=2), grad=True)


def test_group_norm_without_parameters() -> None:
    check(lambda x: functional.group_norm(x, 2), normal(2, 4, 3), grad=True)
    check_raises(lambda x: functional.group_norm(x, 3), normal(2, 4, 3))


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim: int) -> None:
    v = normal(3, 4, 5)
    sizes = [v.shape[d] if d == dim else 1 for d in range(3)]
    check(lambda v, g: torch._weight_norm(v, g, dim), v, normal(*sizes, seed=1), grad=True)


@pytest.mark.parametrize("p", [1, 2, 3, float("inf")])
def test_renorm(p: float) -> None:
    check(lambda x: torch.renorm(x, p, 1, 1.5), normal(3, 4, 2), grad=True)
    check(lambda x: x.renorm_(p, 0, 1.5), normal(3, 4))


def test_double_backward() -> None:
    def function(x, weight):
        y = functional.layer_norm(x, (5,), weight).pow(3).sum()
        (grad,) = torch.autograd.grad(y, x, create_graph=True)
        return grad.pow(2).sum()

    check(function, normal(3, 5), normal(5, seed=1), grad=True, tolerance=1e-3)


def batch_statistics(x, weight, mean, variance):
    return torch.native_batch_norm(x, weight, weight, mean, variance, True, 0.1, 1e-5)[1:]


@pytest.mark.parametrize("weight_dtype", [None, torch.bfloat16, torch.float32])
def test_type_of_saved_statistics(weight_dtype: torch.dtype | None) -> None:
    x, weight = normal(4, 3).bfloat16(), None
    if weight_dtype is not None:
        weight = normal(3).to(weight_dtype)
    check(lambda x, w: torch.native_layer_norm(x, [3], w, w, 1e-5)[1:], x, weight)
    check(batch_statistics, x, weight, weight, None if weight is None else weight.abs())
    check(lambda x: torch.batch_norm_update_stats(x, None, None, 0.1), x)
