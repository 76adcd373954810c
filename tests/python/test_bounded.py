# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sizes that change from call to call: how many programs they cost, and that values stay right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

SIZES = range(1, 51)
MOST_PROGRAMS = 8

Case = Callable[[int, str], torch.Tensor]


def programs(counters: dict[str, int]) -> int:
    """Count programs made; one loaded from disk counts as a compilation."""
    return counters["compilations"] + counters["disk_hits"]


def rows(n: int, device: str, width: int = 12) -> torch.Tensor:
    """Return float32 numbers (`n`, `width`), the same on each device, copied from the host."""
    return torch.randn(n, width, generator=torch.Generator().manual_seed(n)).to(device)


def table(count: int, device: str, width: int = 12) -> torch.Tensor:
    """Return float32 numbers that do not depend on any size that changes."""
    return torch.linspace(-2, 2, count * width).reshape(count, width).to(device)


def fill_prefix(n: int, device: str) -> torch.Tensor:
    """Write `n` rows over the first ones of a longer array."""
    x = torch.full((64, 12), 7.0, device=device)
    x[:n] = rows(n, device)
    return x


def read_back(n: int, device: str) -> torch.Tensor:
    """Wait for one number per call."""
    return torch.tensor(rows(n, device).sum().item())


CASES: dict[str, Case] = {
    "slice": lambda n, d: table(64, d)[:n].sum(),
    "ones": lambda n, d: torch.ones(n, device=d) + 1,
    "from_host": lambda n, d: rows(n, d) * 2 + 1,
    "two_axes": lambda n, d: torch.ones(n, n + 1, device=d).tril().sum(1),
    "mean": lambda n, d: rows(n, d).mean(0),
    "mean_of_all": lambda n, d: rows(n, d).mean(),
    "std": lambda n, d: rows(n + 1, d).std(0),
    "softmax": lambda n, d: rows(n, d).softmax(0),
    "logsumexp": lambda n, d: rows(n, d).logsumexp(0),
    "layer_norm": lambda n, d: F.layer_norm(rows(n, d).t(), (n,)),
    "matmul_free": lambda n, d: rows(n, d) @ table(12, d, 5),
    "matmul_contracted": lambda n, d: rows(n, d).t() @ rows(n, d),
    "linear_in_batches": lambda n, d: F.linear(rows(n, d).expand(2, n, 12), table(5, d)),
    "bmm": lambda n, d: torch.bmm(rows(n, d).unsqueeze(2), rows(n, d).unsqueeze(1)),
    "conv_batch": lambda n, d: F.conv1d(rows(n, d).unsqueeze(1), table(2, d, 3).unsqueeze(1)),
    "argmax": lambda n, d: rows(n, d).argmax(0),
    "max": lambda n, d: rows(n, d).max(0).values,
    "min": lambda n, d: rows(n, d).min(),
    "prod": lambda n, d: rows(n, d).prod(0),
    "norm": lambda n, d: rows(n, d).norm(),
    "any": lambda n, d: (rows(n, d) > 1).any(0),
    "all": lambda n, d: (rows(n, d) > -9).all(),
    "masked_fill": lambda n, d: rows(n, d).masked_fill(rows(n, d) > 0, 0).sum(0),
    "where": lambda n, d: torch.where(rows(n, d) > 0, rows(n, d), 1.0),
    "cumsum": lambda n, d: torch.ones(n, device=d).cumsum(0),
    "sort": lambda n, d: rows(n, d).sort(0, descending=True).values,
    "argsort": lambda n, d: rows(n, d).argsort(0),
    "topk_of_rows": lambda n, d: rows(n, d).topk(3).values,
    "flip": lambda n, d: rows(n, d).flip(0),
    "last": lambda n, d: (rows(n, d) + 1)[-1],
    "drop_first": lambda n, d: rows(n + 1, d)[1:] + 1,
    "every_second": lambda n, d: rows(n + 2, d)[::2] + 1,
    "pad": lambda n, d: F.pad(rows(n, d), (0, 0, 1, 2), value=3.0),
    "cat": lambda n, d: torch.cat([rows(n, d), table(1, d)]),
    "stack": lambda n, d: torch.stack([rows(n, d), rows(n, d)]).sum(0),
    "flatten": lambda n, d: rows(n, d).reshape(-1) * 2,
    "regroup": lambda n, d: (rows(n, d) + 1).reshape(n * 3, 4).sum(1),
    "transpose_and_flatten": lambda n, d: (rows(n, d) + 1).t().reshape(-1) + 1,
    "embedding": lambda n, d: F.embedding(torch.arange(n, device=d) % 64, table(64, d)),
    "index": lambda n, d: table(64, d)[torch.arange(n, device=d)],
    "index_add": lambda n, d: table(64, d).index_add(0, torch.arange(n, device=d), rows(n, d)),
    "fill_prefix": fill_prefix,
    "cross_entropy": lambda n, d: F.cross_entropy(rows(n, d), torch.arange(n, device=d) % 12),
    "read_back": read_back,
}


