# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Equal layers as loops: the same numbers, arguments and results in fewer operations."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from torch_tpu import _C, aot
from torch_tpu.aot import program, rolling
from torch_tpu.aot.rolling import Stacked
from torus.check import source, step

LAYERS = 6
ARCHITECTURES = {"llama": "LlamaForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}


def run(
    text: str, inputs: list[aot.Slot], outputs: list[aot.Slot], values: list[torch.Tensor]
) -> list[torch.Tensor]:
    described = [
        (s.dtype, list(s.shape), -1 if s.alias is None else s.alias, False) for s in inputs
    ]
    results = [(slot.dtype, list(slot.shape), -1, False) for slot in outputs]
    executable = _C._Executable(text.encode(), False, described, results)
    return executable.run([value.to("tpu") for value in values], 0)


def values_of(slots: list[aot.Slot]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for slot in slots:
        if slot.dtype.is_floating_point:
            value = torch.rand(slot.shape, generator=generator) * 0.1 + 0.01
        else:
            value = torch.randint(0, 50, slot.shape, generator=generator)
        made.append(value.to(slot.dtype))
    return made


def regrouped(slots: list[aot.Slot], values: list[torch.Tensor], old: int) -> list[torch.Tensor]:
    """Take arguments or results of layers out of the arrays that hold several."""
    found: dict[int, torch.Tensor] = {}
    rest = iter(sorted(set(range(old)) - {m for s in slots for m in getattr(s, "members", ())}))
    for slot, value in zip(slots, values, strict=True):
        if isinstance(slot, Stacked):
            found.update(zip(slot.members, value, strict=True))
        else:
            found[next(rest)] = value
    return [found[i] for i in range(old)]


def stacked(slots: list[aot.Slot], values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Put arguments of layers into arrays."""
    rest = iter(
        sorted(set(range(len(values))) - {m for s in slots for m in getattr(s, "members", ())})
    )
    return [
        torch.stack([values[m] for m in slot.members])
        if isinstance(slot, Stacked)
        else values[next(rest)]
        for slot in slots
    ]


def compare(lowered: aot.Lowered, rolled: rolling.Rolled) -> None:
    values = values_of(lowered.inputs)
    expected = run(lowered.text, lowered.inputs, lowered.outputs, values)
    given = stacked(rolled.inputs, values)
    results = run(rolled.text, rolled.inputs, rolled.outputs, given)
    found = regrouped(rolled.outputs, results, len(expected))
    for slot, a, b in zip(lowered.outputs, expected, found, strict=True):
        torch.testing.assert_close(b.cpu(), a.cpu(), rtol=2e-4, atol=2e-5, msg=slot.name)
    assert sum(slot.bytes for slot in rolled.inputs) == sum(s.bytes for s in lowered.inputs)


def lower(folder: pathlib.Path, kind: str, mode: str, **changes: object) -> aot.Lowered:
    facts = {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 60,
        "max_position_embeddings": 64,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(facts), "utf-8")
    request = step.Request(mode, 1, 16, "float32", mode == "train")
    return step.lower(source.find(str(folder)), request)[1]


def test_a_forward_pass_becomes_one_loop(tmp_path: pathlib.Path) -> None:
    lowered = lower(tmp_path, "llama", "forward")
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    assert [loop.rounds for loop in rolled.loops] == [LAYERS]
    assert len(rolled.text) < len(lowered.text) / 3
    names = [slot.name for slot in rolled.inputs if isinstance(slot, Stacked)]
    assert "model.layers.*.self_attn.q_proj.weight" in names
    compare(lowered, rolled)


def test_a_training_step_becomes_two_loops_that_update_in_place(tmp_path: pathlib.Path) -> None:
    lowered = lower(tmp_path, "llama", "train")
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    forward, backward = rolled.loops
    assert forward.rounds == LAYERS
    assert backward.rounds >= LAYERS - 2
    assert backward.operations > 2 * forward.operations  # the optimizer's too
    updated = [slot for slot in rolled.inputs if isinstance(slot, Stacked)]
    assert all(slot.alias is not None for slot in updated)
    compare(lowered, rolled)


def test_decoding_writes_its_caches_in_place(tmp_path: pathlib.Path) -> None:
    lowered = lower(tmp_path, "llama", "decode")
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    assert [loop.rounds for loop in rolled.loops] == [LAYERS]
    caches = [slot for slot in rolled.inputs if slot.name.startswith("kv.")]
    assert caches
    assert all(isinstance(slot, Stacked) and slot.alias is not None for slot in caches[:2])
    compare(lowered, rolled)


def test_layers_that_come_in_groups(tmp_path: pathlib.Path) -> None:
    kinds = (["sliding_attention"] * 2 + ["full_attention"]) * 3 + ["sliding_attention"]
    lowered = lower(
        tmp_path,
        "gemma3_text",
        "forward",
        num_hidden_layers=10,
        layer_types=kinds,
        sliding_window=4,
    )
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    assert [loop.rounds for loop in rolled.loops] == [3]
    compare(lowered, rolled)


def test_what_does_not_repeat_stays() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    lowered = aot.lower(layers.to("tpu"), torch.ones(2, 4, device="tpu"))
    assert rolling.roll(lowered.text, lowered.inputs, lowered.outputs) is None


class Block(torch.nn.Module):
    """A layer with a region in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))).sort(-1)[0]


