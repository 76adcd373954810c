# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Captured graphs and the trainer that runs each step as one: against eager mode and the CPU."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torch_tpu.tpu import optimizers

DEV = "tpu"


def cost(run: Callable[[], object]) -> dict[str, int]:
    """Count what `run` costs; a program loaded from disk counts as a compilation."""
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    run()
    torch.tpu.synchronize()
    counters = torch.tpu.metrics()
    counters["compilations"] += counters["disk_hits"]
    return counters


def mlp(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


def batches(count: int, rows: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(rows, 8, generator=g), torch.randint(0, 4, (rows,), generator=g))
        for _ in range(count)
    ]


def captured(function: Callable[[], object]) -> torch.tpu.TPUGraph:
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        function()
    return g


# ---- graphs ----


def test_replay_reads_and_writes_what_tensors_hold_then(mode: str) -> None:
    x, w = torch.randn(3, 4).to(DEV), torch.randn(4, 2).to(DEV)
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        y = (x @ w).relu()
        w.mul_(2)
    before = w.cpu()
    assert_close(w.cpu(), before)  # nothing has run
    g.replay()
    assert_close(y.cpu(), (x.cpu() @ before).relu())
    assert_close(w.cpu(), before * 2)
    x.copy_(torch.ones(3, 4))
    g.replay()
    assert_close(y.cpu(), (torch.ones(3, 4) @ (before * 2)).relu())
    assert_close(w.cpu(), before * 4)


def test_replay_is_one_launch() -> None:
    x = torch.zeros(4, 4, device=DEV)
    g = captured(lambda: [x.add_(1).mul_(1.0) for _ in range(500)])
    counters = cost(lambda: [g.replay() for _ in range(10)])
    assert counters["launches"] == 10
    assert counters["compilations"] == 0
    assert_close(x.cpu(), torch.full((4, 4), 5000.0))


def test_writes_through_views_and_uninitialised_tensors() -> None:
    static = torch.empty(4, 4, device=DEV)
    cache = torch.empty(8, 4, device=DEV)
    g = captured(lambda: cache[2:6].copy_(static.t() * 2))
    x = torch.randn(4, 4)
    cache.fill_(7)
    static.copy_(x)
    g.replay()
    expected = torch.full((8, 4), 7.0)
    expected[2:6] = x.t() * 2
    assert_close(cache.cpu(), expected)


def test_inputs_may_come_in_another_layout() -> None:
    x = torch.randn(4, 6).to(DEV)
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        y = x + 1
    new = torch.randn(6, 4)
    x.copy_(new.to(DEV).t())
    g.replay()
    assert_close(y.cpu(), new.t() + 1)
    x.view(-1)[::2] = 0
    g.replay()
    assert_close(y.cpu(), x.cpu() + 1)


def test_shared_contents_are_not_given_away() -> None:
    a = torch.randn(16).to(DEV)
    b = torch.empty_like(a).copy_(a)  # holds the same value as |a|
    first = a.cpu()
    g = captured(lambda: (a.add_(1), b.mul_(2)))
    kept = torch.empty_like(a).copy_(a)
    g.replay()
    assert_close(kept.cpu(), first)
    assert_close(a.cpu(), first + 1)
    assert_close(b.cpu(), first * 2)
    a.zero_()
    g.replay()
    assert_close(a.cpu(), torch.ones(16))
    assert_close(b.cpu(), first * 4)


def test_host_data_of_the_capture_stays() -> None:
    x = torch.ones(3).to(DEV)
    data = torch.tensor([1.0, 2.0, 3.0])
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        t = data.to(DEV)
        t.add_(x)
    g.replay()
    g.replay()
    assert_close(t.cpu(), data + 1)


def test_tensors_born_in_the_capture_are_empty_before_the_first_replay() -> None:
    x = torch.ones(3).to(DEV)
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        y = x * 3
    assert y.cpu().shape == (3,)
    g.replay()
    assert_close(y.cpu(), torch.full((3,), 3.0))


