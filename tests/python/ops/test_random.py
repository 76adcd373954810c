# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Random numbers: limits, moments and reproducibility. Their values differ from the CPU's."""

from __future__ import annotations

import math

import pytest
import torch

_N = 20000


def _empty(dtype: torch.dtype = torch.float32, n: int = _N) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.empty(n, dtype=dtype, device="tpu")


def _moments(x: torch.Tensor, mean: float, std: float) -> None:
    x = x.cpu().double()
    assert abs(x.mean().item() - mean) < 5 * std / math.sqrt(x.numel()) + 1e-3 * abs(mean)
    assert abs(x.std().item() - std) < 0.05 * std


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_uniform(dtype: torch.dtype) -> None:
    x = _empty(dtype).uniform_(-1, 3)
    assert x.min() >= -1
    assert x.max() < 3
    _moments(x, 1, 4 / math.sqrt(12))
    _moments(torch.rand(_N, dtype=dtype, device="tpu"), 0.5, 1 / math.sqrt(12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normal(dtype: torch.dtype) -> None:
    x = _empty(dtype).normal_(2, 3)
    _moments(x, 2, 3)
    assert torch.isfinite(x).all()
    kurtosis = ((x.cpu().double() - 2) / 3).pow(4).mean().item()
    assert abs(kurtosis - 3) < 0.3


def test_normal_overloads() -> None:
    mean, std = _empty().fill_(1), _empty().fill_(2)
    for x in (
        torch.normal(mean, 2.0),
        torch.normal(1.0, std),
        torch.normal(mean, std),
        torch.normal(1.0, 2.0, (_N,), device="tpu"),
        torch.randn(_N, device="tpu") * 2 + 1,
        torch.randn_like(mean) * 2 + 1,
    ):
        _moments(x, 1, 2)
    z = torch.randn(_N, dtype=torch.complex64, device="tpu")
    _moments(z.real, 0, math.sqrt(0.5))
    with pytest.raises(RuntimeError):
        torch.normal(mean, -std).cpu()


def test_integers() -> None:
    x = torch.randint(-3, 5, (_N,), device="tpu")
    assert x.dtype == torch.int64
    assert sorted(x.unique().tolist()) == list(range(-3, 5))
    assert _empty(torch.bool).random_().float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert _empty(torch.uint8).random_().max() == 255
    wide = _empty(torch.int64).random_(0, 2**40)
    assert wide.min() >= 0
    assert 2**39 < wide.max() < 2**40
    any_number = _empty(torch.int64).random_(-(2**63), None)
    assert any_number.min() < 0 < any_number.max()
    assert _empty().random_().max() <= 2**24
    with pytest.raises(RuntimeError):
        _empty().random_(3, 3)


def test_bernoulli() -> None:
    assert _empty().bernoulli_(0.3).mean().item() == pytest.approx(0.3, abs=0.02)
    p = torch.tensor([0.0, 1.0, 0.25], device="tpu").expand(_N, 3)
    means = torch.bernoulli(p).mean(0).cpu()
    assert means[0] == 0
    assert means[1] == 1
    assert means[2].item() == pytest.approx(0.25, abs=0.02)
    flags = torch.empty(_N, 3, dtype=torch.bool, device="tpu").bernoulli_(p)
    assert flags.float().mean(0)[2].item() == pytest.approx(0.25, abs=0.02)
    with pytest.raises(RuntimeError):
        torch.bernoulli(p * 2).cpu()


def test_other_distributions() -> None:
    x = _empty().exponential_(2)
    assert x.min() > 0
    _moments(x, 0.5, 0.5)
    k = _empty(torch.int64).geometric_(0.25)
    assert k.min() == 1
    _moments(k, 4, math.sqrt(12))
    assert _empty().cauchy_(3, 2).median().item() == pytest.approx(3, abs=0.15)
    assert _empty().log_normal_(0.5, 0.25).log().mean().item() == pytest.approx(0.5, abs=0.02)


def test_dropout(mode: str) -> None:
    x = torch.ones(_N, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = (y != 0).float().mean().item()
    assert kept == pytest.approx(0.75, abs=0.02)
    assert torch.equal(y, grad)
    assert y.max().item() == pytest.approx(1 / 0.75)
    assert torch.equal(torch.nn.functional.dropout(x, 0.25, training=False), x)
    assert torch.nn.functional.dropout(x, 1.0).abs().max() == 0


def test_multinomial() -> None:
    torch.manual_seed(0)
    p = torch.tensor([[0.0, 1.0, 3.0, 0.0], [1.0, 0.0, 0.0, 1.0]], device="tpu")
    drawn = torch.multinomial(p, 4000, replacement=True).cpu()
    shares = torch.stack([(drawn == k).float().mean(1) for k in range(4)], 1)
    wanted = (p / p.sum(1, keepdim=True)).cpu()
    torch.testing.assert_close(shares, wanted, atol=0.04, rtol=0)
    assert (shares[wanted == 0] == 0).all()
    for _ in range(5):
        pair = torch.multinomial(p, 2).cpu()
        assert sorted(pair[0].tolist()) == [1, 2]
        assert sorted(pair[1].tolist()) == [0, 3]
    assert torch.multinomial(p[1], 1).shape == (1,)
    assert torch.multinomial(p[1], 1).item() in (0, 3)
    for bad in (p * 0, -p, p / 0):
        with pytest.raises(RuntimeError):
            torch.multinomial(bad, 1).cpu()


def test_randperm() -> None:
    x = torch.randperm(1000, device="tpu")
    assert sorted(x.tolist()) == list(range(1000))
    assert x.tolist() != list(range(1000))
    assert torch.randperm(0, device="tpu").shape == (0,)


def test_seed_and_state(mode: str) -> None:
    torch.manual_seed(5)
    a = torch.rand(10, device="tpu").cpu()
    state = torch.tpu.get_rng_state()
    b = torch.rand(10, device="tpu").cpu()
    torch.manual_seed(5)
    assert torch.equal(torch.rand(10, device="tpu").cpu(), a)
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(10, device="tpu").cpu(), b)
    assert not torch.equal(a, b)
    generator = torch.Generator("tpu").manual_seed(5)
    assert torch.equal(torch.rand(10, device="tpu", generator=generator).cpu(), a)


def test_rrelu() -> None:
    x = torch.randn(_N, device="tpu")
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    slopes = (y / x)[x < 0].cpu()
    assert slopes.min() >= 0.0999
    assert slopes.max() <= 0.3001
    assert torch.equal(y[x >= 0], x[x >= 0])