@pytest.mark.parametrize("repeats", [2, 3, 7])
def test_plain_layers(repeats: int) -> None:
    layers = torch.nn.Sequential(*(Block() for _ in range(repeats))).to("tpu")
    lowered = aot.lower(layers, torch.randn(4, 8).to("tpu"))
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    if repeats < 3:
        assert rolled is None
        return
    assert [loop.rounds for loop in rolled.loops] == [repeats]
    compare(lowered, rolled)


def test_results_of_every_layer() -> None:
    layers = torch.nn.ModuleList([Block() for _ in range(5)]).to("tpu")

    def states(x: torch.Tensor) -> list[torch.Tensor]:
        found = [x * 2]
        for layer in layers:
            found.append(layer(found[-1]))
        return [*found[1:], found[2] + found[4], found[0]]

    lowered = aot.lower(states, torch.randn(4, 8).to("tpu"))
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    assert [loop.rounds for loop in rolled.loops] == [5]
    compare(lowered, rolled)


def test_layers_that_share_some_weights() -> None:
    shared = torch.nn.Linear(8, 8)
    layers = torch.nn.ModuleList([Block() for _ in range(6)]).to("tpu")
    shared.to("tpu")

    def forward(x: torch.Tensor) -> torch.Tensor:
        first = x
        for i, layer in enumerate(layers):
            x = layer(shared(x)) + first * (2.0 if i == 0 else 1.0)
        return x @ layers[3].up.weight.t()

    lowered = aot.lower(forward, torch.randn(4, 8).to("tpu"))
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    assert rolled.loops[0].rounds >= 5
    compare(lowered, rolled)


def test_training_without_recomputation_keeps_what_the_backward_pass_needs() -> None:
    layers = torch.nn.Sequential(*(Block() for _ in range(5))).to("tpu")
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = layers(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    lowered = aot.lower(step, torch.randn(4, 8).to("tpu"))
    rolled = rolling.roll(lowered.text, lowered.inputs, lowered.outputs)
    assert len(rolled.loops) == 2
    compare(lowered, rolled)


def test_types_have_sizes() -> None:
    assert program.bytes_of("tensor<2x3xbf16>") == 12
    assert program.bytes_of("tensor<f32>") == 4
    assert program.bytes_of("tensor<5xcomplex<f32>>") == 40
    assert program.bytes_of("tensor<7xf8E4M3FN>") == 7
    assert program.bytes_of("tensor<8xi4>") == 4
    assert program.dims_of("tensor<2xi64>") == ((2,), "i64")


def test_other_texts_are_refused() -> None:
    with pytest.raises(program.Unreadable, match="one function"):
        program.parse("module @m { func.func @a() { return } func.func @b() { return } }")