def test_dead_results_are_not_kept() -> None:
    x = torch.ones(3).to(DEV)
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        for _ in range(50):
            y = x + 1
            del y
        z = x + 2
    assert g._graph.sizes() == (1, 1)
    g.replay()
    assert_close(z.cpu(), torch.full((3,), 3.0))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: str(x),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: torch.tpu.synchronize(),
    ],
    ids=["item", "cpu", "print", "bool", "nonzero", "synchronize"],
)
def test_waiting_in_a_capture_is_refused(read: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(3).to(DEV)
    g = torch.tpu.TPUGraph()

    def run() -> None:
        with torch.tpu.graph(g):
            x.add_(1)
            read(x)

    with pytest.raises(RuntimeError, match="while a graph is captured"):
        run()
    assert not torch.tpu.is_current_stream_capturing()
    assert_close(x.cpu(), torch.ones(3))
    with pytest.raises(RuntimeError, match="not been captured"):
        g.replay()
    x.add_(1)
    assert_close(x.cpu(), torch.full((3,), 2.0))


def test_misuse() -> None:
    g, other = torch.tpu.TPUGraph(), torch.tpu.TPUGraph()
    x = torch.ones(2).to(DEV)
    done = captured(lambda: x.add_(1))
    with torch.tpu.graph(g):
        assert torch.tpu.is_current_stream_capturing()
        x.add_(1)
        with pytest.raises(RuntimeError, match="captured on tpu:0 already"):
            other.capture_begin()
        with pytest.raises(RuntimeError, match="while another is being captured"):
            done.replay()
        with pytest.raises(RuntimeError, match="changes its size"):
            x.resize_(5)
    with pytest.raises(RuntimeError, match="not being captured"):
        g.capture_end()
    with pytest.raises(ValueError, match="capture_error_mode"):
        other.capture_begin(capture_error_mode="no")
    with pytest.warns(UserWarning, match="empty"), torch.tpu.graph(other):
        pass
    other.replay()
    g.reset()
    with pytest.raises(RuntimeError, match="not been captured"):
        g.replay()


def test_random_numbers_go_on_as_in_eager_mode() -> None:
    x = torch.ones(64).to(DEV)
    torch.manual_seed(3)
    expected = [F.dropout(x, 0.5).cpu() for _ in range(3)] + [torch.rand(4, device=DEV).cpu()]
    torch.manual_seed(3)
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        y = F.dropout(x, 0.5)
    seen = []
    for _ in range(3):
        g.replay()
        seen.append(y.cpu())
    seen.append(torch.rand(4, device=DEV).cpu())
    assert_close(seen, expected)
    assert not torch.equal(seen[0], seen[1])


def test_own_generators_and_seeding_are_refused() -> None:
    own = torch.Generator(device=DEV)
    with pytest.raises(RuntimeError, match="default generator"):
        captured(lambda: torch.rand(3, device=DEV, generator=own))
    with pytest.raises(RuntimeError, match="seeded during the capture"):
        captured(lambda: (torch.manual_seed(11), torch.rand(3, device=DEV)))


def test_bad_index_is_reported_after_the_replay() -> None:
    x, i = torch.arange(4.0).to(DEV), torch.tensor([1]).to(DEV)
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        y = x.index_select(0, i)
    g.replay()
    assert y.cpu().item() == 1
    i.fill_(9)
    g.replay()
    with pytest.raises(IndexError):
        torch.tpu.synchronize()
    i.fill_(2)
    g.replay()
    assert y.cpu().item() == 2


def test_memory_is_given_back() -> None:
    gc.collect()
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    x = torch.zeros(1000).to(DEV)
    g = torch.tpu.TPUGraph()
    with torch.tpu.graph(g):
        y = x + 1
    g.replay()
    torch.tpu.synchronize()
    del x, y, g
    assert torch.tpu.memory_allocated() == before


def test_accelerator_graph() -> None:
    x = torch.ones(3).to(DEV)
    g = torch.accelerator.Graph()
    g.capture_begin()
    y = x * 2
    g.capture_end()
    x.fill_(4)
    g.replay()
    assert_close(y.cpu(), torch.full((3,), 8.0))


# ---- training steps ----


@pytest.mark.parametrize("options", [{"capturable": True}, {"fused": True}], ids=str)
def test_captured_step_equals_the_cpu(options: dict[str, bool]) -> None:
    model, reference = mlp().to(DEV), mlp()
    lr = torch.tensor(1e-2, device=DEV)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, **options)
    expected = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    x, y = (t.to(DEV) for t in batches(1)[0])

    def step(m: nn.Module, o: torch.optim.Optimizer, a: torch.Tensor, b: torch.Tensor) -> None:
        o.zero_grad(set_to_none=True)
        F.cross_entropy(m(a), b).backward()
        o.step()

    step(model, optimizer, x, y)  # allocates the state
    g = captured(lambda: step(model, optimizer, x, y))
    data = batches(6)
    step(reference, expected, *data[0])
    for n, (a, b) in enumerate(data[1:]):
        lr.fill_(1e-2 / (n + 1))
        expected.param_groups[0]["lr"] = 1e-2 / (n + 1)
        x.copy_(a)
        y.copy_(b)
        g.replay()
        step(reference, expected, a, b)
    for got, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        assert_close(got.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


def test_step_that_would_freeze_its_count_is_refused() -> None:
    model = mlp().to(DEV)
    optimizer = torch.optim.Adam(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="capturable=True"):
        captured(optimizer.step)
    optimizer.step()


# ---- make_graphed_callables ----


def test_graphed_module_trains_as_the_original() -> None:
    model, original = mlp().to(DEV), mlp().to(DEV)
    model = torch.tpu.make_graphed_callables(model, (torch.randn(6, 8).to(DEV),))
    optimizers_of = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, original)]
    for a, b in batches(4):
        for m, o in zip((model, original), optimizers_of, strict=True):
            o.zero_grad()
            F.cross_entropy(m(a.to(DEV)), b.to(DEV)).backward()
            o.step()
    for got, wanted in zip(model.parameters(), original.parameters(), strict=True):
        assert_close(got.detach().cpu(), wanted.detach().cpu())
    x = batches(1)[0][0].to(DEV)
    model.eval()
    assert_close(model(x).cpu(), original.eval()(x).cpu())


