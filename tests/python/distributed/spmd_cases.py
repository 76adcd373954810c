# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Cases of one process with eight virtual devices; ``python spmd_cases.py NAME`` runs one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch_tpu import _C
from torch_tpu.aot import hlo
from torch_tpu.distributed import spmd

CASES: dict[str, Callable[[], None]] = {}
STYLES = {"data": ("data",), "fsdp": ("fsdp",), "tp": ("model",), "2d": ("fsdp", "model")}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def main() -> None:
    """Run the case that the command line names."""
    torch.set_num_threads(1)
    CASES[sys.argv[1]]()


def raises(kind: type[Exception], text: str, action: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        action()


def collectives() -> dict[str, int]:
    """Of the program compiled last."""
    return hlo.Module(_C._last_program_optimized()).collective_counts()


def counts() -> tuple[int, int]:
    metrics = torch.tpu.metrics()
    torch.tpu.reset_metrics()
    return metrics["launches"], metrics["compilations"]


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(
        actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance
    )


def mesh_for(style: str, count: int = 8) -> spmd.Mesh:
    names = STYLES[style]
    shape = (count,) if len(names) == 1 else (count // min(count, 2), min(count, 2))
    return spmd.init_mesh(shape, names)


def placed(tensor: torch.Tensor, mesh: spmd.Mesh) -> torch.Tensor:
    """A batch: cut over every axis but "model"."""
    places = [Replicate() if name == "model" else Shard(0) for name in mesh.axes]
    return spmd.distribute_tensor(tensor, mesh, places)


# ---- tensors ----


@case
def tensors_go_there_and_back() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    x = torch.randn(16, 8)
    for places in (
        [Shard(0), Shard(1)],
        [Shard(1), Shard(0)],
        [Shard(0), Shard(0)],
        [Replicate(), Shard(-1)],
        [Replicate(), Replicate()],
    ):
        for source in (x, x.to("tpu"), x.t().contiguous().t()):
            d = spmd.distribute_tensor(source, mesh, places)
            assert d.device == torch.device("tpu:0")
            assert d.shape == x.shape
            assert torch.equal(d.cpu(), x)
            assert spmd.is_distributed(d)
            assert torch.equal(spmd.full_tensor(d).cpu(), x)
    assert not spmd.is_distributed(x.to("tpu"))
    assert not spmd.is_distributed(spmd.full_tensor(d))
    parameter = nn.Parameter(x.clone())
    laid = spmd.distribute_tensor(parameter, mesh, [Shard(0), Replicate()])
    assert isinstance(laid, nn.Parameter)
    assert laid.requires_grad
    for dtype in (torch.bfloat16, torch.int64, torch.bool):
        y = (x * 10).to(dtype)
        assert torch.equal(spmd.distribute_tensor(y, mesh, [Shard(0), Shard(1)]).cpu(), y)


@case
def layouts_are_those_asked_for() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    layout = spmd.layout_of(spmd.distribute_tensor(torch.zeros(8, 8), mesh, [Shard(1), Shard(0)]))
    assert layout is not None
    assert layout.parts == (4, 2)
    assert layout.holders()[3, 1] == (7,)
    assert layout.holders()[1, 0] == (1,)
    layout = spmd.layout_of(
        spmd.distribute_tensor(torch.zeros(8, 8), mesh, [Replicate(), Shard(0)])
    )
    assert layout is not None
    assert layout.holders()[2, 0] == (2, 6)
    everywhere = spmd.layout_of(spmd.distribute_tensor(torch.zeros(3), mesh))
    assert everywhere is not None
    assert everywhere.is_replicated


@case
def wrong_use_is_named() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    x = torch.zeros(8, 6)
    raises(ValueError, "as many placements", lambda: spmd.distribute_tensor(x, mesh, [Shard(0)]))
    raises(ValueError, "Shard(dim)", lambda: spmd.distribute_tensor(x, mesh, [Shard(5)] * 2))
    raises(ValueError, "TORUS_CPU_DEVICES=16", lambda: spmd.init_mesh((16,)))
    raises(ValueError, "different names", lambda: spmd.init_mesh((2, 4), ("a", "a")))
    raises(ValueError, "different devices", lambda: spmd.init_mesh((2,), devices=(1, 1)))
    raises(ValueError, "a plan is one of", lambda: spmd.parallelize(nn.Linear(2, 2), mesh, "3d"))
    raises(TypeError, "expected a tensor on device", lambda: spmd.layout_of(x))
    other = spmd.init_mesh((2,), devices=(0, 1))
    a = spmd.distribute_tensor(torch.ones(8), mesh, [Shard(0), Replicate()])
    b = spmd.distribute_tensor(torch.ones(8), other, [Shard(0)])
    raises(RuntimeError, "different meshes", lambda: (a + b).cpu())
    assert torch.equal((a + 1).cpu(), torch.full((8,), 2.0))


# ---- eager ----


@case
def eager_operators_agree_with_the_cpu() -> None:
    mesh = spmd.init_mesh((2, 4), ("data", "model"))
    x, w = torch.randn(16, 8), torch.randn(8, 32)
    for places in ([Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(1), Replicate()]):
        a = spmd.distribute_tensor(x, mesh, places)
        b = spmd.distribute_tensor(w, mesh, [Replicate(), Shard(1)])
        close(a @ b, x @ w)
        close((a @ b).softmax(-1).sum(0), (x @ w).softmax(-1).sum(0))
        close(a[3:11, ::2] * 2, x[3:11, ::2] * 2)
        close(torch.cat([a, a.flip(0)]).cumsum(0), torch.cat([x, x.flip(0)]).cumsum(0))
        close(a.sort(0).values, x.sort(0).values)
        close(a + torch.ones(8, device="tpu"), x + 1)
        a[2].mul_(3)
        y = x.clone()
        y[2].mul_(3)
        close(a, y)
        assert a.to("tpu:5").cpu().equal(a.cpu())


@case
def what_is_written_in_place_stays_where_it_is() -> None:
    mesh = spmd.init_mesh((8,), ("data",))
    a = spmd.distribute_tensor(torch.zeros(16, 4), mesh, [Shard(0)])
    before = spmd.layout_of(a)
    a.add_(torch.ones(4, device="tpu"))
    assert spmd.layout_of(a) == before
    a.copy_(torch.full((16, 4), 3.0))
    assert spmd.layout_of(a) == before
    close(a, torch.full((16, 4), 3.0))
    assert spmd.layout_of(torch.zeros_like(a)) == before


# ---- training ----


def make_mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))


