# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Recurrent layers against the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from layer_checks import rand

LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}


def _flat(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in result for t in _flat(part)]


def _compare(layer: torch.nn.Module, *inputs: torch.Tensor) -> None:
    results = {}
    for device in ("cpu", "tpu"):
        module = copy.deepcopy(layer).to(device)
        leaves = [t.clone().to(device).requires_grad_() for t in inputs]
        outputs = _flat(module(*leaves))
        sum((o * rand(*o.shape).to(device)).sum() for o in outputs).backward()
        gradients = [p.grad for p in (*leaves, *module.parameters())]
        results[device] = [t.detach().cpu() for t in (*outputs, *gradients)]
    for ours, theirs in zip(results["tpu"], results["cpu"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}])
def test_layers(kind: str, options: dict) -> None:
    torch.manual_seed(0)
    _compare(LAYERS[kind](4, 3, **options), rand(5, 2, 4))


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(cell: type, bias: bool) -> None:
    torch.manual_seed(0)
    _compare(cell(4, 3, bias=bias), rand(2, 4))


def test_projection() -> None:
    torch.manual_seed(0)
    _compare(torch.nn.LSTM(4, 5, proj_size=3, batch_first=True), rand(2, 6, 4))


def test_bfloat16() -> None:
    torch.manual_seed(0)
    layer = torch.nn.GRU(4, 3).bfloat16()
    x = rand(5, 2, 4, dtype=torch.bfloat16)
    expected, _ = layer(x)
    actual, _ = copy.deepcopy(layer).to("tpu")(x.to("tpu"))
    torch.testing.assert_close(actual.cpu(), expected, rtol=5e-2, atol=2e-2)


def test_packed_sequence() -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 3)
    pack = torch.nn.utils.rnn.pack_padded_sequence
    x, lengths = rand(5, 3, 4), torch.tensor([5, 3, 2])
    expected, _ = layer(pack(x, lengths))
    actual, _ = copy.deepcopy(layer).to("tpu")(pack(x.to("tpu"), lengths))
    torch.testing.assert_close(actual.data.cpu(), expected.data, rtol=5e-5, atol=5e-5)
