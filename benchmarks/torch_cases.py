# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The cases that contenders with PyTorch run.

Each builder takes the contender and returns a function and how many units of work one call of it
does; the caller waits for the device afterwards. The same seeds give all contenders the same
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[Callable[[], object], int]

UNITS = {"mlp_sgd": 20, "mlp_adamw": 20}
VALUES = 50


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def _batch(device: str, rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 64, generator=g)
    y = torch.randint(0, 10, (rows,), generator=g)
    return x.to(device), y.to(device)


def _optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.05)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def _mlp_case(kind: str) -> Callable[[Any], Built]:
    def build(backend: Any) -> Built:
        model = _mlp().to(backend.device)
        optimizer = _optimizer(kind, model)
        x, y = _batch(backend.device)
        units = UNITS["mlp_sgd"]

        def run() -> None:
            for _ in range(units):
                _step(model, optimizer, x, y)

        return run, units

    return build


def _captured_case(kind: str) -> Callable[[Any], Built | None]:
    """As one program per step where the contender can; on the CPU the plain step, to compare."""

    def build(backend: Any) -> Built | None:
        if backend.device == "cpu":
            return _mlp_case(kind)(backend)
        model = _mlp().to(backend.device)
        step = backend.trainer(model, kind, _batch(backend.device), nn.CrossEntropyLoss())
        if step is None:
            return None

        def run() -> None:
            for _ in range(20):
                step()

        return run, 20

    return build


def cosine(backend: Any) -> Built:
    model = _mlp().to(backend.device)
    optimizer = _optimizer("AdamW", model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100000)
    x, y = _batch(backend.device)

    def run() -> None:
        for _ in range(VALUES):
            _step(model, optimizer, x, y)
            schedule.step()

    return run, VALUES


def last_batch(backend: Any) -> Built:
    model = _mlp().to(backend.device)
    optimizer = _optimizer("AdamW", model)
    epoch = [_batch(backend.device) for _ in range(7)] + [_batch(backend.device, rows=13)]

    def run() -> None:
        for x, y in epoch:
            _step(model, optimizer, x, y)

    return run, len(epoch)


# ---- chains ----


def multiplications(backend: Any) -> Built:
    x = torch.ones(64, 64).to(backend.device)

    def run() -> torch.Tensor:
        y = x
        for _ in range(300):
            y = y * 1.0001
        return y

    return _keep(run), 1


def mixed_chain(backend: Any) -> Built:
    torch.manual_seed(0)
    x = (torch.randn(64, 64) * 0.01).to(backend.device)
    one = torch.ones(64, 64).to(backend.device)
    w = torch.linalg.qr(torch.randn(64, 64))[0].to(backend.device)

    def run() -> torch.Tensor:
        y = x
        for _ in range(250):
            y = ((y * one + x) @ w).relu()
        return y

    return _keep(run), 1


def _keep(function: Callable[[], object]) -> Callable[[], object]:
    """Hold the result until the next call: what nobody can see need not be computed."""
    held: list[object] = [None]

    def run() -> None:
        held[0] = function()

    return run


# ---- values that change ----


def _values_case(make: Callable[[Any], Callable[[int], torch.Tensor]]) -> Callable[[Any], Built]:
    """One call per value, each result read back before the next."""

    def build(backend: Any) -> Built:
        function = make(backend)

        def run() -> None:
            for i in range(VALUES):
                function(i).cpu()

        return run, VALUES

    return build


