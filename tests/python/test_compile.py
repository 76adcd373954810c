# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""``torch.compile`` on the device: values as on the CPU, and how many programs and launches."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from counters import counted
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree

DEVICE = torch.device("tpu")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what Dynamo knows."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def to(tree: Any, device: torch.device | str) -> Any:
    """Move the tensors of a tree."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), tree)


def check(fn: Callable[..., Any], *args: Any, launches: int = 1, **options: Any) -> None:
    """Call a compiled function twice and compare results and arguments with the CPU's."""
    compiled = torch.compile(fn, fullgraph=True, **options)
    host = pytree.tree_map_only(torch.Tensor, torch.clone, args)
    device = to(args, DEVICE)
    with torch.no_grad():
        first = compiled(*device)
        got, compilations, launched = counted(lambda: compiled(*device))
        del first  # until here: work whose results nobody wants is not done
        fn(*host)
        want = fn(*host)
    torch.testing.assert_close(to(got, "cpu"), want)
    torch.testing.assert_close(to(device, "cpu"), host)
    assert compilations == 0
    assert launched <= launches


R = torch.randn

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pointwise": (lambda x, y: ((x + y) * y).relu() - x, (R(4, 4), R(4, 4))),
    "in_place": (lambda x, y: x.add_(y).sum(), (R(4, 4), R(4, 4))),
    "in_place_view": (lambda x: (x[1:3].mul_(2), x[0].zero_())[0], (R(4, 4),)),
    "views_of_inputs": (lambda x: (x.t(), x[1:], x + 1, x), (R(4, 4),)),
    "views_of_results": (lambda x: (lambda y: (y, y.t(), y[0]))(x * 2), (R(4, 4),)),
    "constants": (
        lambda x: (x + torch.arange(4, device=x.device), torch.ones(3, device=x.device), None, 5),
        (R(4, 4),),
    ),
    "embedding": (
        lambda w, i: torch.nn.functional.embedding(i, w),
        (R(10, 4), torch.tensor([1, 2, 3])),
    ),
    "convolution": (
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=1).relu(),
        (R(2, 3, 8, 8), R(5, 3, 3, 3)),
    ),
    "complex": (lambda x: torch.fft.fft(x).conj() * 2, (R(4, 8),)),
    "solve": (
        lambda x: torch.linalg.solve(x @ x.T + torch.eye(4, device=x.device), x),
        (R(4, 4),),
    ),
    "number": (lambda x, s: x * s, (R(4, 4), 2.5)),
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        (R(4, 4),),
    ),
    "scan": (
        lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(4, device=x.device), x),
        (R(5, 4),),
    ),
    "map": (lambda x: torch._higher_order_ops.map(lambda r: r.sin(), x), (R(4, 4),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_launch(name: str) -> None:
    fn, args = FUNCTIONS[name]
    check(fn, *args)


def test_while_loop() -> None:
    def fn(x: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1), (start, x))

    check(fn, R(4), launches=12)


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(fn, R(1, 2, 16, 8), R(1, 2, 16, 8), R(1, 2, 16, 8))


# ---- views as arguments ----

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda t: t[2:6, 1:5],
    "transposed": lambda t: t.t(),
    "row": lambda t: t[3],
    "steps": lambda t: t[::2, ::3],
    "permuted": lambda t: t.view(2, 4, 8).permute(2, 0, 1),
    "expanded": lambda t: t[:1].expand(4, 8),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read(name: str) -> None:
    view, base = VIEWS[name], R(8, 8)
    compiled = torch.compile(lambda a: a.contiguous().view(-1) * 2 + 1)
    for offset in (0, 1):  # another offset is no other program
        moved = base.roll(offset)
        got = compiled(view(moved.to(DEVICE)))
        torch.testing.assert_close(got.cpu(), view(moved).contiguous().view(-1) * 2 + 1)


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "expanded"])
def test_views_are_written(name: str) -> None:
    view, base = VIEWS[name], R(8, 8)
    compiled = torch.compile(lambda a: a.mul_(3).sum())
    device, host = base.to(DEVICE), base.clone()
    for _ in range(2):
        compiled(view(device))
        view(host).mul_(3)
    torch.testing.assert_close(device.cpu(), host)


def test_offsets_do_not_compile() -> None:
    x = torch.randn(64, 8, device=DEVICE)
    compiled = torch.compile(lambda row: (row * 2).sum())
    for i in range(40):
        _, compilations, launches = counted(lambda i=i: compiled(x[i]))
        assert launches == 1
        assert i < 2 or compilations == 0


# ---- what cannot be one program ----


def test_results_that_depend_on_values_run_anyhow() -> None:
    compiled = torch.compile(lambda x: x[x > 0] * 2)
    x = R(4, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to(DEVICE)).cpu(), x[x > 0] * 2)


def test_graph_breaks() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1 if y.sum() > 0 else y - 1

    compiled = torch.compile(fn)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x.to(DEVICE)).cpu(), fn(x))


def test_an_error_of_the_operator_is_pytorchs() -> None:
    compiled = torch.compile(lambda w, i: torch.nn.functional.embedding(i, w))
    w = torch.randn(4, 2, device=DEVICE)
    with pytest.raises(IndexError):
        compiled(w, torch.tensor([7], device=DEVICE)).cpu()


# ---- random numbers ----