def place_mlp(name: str, parameter: torch.Tensor) -> list[object] | None:
    """One column-parallel layer and one row-parallel layer."""
    wanted = {"0.weight": Shard(0), "0.bias": Shard(0), "2.weight": Shard(1)}
    return [wanted[name]] if name in wanted else None


@case
def eager_training_agrees_in_every_mode() -> None:
    data = torch.randn(6, 16, 16)
    mesh = spmd.init_mesh((8,), ("model",))
    for mode in ("debug", "strict", "fused"):
        torch.tpu.set_eager_mode(mode)
        reference, model = make_mlp(), make_mlp()
        spmd.parallelize(model, mesh, place_mlp)
        layouts = [spmd.layout_of(p) for p in model.parameters()]
        runs = [(m, torch.optim.AdamW(m.parameters(), lr=1e-2)) for m in (reference, model)]
        for batch in data[: 6 if mode == "fused" else 2]:
            losses = []
            for m, optimizer in runs:
                x = batch if m is reference else placed(batch, mesh)
                optimizer.zero_grad()
                loss = m(x).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss)
            close(losses[1], losses[0])
            launches = counts()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            close(p, q)
        assert [spmd.layout_of(p) for p in model.parameters()] == layouts
        states = runs[1][1].state
        for p in model.parameters():
            assert spmd.layout_of(states[p]["exp_avg"]) == spmd.layout_of(p)
    assert launches == (1, 0), launches