@pytest.mark.parametrize("name", CASES)
def test_all_sizes_cost_few_programs(name: str) -> None:
    run = CASES[name]
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    results = [run(n, "tpu").cpu() for n in SIZES]
    counters = torch.tpu.metrics()
    for n, result in zip(SIZES, results, strict=True):
        torch.testing.assert_close(result, run(n, "cpu"), rtol=1e-4, atol=1e-5)
    assert programs(counters) <= MOST_PROGRAMS
    assert counters["bounded_launches"] > 30


@pytest.mark.parametrize("name", ["softmax", "cat", "matmul_contracted", "transpose_and_flatten"])
def test_values_in_each_mode(name: str, mode: str) -> None:
    for n in (3, 4, 19, 16, 5):
        expected = CASES[name](n, "cpu")
        torch.testing.assert_close(CASES[name](n, "tpu").cpu(), expected, rtol=1e-4, atol=1e-5)


def grow(device: str, steps: int) -> torch.Tensor:
    """Append a row and look at all of them, as a cache of keys and values does."""
    weight = table(12, device)
    cache = table(2, device)
    outputs = []
    for step in range(steps):
        query = table(1, device) * (step + 1) / steps
        cache = torch.cat([cache, query @ weight])
        outputs.append((query @ cache.t()).softmax(-1) @ cache)
    return torch.cat([cache, *outputs])


def test_a_growing_cache() -> None:
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    weight, cache = table(12, "tpu"), table(2, "tpu")
    for step in range(60):
        query = table(1, "tpu") * (step + 1) / 60
        cache = torch.cat([cache, query @ weight])
        output = (query @ cache.t()).softmax(-1) @ cache
        torch.tpu.synchronize()
    counters = torch.tpu.metrics()
    expected = grow("cpu", 60)
    torch.testing.assert_close(output.cpu()[0], expected[-1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cache.cpu(), expected[:62], rtol=1e-4, atol=1e-5)
    assert programs(counters) <= 2 * MOST_PROGRAMS


def train(device: str, batches: list[int]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for n in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows(n, device)), torch.arange(n, device=device) % 3)
        loss.backward()
        optimizer.step()
        if device == "tpu":
            torch.tpu.synchronize()
    return [p.detach().cpu() for p in model.parameters()]


def test_training_with_a_smaller_last_batch() -> None:
    train("tpu", [32, 32, 32])
    torch.tpu.reset_metrics()
    batches = [32, 32, 17, 32, 32, 11, 32, 32, 29]
    trained = train("tpu", batches)
    assert programs(torch.tpu.metrics()) <= MOST_PROGRAMS
    for got, expected in zip(trained, train("cpu", batches), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_garbage_never_leaks() -> None:
    for n in (3, 5, 9, 17):
        x = rows(n, "tpu") / 0 * 0  # not a number everywhere that is held
        y = torch.cat([x, torch.ones(n, 12, device="tpu")])
        assert y[n:].sum().item() == n * 12
        assert y.isnan().sum().item() == n * 12
        assert (y[n:].t() @ y[n:]).isfinite().all().item()


def test_copies_of_padded_values() -> None:
    for n in (3, 4, 5):
        x = torch.arange(n * 3.0, device="tpu").reshape(n, 3) * 2
        expected = torch.arange(n * 3.0).reshape(n, 3) * 2
        assert torch.equal(x.cpu(), expected)
        assert torch.equal(x.clone().cpu(), expected)
        assert torch.equal(x.t().cpu(), expected.t())
        assert x.tolist() == expected.tolist()
        assert x.untyped_storage().nbytes() == n * 12
        if torch.tpu.device_count() > 1:
            assert torch.equal(x.to("tpu:1").cpu(), expected)


def test_in_place_writes_into_padded_values() -> None:
    for n in (3, 4, 5, 18):
        x = torch.zeros(n, 3, device="tpu") + 1
        view = x[1:]
        view.mul_(3)
        x[-1, 2] = 9
        expected = torch.ones(n, 3)
        expected[1:] = 3
        expected[-1, 2] = 9
        assert torch.equal(x.cpu(), expected)


def test_random_numbers_do_not_depend_on_the_bound() -> None:
    def draw() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [torch.rand(n, device="tpu").cpu() for n in (5, 6, 7)]

    for first, second in zip(draw(), draw(), strict=True):
        assert torch.equal(first, second)


SWITCHED_OFF = """
import torch
for n in range(2, 8):
    (torch.ones(n, device="tpu") + 1).sum().item()
counters = torch.tpu.metrics()
assert counters["bounded_launches"] == 0, counters
assert counters["compilations"] + counters["disk_hits"] == 6, counters
"""


def test_the_switch(run_python: Callable[..., object]) -> None:
    run_python(SWITCHED_OFF, {"TORUS_BOUNDED": "0"})


def test_llama_generates_with_a_growing_cache() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 128, (1, 7))
    options = {
        "max_new_tokens": 64,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    expected = model.generate(ids, **options)
    model = model.to("tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    assert torch.equal(model.generate(ids.to("tpu"), **options).cpu(), expected)
    assert programs(torch.tpu.metrics()) <= 40
