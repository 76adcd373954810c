# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Operators that belong to no larger family, against the CPU."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from against_cpu import check, check_raises

# ---- connectionist temporal classification ----

LOG_PROBS = torch.linspace(-3, 3, 12 * 3 * 5).sin().mul(2).reshape(12, 3, 5).log_softmax(-1)
TARGETS = torch.tensor([[1, 2, 2, 4], [3, 1, 0, 0], [0, 0, 0, 0]])
INPUT_LENGTHS, TARGET_LENGTHS = [12, 9, 2], [4, 2, 0]


@pytest.mark.parametrize("form", ["list", "cpu", "device"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_ctc_loss(form: str, flat: bool, reduction: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        lengths = [tuple(INPUT_LENGTHS), tuple(TARGET_LENGTHS)]
        if form != "list":
            device = x.device if form == "device" else "cpu"
            lengths = [torch.tensor(n, device=device) for n in lengths]
        targets = TARGETS
        if flat:
            targets = torch.cat([row[:n] for row, n in zip(TARGETS, TARGET_LENGTHS, strict=True)])
        return F.ctc_loss(x, targets.to(x.device), *lengths, reduction=reduction)

    check(run, LOG_PROBS, grad=True)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss_without_a_path(zero_infinity: bool) -> None:
    """Three equal labels need five steps."""

    def run(x: torch.Tensor) -> torch.Tensor:
        targets = torch.tensor([[1, 1, 1], [2, 3, 1]], device=x.device)
        return F.ctc_loss(x, targets, (4, 4), (3, 3), reduction="none", zero_infinity=zero_infinity)

    check(run, LOG_PROBS[:4, :2].log_softmax(-1), grad=True)


def test_ctc_loss_modes(mode: str) -> None:
    check(lambda x, t: F.ctc_loss(x, t, (12, 9, 5), (4, 2, 1), blank=4), LOG_PROBS, TARGETS % 4)


def test_ctc_loss_refuses() -> None:
    check_raises(lambda x, t: F.ctc_loss(x, t, (13, 9, 5), (4, 2, 1)), LOG_PROBS, TARGETS)
    check_raises(lambda x, t: F.ctc_loss(x, t, (12, 9, 5), (4, 2, 1), blank=5), LOG_PROBS, TARGETS)


# ---- reductions of segments ----

DATA = torch.linspace(-2, 2, 24).cos().reshape(8, 3)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 0.5])
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    lengths = torch.tensor([3, 0, 4, 1])
    offsets = torch.tensor([0, 3, 3, 7, 8])
    zeros = DATA.clone()
    zeros[1] = 0
    for x in (DATA, zeros):
        check(
            lambda x, n: torch.segment_reduce(x, reduce, lengths=n, initial=initial),
            x,
            lengths,
            grad=True,
        )
    check(lambda x, n: torch.segment_reduce(x, reduce, offsets=n, initial=initial), DATA, offsets)


def test_segment_reduce_of_rows() -> None:
    lengths = torch.tensor([[1, 2], [3, 0], [2, 1]])
    x = DATA.reshape(3, 8)[:, :3].contiguous()
    check(lambda x, n: torch.segment_reduce(x, "max", lengths=n, axis=1), x, lengths, grad=True)
    check_raises(lambda x, n: torch.segment_reduce(x, "sum", lengths=n + 1, axis=1), x, lengths)


# ---- histograms of several dimensions ----

POINTS = torch.linspace(-7, 9, 60).sin().reshape(20, 3)


@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(density: bool) -> None:
    weight = torch.linspace(0, 1, 20)
    check(lambda x: _flat(torch.histogramdd(x, [2, 3, 4], density=density)), POINTS)
    check(
        lambda x, w: _flat(
            torch.histogramdd(x, [2, 3, 1], range=[-1, 1, 0, 1, -0.5, 0.5], weight=w)
        ),
        POINTS,
        weight,
    )
    edges = [torch.tensor([-1, 0, 0.3, 1]), torch.tensor([-0.5, 0.5]), torch.tensor([-1.0, 0, 1])]
    check(lambda x, *e: _flat(torch.histogramdd(x, list(e), density=density)), POINTS, *edges)


def _flat(result: tuple) -> list[torch.Tensor]:
    return [result[0], *result[1]]


# ---- fractional pooling ----


@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fractional_max_pool(spatial: int, dtype: torch.dtype) -> None:
    sizes = (2, 3, 9, 8, 7)[: 2 + spatial]
    x = torch.linspace(0, 50, math.prod(sizes), dtype=dtype).sin().reshape(sizes)
    samples = torch.linspace(0.05, 0.9, 6 * spatial, dtype=dtype).reshape(2, 3, spatial)
    pool = F.fractional_max_pool2d if spatial == 2 else F.fractional_max_pool3d

    def run(x: torch.Tensor) -> tuple:
        own = samples.to(x.device)
        return pool(x, 2, output_size=4, return_indices=True, _random_samples=own)

    check(run, x)
    check(lambda x: run(x)[0], x, grad=True)


# ---- fake quantisation ----

X = torch.linspace(-3, 3, 24).reshape(4, 6)
SCALES = torch.tensor([0.1, 0.2, 0.3, 0.15])
ZEROS = torch.tensor([1, -2, 0, 3], dtype=torch.int32)


def test_fake_quantize() -> None:
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 15), X, grad=True)
    check(
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s.detach(), z, 0, 15),
        X,
        SCALES[:1],
        ZEROS[3:],
        grad=True,
    )
    for zeros in (ZEROS, ZEROS + 0.25):
        check(
            lambda x, s, z: torch.fake_quantize_per_channel_affine(
                x, s.detach(), z.detach(), 0, -8, 7
            ),
            X,
            SCALES,
            zeros,
            grad=True,
        )
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 15), X.bfloat16())