def test_graphed_function_with_gradients_of_inputs() -> None:
    def function(a: torch.Tensor, pair: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": (a * pair[0]).sum(), "index": pair[1] + 1}

    def sample() -> tuple[torch.Tensor, list[torch.Tensor]]:
        a, b = (torch.randn(5).to(DEV).requires_grad_() for _ in range(2))
        return a, [b, torch.arange(3).to(DEV)]

    graphed = torch.tpu.make_graphed_callables(function, sample())
    a, pair = sample()
    first = graphed(a, pair)
    first["sum"].backward()
    assert_close(a.grad.cpu(), pair[0].detach().cpu())
    assert_close(pair[0].grad.cpu(), a.detach().cpu())
    assert_close(first["index"].cpu(), torch.arange(1, 4))
    kept = first["sum"].detach()
    value = kept.cpu()
    graphed(*sample())
    assert_close(kept.cpu(), value)  # results are snapshots


def test_graphed_callables_cost_two_launches() -> None:
    model = mlp().to(DEV)
    x = torch.randn(6, 8).to(DEV)
    first, second = torch.tpu.make_graphed_callables(
        (model, torch.nn.functional.mse_loss),
        ((x,), (torch.randn(6, 4).to(DEV).requires_grad_(), torch.randn(6, 4).to(DEV))),
    )
    target = torch.randn(6, 4).to(DEV)

    def run() -> None:
        model.zero_grad()
        second(first(x), target).backward()

    run()
    run()
    counters = cost(run)
    assert counters["compilations"] == 0
    assert counters["launches"] <= 5


# ---- the trainer ----

PAIRS = {
    "sgd": (
        lambda: optimizers.Sgd(lr=0.1, momentum=0.9, weight_decay=1e-2),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    ),
    "sgd_nesterov": (
        lambda: optimizers.Sgd(lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "adamw": (
        lambda: optimizers.AdamW(lr=1e-2),
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=1e-2),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_trainer_equals_torch_on_the_cpu(name: str) -> None:
    make, make_reference = PAIRS[name]
    model, reference = mlp().to(DEV), mlp()
    trainer = optimizers.SingleTraceTrainer(model, make(), loss_fn=F.cross_entropy)
    expected = make_reference(reference.parameters())
    for n, (a, b) in enumerate(batches(6)):
        trainer.optimizer.lr = expected.param_groups[0]["lr"] = 0.01 / (n + 1)
        loss = trainer.step(a, b)
        expected.zero_grad()
        wanted = F.cross_entropy(reference(a), b)
        wanted.backward()
        expected.step()
        assert_close(loss.cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop"])
def test_trainer_with_torch_optimizers_and_a_schedule(kind: str) -> None:
    model, reference = mlp().to(DEV), mlp()
    own = getattr(torch.optim, kind)(model.parameters(), lr=1e-2)
    expected = getattr(torch.optim, kind)(reference.parameters(), lr=1e-2)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 10) for o in (own, expected)]
    trainer = optimizers.SingleTraceTrainer(model, own, loss_fn=F.cross_entropy)
    for a, b in batches(6):
        loss = trainer.step(a, b)
        expected.zero_grad()
        wanted = F.cross_entropy(reference(a), b)
        wanted.backward()
        expected.step()
        for schedule in schedules:
            schedule.step()
        assert_close(loss.cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


def test_trainer_compiles_once_and_launches_once() -> None:
    model = mlp(dropout=0.5).to(DEV)
    trainer = optimizers.SingleTraceTrainer(
        model, optimizers.AdamW(), compute_loss_fn=lambda m, a, k: F.cross_entropy(m(a[0]), a[1])
    )
    step = trainer.make_compiled_train_step(*batches(1)[0])
    data = [(a.to(DEV), b.to(DEV)) for a, b in batches(10)]
    step(*data[0])
    step(*data[1])

    def run() -> None:
        for n, (a, b) in enumerate(data):
            trainer.optimizer.lr = 1e-3 * (n + 1)
            step(a, b)

    counters = cost(run)
    assert counters["compilations"] == 0
    assert counters["launches"] == 10
    small = [(a.to(DEV), b.to(DEV)) for a, b in batches(2, rows=3)]
    step(*small[0])
    assert cost(lambda: step(*small[1]))["compilations"] == 0


def test_dropout_differs_from_step_to_step() -> None:
    model = mlp(dropout=0.5).to(DEV)
    trainer = optimizers.SingleTraceTrainer(model, optimizers.Sgd(lr=0.0), loss_fn=F.cross_entropy)
    a, b = batches(1)[0]
    losses = {trainer.step(a, b).item() for _ in range(4)}
    assert len(losses) > 1


@pytest.mark.parametrize("kind", ["own", "torch"])
def test_trainer_goes_on_from_its_state(kind: str) -> None:
    def make() -> optimizers.SingleTraceTrainer:
        model = mlp().to(DEV)
        own = torch.optim.AdamW(model.parameters()) if kind == "torch" else optimizers.AdamW()
        return optimizers.SingleTraceTrainer(model, own, loss_fn=F.cross_entropy)

    data = batches(6)
    trainer = make()
    for a, b in data[:3]:
        trainer.step(a, b)
    state = copy.deepcopy(trainer.state_dict())
    expected = [trainer.step(a, b).item() for a, b in data[3:]]
    other = make()
    other.step(*data[0])
    other.load_state_dict(state)
    assert_close([other.step(a, b).item() for a, b in data[3:]], expected)


def test_muon_equals_torch() -> None:
    torch.manual_seed(0)
    model, reference = nn.Linear(8, 4, bias=False).to(DEV), nn.Linear(8, 4, bias=False)
    reference.load_state_dict({"weight": model.weight.detach().cpu()})
    trainer = optimizers.SingleTraceTrainer(model, optimizers.Muon(lr=0.1))
    expected = torch.optim.Muon(reference.parameters(), lr=0.1)
    for a, _ in batches(3):
        target = a[:, :4]
        trainer.step(a, target)
        expected.zero_grad()
        F.mse_loss(reference(a), target).backward()
        expected.step()
    assert_close(model.weight.detach().cpu(), reference.weight.detach(), rtol=3e-2, atol=3e-2)


def test_trainer_without_optimizer_leaves_gradients() -> None:
    model, reference = mlp().to(DEV), mlp()
    trainer = optimizers.SingleTraceTrainer(model, loss_fn=F.cross_entropy)
    for a, b in batches(2):
        trainer.step(a, b)
    F.cross_entropy(reference(a), b).backward()
    for got, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        assert_close(got.grad.cpu(), wanted.grad)
