# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Small compiled graphs: they share the launches of eager code, and its results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from counters import counted
from torch import nn
from torch.nn import functional

DEVICE = torch.device("tpu")
MODES = list(torch.tpu.EagerMode)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what Dynamo knows, and go back to the mode that was set."""
    mode = torch.tpu.eager_mode
    torch._dynamo.reset()
    yield
    torch.tpu.set_eager_mode(mode)
    torch._dynamo.reset()


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model: nn.Module, optimizer: str, steps: int, *, compiled: bool) -> list[torch.Tensor]:
    """Return the losses of some steps."""
    device = next(model.parameters()).device
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05)
    forward = torch.compile(model) if compiled else model
    torch.manual_seed(1)
    x, y = torch.randn(8, 16).to(device), torch.randint(0, 4, (8,)).to(device)
    losses = []
    for _ in range(steps):
        update.zero_grad()
        loss = functional.cross_entropy(forward(x), y)
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return losses


# ---- launches ----


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_compiled_step_launches_no_more_than_an_eager_one(optimizer: str) -> None:
    launches = {}
    for compiled in (False, True):
        model = make_model().to(DEVICE)
        train(model, optimizer, 20, compiled=compiled)
        _, _, launches[compiled] = counted(
            lambda model=model, compiled=compiled: train(model, optimizer, 20, compiled=compiled)
        )
    assert launches[True] <= launches[False]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_training_is_that_of_the_cpu(optimizer: str) -> None:
    on_host = train(make_model(), optimizer, 12, compiled=False)
    on_device = train(make_model().to(DEVICE), optimizer, 12, compiled=True)
    for got, want in zip(on_device, on_host, strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


def test_calls_in_a_row_share_a_launch() -> None:
    compiled = torch.compile(lambda x, w: torch.relu(x @ w + x) * 0.5)
    x, w = torch.randn(8, 8), torch.randn(8, 8) * 0.1

    def run(x: torch.Tensor, w: torch.Tensor, fn: Callable[..., torch.Tensor]) -> torch.Tensor:
        for _ in range(10):
            x = fn(x, w)
        return x

    on_device = (x.to(DEVICE), w.to(DEVICE))
    first, _, _ = counted(lambda: run(*on_device, compiled))
    second, compilations, launches = counted(lambda: run(*on_device, compiled))
    assert (compilations, launches) == (0, 1)
    want = run(x, w, lambda x, w: torch.relu(x @ w + x) * 0.5)
    torch.testing.assert_close(first.cpu(), want)
    torch.testing.assert_close(second.cpu(), want)


def test_a_result_that_nobody_keeps_is_not_computed() -> None:
    compiled = torch.compile(lambda x: x * 2 + 1)
    x = torch.ones(4, device=DEVICE)
    compiled(x)
    _, _, launches = counted(lambda: compiled(x) is None)
    assert launches == 0


@pytest.mark.parametrize("mode", MODES)
def test_modes_agree(mode: Any) -> None:
    torch.tpu.set_eager_mode(mode)
    compiled = torch.compile(lambda x: (x.sin() + 1).cumsum(0))
    x = torch.randn(6, 5)
    first, _, _ = counted(lambda: compiled(x.to(DEVICE)))
    on_device = x.to(DEVICE)
    second, compilations, launches = counted(lambda: compiled(on_device))
    assert (compilations, launches) == (0, 1)
    for got in (first, second):
        torch.testing.assert_close(got.cpu(), (x.sin() + 1).cumsum(0))


def test_a_graph_recorded_in_one_mode_runs_in_another() -> None:
    compiled = torch.compile(lambda x: x.exp().sum(0))
    x = torch.randn(4, 4)
    on_device, want = x.to(DEVICE), x.exp().sum(0)
    for mode in (*MODES, *reversed(MODES)):
        torch.tpu.set_eager_mode(mode)
        torch.testing.assert_close(compiled(on_device).cpu(), want)


def test_large_graphs_keep_their_own_program() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for i in range(400):
            x = x * 0.5 + x.roll(i % 7)
            x = x / x.abs().max()
        return x

    compiled = torch.compile(fn)
    x = torch.randn(8)
    on_device = x.to(DEVICE)
    compiled(on_device)

    def after_an_operator() -> torch.Tensor:
        return compiled(on_device + 0)

    counted(after_an_operator)
    got, compilations, launches = counted(after_an_operator)
    assert (compilations, launches) == (0, 2)
    torch.testing.assert_close(got.cpu(), fn(x), rtol=1e-3, atol=1e-4)


# ---- what a graph does besides computing ----


def test_writes_are_seen_by_eager_code_around() -> None:
    compiled = torch.compile(lambda x, y: x.mul_(2).add_(y))
    x, y = torch.ones(4), torch.arange(4.0)
    on_device = x.to(DEVICE)
    for _ in range(3):
        on_device.add_(1)
        compiled(on_device, y.to(DEVICE))
        x.add_(1).mul_(2).add_(y)
        on_device.sub_(0.5)
        x.sub_(0.5)
    torch.testing.assert_close(on_device.cpu(), x)


def test_random_numbers_are_those_of_eager_code() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5) + torch.rand_like(x)

    compiled, x = torch.compile(fn), torch.ones(32, device=DEVICE)
    compiled(x)
    results = []
    for each in (fn, compiled):
        torch.manual_seed(3)
        results.append([each(x).cpu(), torch.rand(4, device=DEVICE).cpu(), each(x).cpu()])
    for eager, joined in zip(*results, strict=True):
        torch.testing.assert_close(joined, eager, rtol=0, atol=0)
    assert not torch.equal(results[1][0], results[1][2])


def test_an_index_out_of_range_is_reported() -> None:
    compiled = torch.compile(lambda w, i: functional.embedding(i, w) * 2)
    w = torch.randn(10, 4, device=DEVICE)
    compiled(w, torch.tensor([1, 2], device=DEVICE))
    compiled(w, torch.tensor([1, 22], device=DEVICE))
    with pytest.raises(IndexError, match="22"):
        torch.tpu.synchronize()
    good = compiled(w, torch.tensor([3, 9], device=DEVICE))
    torch.testing.assert_close(good.cpu(), w.cpu()[[3, 9]] * 2)


def test_a_loop_inside() -> None:
    compiled = torch.compile(lambda x: torch.linalg.qr(x)[1].abs() + 1)
    x = torch.randn(5, 5)
    for _ in range(2):
        torch.testing.assert_close(
            compiled(x.to(DEVICE)).cpu(), torch.linalg.qr(x)[1].abs() + 1, rtol=1e-4, atol=1e-4
        )


def test_inside_of_a_captured_graph() -> None:
    compiled = torch.compile(lambda x: functional.dropout(x, 0.5) * 3 + x)
    x = torch.ones(64, device=DEVICE)
    y = torch.zeros(64, device=DEVICE)
    compiled(x)
    graph = torch.tpu.TPUGraph()
    with torch.tpu.graph(graph):
        y.copy_(compiled(x) + y * 0)
    seen = []
    for factor in (1.0, 2.0, 2.0):
        x.fill_(factor)
        graph.replay()
        seen.append(y.cpu())
        assert set(seen[-1].tolist()) <= {factor, 7 * factor}
    assert not torch.equal(seen[1], seen[2])


def test_arguments_that_share_or_change_their_content() -> None:
    compiled = torch.compile(lambda a, b: (a * 2 + b).t())
    base = torch.randn(4, 4)
    on_device = base.to(DEVICE)
    same = on_device.clone()
    for a, b in ((on_device, same), (on_device, on_device), (on_device.view(-1).view(4, 4), same)):
        torch.testing.assert_close(compiled(a, b).cpu(), (base * 3).t())
    as_ints = on_device.view(torch.int32)
    as_ints.zero_()
    torch.testing.assert_close(compiled(on_device, same).cpu(), base.t())


# ---- autograd ----


def make_function(fn: Callable[..., Any], *args: torch.Tensor) -> Callable[..., Any]:
    """Compile a function and go through both its graphs once."""
    compiled = torch.compile(fn, fullgraph=True)
    results = compiled(*args)
    first = results[0] if isinstance(results, tuple) else results
    first.sum().backward()
    for arg in args:
        arg.grad = None
    return compiled


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, requires_grad=True)


def test_gradients_of_several_results() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        return y.relu(), (y > 0).sum(), y.t() * 2, y.argmax(1)

    x, w = leaf(4, 3), leaf(3, 5)
    compiled = make_function(fn, x, w)
    uses = (
        lambda r: r[0].sum(),
        lambda r: r[2].square().sum(),
        lambda r: (r[0].t() + r[2]).sum(),
    )
    for use in uses:
        results = compiled(x, w)
        assert [r.requires_grad for r in results] == [True, False, True, False]
        got = torch.autograd.grad(use(results), (x, w))
        want = torch.autograd.grad(use(fn(x, w)), (x, w))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.cpu(), b.cpu())


def test_gradients_that_lie_otherwise() -> None:
    x, w = leaf(4, 3), leaf(3, 5)
    compiled = make_function(lambda x, w: (x @ w).tanh(), x, w)
    seed = torch.randn(5, 4, device=DEVICE).t()
    (got,) = torch.autograd.grad(compiled(x, w), w, seed)
    (want,) = torch.autograd.grad((x @ w).tanh(), w, seed)
    torch.testing.assert_close(got.cpu(), want.cpu())


def test_one_pass_after_another_through_the_same_graph() -> None:
    x, w = leaf(4, 3), leaf(3, 5)
    compiled = make_function(lambda x, w: (x @ w).sigmoid(), x, w)
    result = compiled(x, w).sum()
    result.backward(retain_graph=True)
    once = w.grad.cpu()
    result.backward()
    torch.testing.assert_close(w.grad.cpu(), 2 * once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


def test_second_derivatives_are_refused() -> None:
    x = leaf(4)
    compiled = make_function(lambda x: x.sin() * x, x)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    assert gradient.requires_grad
    torch.testing.assert_close(gradient.cpu(), (x.cos() * x + x.sin()).detach().cpu())
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_a_changed_argument_is_noticed() -> None:
    x, w = leaf(4, 3), leaf(3, 5)
    compiled = make_function(lambda x, w: x @ w, x, w)
    result = compiled(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_hooks_see_what_is_saved() -> None:
    x, w = leaf(4, 3), leaf(3, 5)
    compiled = make_function(lambda x, w: (x @ w).relu(), x, w)
    packed: list[torch.Size] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t.shape)
        return t.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(DEVICE)):
        result = compiled(x, w)
    (got,) = torch.autograd.grad(result.sum(), w)
    (want,) = torch.autograd.grad((x @ w).relu().sum(), w)
    assert packed
    torch.testing.assert_close(got.cpu(), want.cpu())


def test_checkpoints_and_hooks_on_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    x, w = leaf(4, 3), leaf(3, 5)
    compiled = make_function(lambda x, w: (x @ w).relu(), x, w)
    seen: list[torch.Tensor] = []
    w.register_hook(seen.append)
    checkpoint(compiled, x, w, use_reentrant=False).sum().backward()
    (want,) = torch.autograd.grad((x @ w).relu().sum(), w)
    torch.testing.assert_close(w.grad.cpu(), want.cpu())
    assert seen


def test_only_some_arguments_have_gradients() -> None:
    x, w = torch.randn(4, 3, device=DEVICE), leaf(3, 5)
    compiled = torch.compile(lambda x, w: (x @ w).exp())
    for _ in range(3):
        w.grad = None
        compiled(x, w).sum().backward()
    (want,) = torch.autograd.grad((x @ w).exp().sum(), w)
    torch.testing.assert_close(w.grad.cpu(), want.cpu())
    assert x.grad is None


def test_models_with_buffers_that_are_written() -> None:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())
    device = copy.deepcopy(host).to(DEVICE)
    compiled = torch.compile(device)
    for _ in range(4):
        x = torch.randn(8, 6)
        for model, inputs in ((host, x), (compiled, x.to(DEVICE))):
            model(inputs).square().sum().backward()
    for got, want in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-4, atol=1e-4)
    for got, want in zip(device.buffers(), host.buffers(), strict=True):
        torch.testing.assert_close(got.cpu(), want)


class _TwoResults(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.linear(x)
        return h.relu(), h.sigmoid()


def test_compiled_autograd_that_begins_after_the_forward_pass() -> None:
    from torch._dynamo import compiled_autograd

    model = _TwoResults().to("tpu")
    compiled = torch.compile(model)
    for batch in (3, 3, 5):
        x = torch.randn(batch, 8, device="tpu")
        compiled(x)[0].sum().backward()  # both halves are there from here on
        model.zero_grad()
        with compiled_autograd._enable(torch.compile(backend="tpu")):
            compiled(x)[0].sum().backward()  # nothing is known of the second result's gradient
        found = model.linear.weight.grad.cpu()
        model.zero_grad()
        model(x)[0].sum().backward()
        torch.testing.assert_close(found, model.linear.weight.grad.cpu())
        model.zero_grad()