def test_learnt_quantisation() -> None:
    zeros = torch.tensor([2.3, 1, 0, 5.5])
    check(
        lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, 0, 15, 0.5),
        X,
        SCALES[:1],
        zeros[:1],
        grad=True,
    )
    check(
        lambda x, s, z: torch._fake_quantize_learnable_per_channel_affine(x, s, z, 0, 0, 15, 0.5),
        X,
        SCALES,
        zeros,
        grad=True,
    )


# ---- numbers drawn by rejection ----

COUNT = 20000


def assert_moments(x: torch.Tensor, mean: float, variance: float) -> None:
    x = x.double().cpu()
    assert abs(x.mean().item() - mean) <= 5 * math.sqrt(variance / COUNT) + 1e-6
    assert abs(x.var().item() - variance) <= 0.12 * variance + 1e-6


@pytest.mark.parametrize("alpha", [0.2, 1.0, 20.0])
def test_gamma(alpha: float) -> None:
    torch.manual_seed(1)
    drawn = torch._standard_gamma(torch.full((COUNT,), alpha, device="tpu"))
    assert_moments(drawn, alpha, alpha)


@pytest.mark.parametrize("rate", [0.0, 0.3, 9.9, 50.0])
def test_poisson(rate: float) -> None:
    torch.manual_seed(1)
    assert_moments(torch.poisson(torch.full((COUNT,), rate, device="tpu")), rate, rate)


@pytest.mark.parametrize(("count", "p"), [(10, 0.3), (10, 0.8), (1000, 0.7), (5, 0.0), (5, 1.0)])
def test_binomial(count: int, p: float) -> None:
    torch.manual_seed(1)
    n = torch.full((COUNT,), float(count), device="tpu")
    assert_moments(torch.binomial(n, torch.full_like(n, p)), count * p, count * p * (1 - p))


def test_dirichlet() -> None:
    torch.manual_seed(1)
    alpha = torch.tensor([1.0, 2.0, 3.0], device="tpu").repeat(COUNT, 1)
    drawn = torch._sample_dirichlet(alpha)
    assert_moments(drawn[:, 1], 1 / 3, (2 / 9) / 7)
    torch.testing.assert_close(drawn.sum(-1).cpu(), torch.ones(COUNT))


def test_seed_repeats() -> None:
    rate = torch.full((50,), 12.0, device="tpu")
    torch.manual_seed(5)
    first = torch.poisson(rate)
    assert not torch.equal(first, torch.poisson(rate))
    torch.manual_seed(5)
    assert torch.equal(first, torch.poisson(rate))


def test_gamma_gradient() -> None:
    torch.manual_seed(0)
    alpha = torch.cat([torch.linspace(0.05, 8, 40), torch.linspace(8.1, 60, 20)]).repeat(20, 1)
    # The CPU itself approximates with a relative error of up to 5e-4.
    check(torch._standard_gamma_grad, alpha, torch._standard_gamma(alpha), tolerance=2e-3)


def test_dirichlet_gradient() -> None:
    torch.manual_seed(0)
    x = torch.rand(4000, dtype=torch.float64).clamp(1e-5, 1 - 1e-5)
    alpha, beta = 10 ** (torch.rand(2, 4000, dtype=torch.float64) * 5 - 2.5)
    check(torch._dirichlet_grad, x, alpha, alpha + beta)
    check(
        torch._dirichlet_grad,
        *(t.float() for t in (x, alpha + 0.5, alpha + beta + 1)),
        tolerance=2e-3,
    )
    check(torch._dirichlet_grad, torch.empty(0), torch.empty(0), torch.empty(0))