def test_random_numbers_are_those_of_eager() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    compiled, x = torch.compile(fn), torch.ones(64, device=DEVICE)
    torch.manual_seed(5)
    want = [fn(x).cpu() for _ in range(3)]
    torch.manual_seed(5)
    got = [compiled(x).cpu() for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert not torch.equal(got[0], got[1])


# ---- numbers and sizes that change ----


def test_a_changed_number_does_not_compile() -> None:
    compiled = torch.compile(lambda x, s: x * s + s)
    x = torch.ones(4, device=DEVICE)
    counted(lambda: compiled(x, 0.5))
    for s in (0.1, 0.2, 0.3, 0.4):
        result, compilations, _ = counted(lambda s=s: compiled(x, s))
        torch.testing.assert_close(result.cpu(), torch.full((4,), 2 * s))
        assert compilations == 0


def test_dynamic_sizes_share_programs() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.t(), -1).sum(0) + x.sum()

    compiled, total = torch.compile(fn, dynamic=True), 0
    for n in range(1, 33):
        x = R(n, 8)
        got, compilations, _ = counted(lambda x=x: compiled(x.to(DEVICE)))
        torch.testing.assert_close(got.cpu(), fn(x), rtol=1e-4, atol=1e-4)
        total += compilations
    assert total <= 7


# ---- training ----


@pytest.mark.parametrize("arguments", [{}, {"backend": "tpu", "mode": "reduce-overhead"}])
def test_training_step(arguments: dict[str, Any]) -> None:
    host = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    device = copy.deepcopy(host).to(DEVICE)
    compiled = torch.compile(device, **arguments)

    def step(model: Any, parameters: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        gradients = torch.autograd.grad(loss, list(parameters))
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p -= 0.1 * g
        return loss

    for _ in range(4):
        x = R(8, 16)
        want = step(host, list(host.parameters()), x)
        moved = x.to(DEVICE)
        got, compilations, launches = counted(
            lambda moved=moved: step(compiled, list(device.parameters()), moved)
        )
        torch.testing.assert_close(got.cpu(), want)
    assert (compilations, launches) == (0, 1)  # forward, loss, backward, update
    torch.testing.assert_close(to(device.state_dict(), "cpu"), host.state_dict())


def test_backward_twice_and_views_of_results() -> None:
    compiled = torch.compile(lambda x, w: ((x @ w).relu().t(), x * 2))
    x, w = torch.randn(4, 3, device=DEVICE), torch.randn(3, 5, device=DEVICE, requires_grad=True)
    for _ in range(3):
        a, b = compiled(x, w)
        (a.sum() + b.sum()).backward()
    want = 3 * torch.autograd.grad((x @ w).relu().sum(), w)[0]
    torch.testing.assert_close(w.grad.cpu(), want.cpu())


OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.AdamW, {"capturable": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {"capturable": True, "foreach": False}),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_compiled_optimizer_with_schedule(optimizer: Any, options: dict[str, Any]) -> None:
    host = torch.nn.Linear(8, 8)
    device = copy.deepcopy(host).to(DEVICE)
    plain = {name: value for name, value in options.items() if name != "capturable"}
    on_host = optimizer(host.parameters(), lr=0.1, **plain)
    on_device = optimizer(device.parameters(), lr=0.1, **options)
    step = torch.compile(on_device.step)
    for i in range(7):
        for one in (on_host, on_device) if i >= 3 else ():
            one.param_groups[0]["lr"] *= 0.9
        x = R(4, 8)
        host(x).square().sum().backward()
        device(x.to(DEVICE)).square().sum().backward()
        on_host.step()
        _, compilations, launches = counted(step)
        assert i < 3 or compilations == 0
        assert i < 1 or launches == 1
        on_host.zero_grad()
        on_device.zero_grad()
    torch.testing.assert_close(to(device.state_dict(), "cpu"), host.state_dict())


def test_compiled_autograd() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    x = R(4, 8)
    want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    model.to(DEVICE)
    with torch._dynamo.config.patch(compiled_autograd=True):

        @torch.compile
        def train(x: torch.Tensor) -> None:
            model(x).sum().backward()

        train(x.to(DEVICE))
    torch.testing.assert_close([p.grad.cpu() for p in model.parameters()], list(want))


def test_autocast() -> None:
    model = torch.nn.Linear(8, 4).to(DEVICE)
    x = torch.randn(2, 8, device=DEVICE)
    with torch.autocast("tpu"):
        want = model(x)
        got = torch.compile(model)(x)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got.cpu(), want.cpu())


# ---- the default backend ----


def test_other_devices_keep_their_backend() -> None:
    if shutil.which("g++") is None:
        pytest.skip("PyTorch's compiler for the CPU needs g++")
    from torch._inductor import metrics

    metrics.reset()
    x = R(8)
    torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert metrics.generated_kernel_count > 0


def test_models_without_arguments_are_found() -> None:
    weight = torch.randn(3, device=DEVICE)
    torch.testing.assert_close(torch.compile(lambda: weight * 2)().cpu(), weight.cpu() * 2)
    made = torch.compile(lambda: torch.ones(3, device=DEVICE) * 2)()
    assert made.tolist() == [2, 2, 2]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(Exception, match="not one of default"):
        torch.compile(lambda x: x + 1, backend="tpu", mode="fast")(torch.ones(1, device=DEVICE))