@case
def a_column_and_a_row_parallel_layer_need_one_all_reduce() -> None:
    mesh = spmd.init_mesh((8,), ("model",))
    model, x = make_mlp(), torch.randn(32, 16)
    expected = model(x)
    spmd.parallelize(model, mesh, place_mlp)
    with torch.no_grad():
        close(model(placed(x, mesh)), expected)
    assert collectives() == {"all-reduce": 1}, collectives()


# ---- Llama ----


def make_llama(cache: bool = False) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=64,
        use_cache=cache,
    )
    return LlamaForCausalLM(config).eval()


def tokens(batch: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers and a causal mask: left out, the model would look at values to make one."""
    ids = torch.randint(0, 128, (batch, 16), generator=torch.Generator().manual_seed(1))
    mask = torch.full((16, 16), -1e9).triu(1).expand(batch, 1, 16, 16).contiguous()
    return ids, mask


def train_cpu(steps: int, batch: int = 8) -> tuple[nn.Module, list[float]]:
    model = make_llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids, mask = tokens(batch)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def train_captured(
    model: nn.Module, mesh: spmd.Mesh, steps: int, batch: int = 8
) -> Iterator[float]:
    """The first step eagerly, the others as one graph."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids, mask = (placed(t, mesh) for t in tokens(batch))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield step().item()
    graph = torch.tpu.TPUGraph()
    with torch.tpu.graph(graph):
        loss = step()
        optimizer.zero_grad()
    for _ in range(steps - 1):
        counts()
        graph.replay()
        yield loss.item()
        assert counts() == (1, 0)


def check_training(style: str) -> None:
    reference, expected = train_cpu(4)
    mesh = mesh_for(style)
    model = spmd.parallelize(make_llama(), mesh, style)
    layouts = [spmd.layout_of(p) for p in model.parameters()]
    losses = list(train_captured(model, mesh, 4))
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        close(p, q, 2e-5)
    assert [spmd.layout_of(p) for p in model.parameters()] == layouts


@case
def llama_trains_with_data_parallelism() -> None:
    check_training("data")
    # What is gathered are the labels' places; gradients are summed, and nothing else moves.
    moved = {"all-gather": 0, "all-reduce": 0}
    for collective in hlo.Module(_C._last_program_optimized()).collectives:
        moved[collective.kind] += collective.bytes
    assert moved["all-gather"] <= 4096 < moved["all-reduce"], moved


@case
def llama_trains_with_fully_sharded_data_parallelism() -> None:
    check_training("fsdp")
    assert collectives()["all-gather"] > 0, collectives()


@case
def llama_trains_with_tensor_parallelism() -> None:
    check_training("tp")
    assert collectives()["all-reduce"] > 0, collectives()


@case
def llama_trains_on_two_axes() -> None:
    check_training("2d")


@case
def llama_decodes() -> None:
    model = make_llama(cache=True)
    ids, _ = tokens()
    wanted = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **wanted)
    mesh = mesh_for("2d")
    spmd.parallelize(model, mesh, "2d")
    given = placed(ids, mesh)
    mask = torch.ones_like(ids).to("tpu")
    assert torch.equal(model.generate(given, attention_mask=mask, **wanted).cpu(), expected)


@case
def more_devices_compute_the_same() -> None:
    """Strong scaling: one batch on more and more devices. Weak: a batch that grows with them."""
    _, strong = train_cpu(3)
    for count in (1, 2, 4, 8):
        for batch in {8, 2 * count}:
            expected = strong if batch == 8 else train_cpu(3, batch)[1]
            mesh = mesh_for("fsdp", count)
            model = spmd.parallelize(make_llama(), mesh, "fsdp")
            losses = list(train_captured(model, mesh, 3, batch))
            torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    main()