def test_gradient_of_dirichlet_samples() -> None:
    torch.manual_seed(0)
    alpha = torch.rand(6, 4) * 5 + 0.3
    weights = torch.linspace(0, 1, 24).reshape(6, 4)
    leaf = alpha.to("tpu").requires_grad_()
    drawn = torch.distributions.Dirichlet(leaf).rsample()
    (drawn * weights.to("tpu")).sum().backward()
    x = drawn.detach().cpu()
    part = torch._dirichlet_grad(x, alpha, alpha.sum(-1, keepdim=True).expand_as(alpha))
    expected = part * (weights - (x * weights).sum(-1, keepdim=True))
    torch.testing.assert_close(leaf.grad.cpu(), expected, rtol=2e-3, atol=1e-4)


QUANTIZED = {
    "per_tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "dynamic": lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
    "per_channel": lambda x: torch.quantize_per_channel(
        x, torch.ones(3), torch.zeros(3), 0, torch.quint8
    ),
    "copied": lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).to(x.device),
    "from_integers": lambda x: torch._make_per_tensor_quantized_tensor(x.to(torch.int8), 0.1, 0),
    "empty": lambda x: torch._empty_affine_quantized(
        [3], scale=1.0, zero_point=0, dtype=torch.qint8, device=x.device
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_tensors_are_refused(name: str) -> None:
    previous = torch.tpu.get_fallback()
    torch.tpu.set_fallback("silent")
    try:
        with pytest.raises(NotImplementedError, match=r"torchao\.quantization"):
            QUANTIZED[name](torch.ones(3, 4, device="tpu"))
    finally:
        torch.tpu.set_fallback(previous)


# ---- lists of numbers keep their kind ----


@pytest.mark.parametrize("numbers", [[2, 3, 1], [2.5, 1, 2], [True, 2, 0.5], [2**53 + 1, -1, 3]])
@pytest.mark.parametrize("name", ["add", "mul", "div", "maximum"])
def test_foreach_numbers(name: str, numbers: list) -> None:
    tensors = [torch.arange(4), torch.tensor([3, 5], dtype=torch.int32), torch.tensor([1.5, 2])]
    check(lambda *xs: getattr(torch, "_foreach_" + name)(list(xs), numbers), *tensors)


def test_foreach_refuses() -> None:
    check_raises(lambda x: torch._foreach_pow([x], [-1]), torch.arange(4))
    check_raises(lambda x: torch._foreach_sub([x], [1]), torch.tensor([True]))
    check_raises(lambda x: torch._foreach_addcdiv([x], [x], [x], [1]), torch.arange(1, 4))


# ---- running sums of complex exponentials ----


@pytest.mark.parametrize("dim", [0, 1])
def test_complex_logcumsumexp(dim: int) -> None:
    x = torch.complex(torch.linspace(-2, 2, 12).sin(), torch.linspace(-9, 9, 12)).reshape(3, 4)
    x[0, 0] = -math.inf
    check(lambda x: torch.logcumsumexp(x, dim), x)


# ---- nested tensors ----

ROWS = [torch.linspace(-1, 1, 8 * n).sin().reshape(n, 8) for n in (3, 5, 2)]


def jagged(device: str, requires_grad: bool = False) -> torch.Tensor:
    return torch.nested.nested_tensor(
        ROWS, layout=torch.jagged, device=device, requires_grad=requires_grad
    )


def test_jagged() -> None:
    weight = torch.linspace(-1, 1, 48).reshape(6, 8)
    for run in (
        lambda d: torch.nested.to_padded_tensor(jagged(d), -1.0),
        lambda d: F.linear(jagged(d), weight.to(d)).values(),
        lambda d: jagged(d).softmax(-1).values(),
        lambda d: jagged(d).sum(1),
        lambda d: jagged(d).mean(1),
    ):
        torch.testing.assert_close(run("tpu").cpu(), run("cpu"))


def test_jagged_attention() -> None:
    def run(device: str) -> list[torch.Tensor]:
        x = jagged(device, requires_grad=True)
        heads = x.unflatten(-1, [2, 4]).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
        y.values().pow(2).sum().backward()
        return [y.values().detach().cpu(), x.grad.values().cpu()]

    torch.testing.assert_close(run("tpu"), run("cpu"), rtol=1e-4, atol=1e-5)


def test_padding_of_rows() -> None:
    offsets = torch.tensor([0, 3, 3, 7])
    values = torch.arange(14.0).reshape(7, 2)
    check(
        lambda x, o: torch.ops.aten._jagged_to_padded_dense_forward(x, [o], [4], -1.0),
        values,
        offsets,
    )
    check(
        lambda x, o: torch.ops.aten._padded_dense_to_jagged_forward(x, [o]),
        torch.arange(24.0).reshape(3, 4, 2),
        offsets,
    )