def _matrix(backend: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(64, 64).to(backend.device)


def _row_write(backend: Any) -> Callable[[int], torch.Tensor]:
    z = _matrix(backend)

    def function(i: int) -> torch.Tensor:
        z[i].mul_(1.0001)
        return z.sum()

    return function


def _cache_write(backend: Any) -> Callable[[int], torch.Tensor]:
    cache = torch.zeros(1, 4, 64, 32).to(backend.device)
    value = torch.ones(1, 4, 1, 32).to(backend.device)

    def function(i: int) -> torch.Tensor:
        cache[:, :, i : i + 1] = value
        return cache.sum()

    return function


def _with_matrix(
    function: Callable[[torch.Tensor, int], torch.Tensor],
) -> Callable[[Any], Callable[[int], torch.Tensor]]:
    def make(backend: Any) -> Callable[[int], torch.Tensor]:
        x = _matrix(backend)
        return lambda i: function(x, i)

    return make


def _ones(backend: Any) -> Callable[[int], torch.Tensor]:
    return lambda n: torch.ones(n + 1, device=backend.device) + 1


# ---- round trips ----


def add_and_wait(backend: Any) -> Built:
    x = torch.ones(8, 8).to(backend.device)

    def run() -> None:
        for _ in range(100):
            y = x + 1
            backend.sync()
            del y

    return run, 100


def add_and_read(backend: Any) -> Built:
    s = torch.ones(()).to(backend.device)

    def run() -> None:
        for _ in range(100):
            (s + 1).item()

    return run, 100


def print_small(backend: Any) -> Built:
    x = torch.ones(2, 3).to(backend.device)

    def run() -> None:
        for _ in range(20):
            repr(x)

    return run, 20


# ---- models ----


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def convnet(backend: Any) -> Built:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        _Block(16, 16, 1),
        _Block(16, 32, 2),
        _Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).to(backend.device)
    x = torch.randn(8, 3, 32, 32).to(backend.device)
    y = torch.randint(0, 10, (8,)).to(backend.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run() -> None:
        for _ in range(5):
            _step(model, optimizer, x, y)

    return run, 5


def _transformers() -> Any:
    import os

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def _bert() -> nn.Module:
    transformers = _transformers()
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(config).eval()


def _llama() -> nn.Module:
    transformers = _transformers()
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=688,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def _tokens(device: str) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randint(3, 1000, (1, 64), generator=g).to(device)


def _forward_case(make: Callable[[], nn.Module], **options: Any) -> Callable[[Any], Built]:
    def build(backend: Any) -> Built:
        model, tokens = make().to(backend.device), _tokens(backend.device)

        @torch.no_grad()
        def run() -> torch.Tensor:
            return model(input_ids=tokens, **options).logits

        return _keep(run), 1

    return build


def _generate_case(count: int, **options: Any) -> Callable[[Any], Built]:
    def build(backend: Any) -> Built:
        model, tokens = _llama().to(backend.device), _tokens(backend.device)
        mask = torch.ones_like(tokens)

        def run() -> None:
            model.generate(
                tokens, attention_mask=mask, max_new_tokens=count, do_sample=False, **options
            ).cpu()

        return run, 1

    return build


CASES: dict[str, Callable[[Any], Built | None]] = {
    "mlp_sgd": _mlp_case("SGD"),
    "mlp_adamw": _mlp_case("AdamW"),
    "mlp_sgd_captured": _captured_case("SGD"),
    "mlp_adamw_captured": _captured_case("AdamW"),
    "cosine": cosine,
    "last_batch": last_batch,
    "multiplications": multiplications,
    "mixed_chain": mixed_chain,
    "times_i": _values_case(_with_matrix(lambda x, i: x * i)),
    "index": _values_case(_with_matrix(lambda x, i: x[i] + 0)),
    "slice": _values_case(_with_matrix(lambda x, i: x[i : i + 4] + 0)),
    "row_write": _values_case(_row_write),
    "cache_write": _values_case(_cache_write),
    "prefix_sum": _values_case(_with_matrix(lambda x, n: x[: n + 1].sum())),
    "ones": _values_case(_ones),
    "add_and_wait": add_and_wait,
    "add_and_read": add_and_read,
    "print_small": print_small,
    "convnet": convnet,
    "bert": _forward_case(_bert),
    "llama": _forward_case(_llama, use_cache=False),
    "generate_static": _generate_case(32, cache_implementation="static", disable_compile=True),
    "generate_dynamic": _generate_case(32),
}
