# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Abstract tensors and lowering."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch_tpu import aot

DEVICE = torch.device("tpu")


def _main(text: str) -> str:
    assert text.count("func.func public @main") == 1
    return text


# ---- abstract tensors ----


def test_abstract_tensors_have_a_type_and_no_memory() -> None:
    before = torch.tpu.memory_allocated()
    with aot.abstract():
        x = torch.randn(1 << 20, 1 << 14, device=DEVICE, dtype=torch.bfloat16)  # 32 GiB
        y = (x.t() @ x).relu()
    assert y.shape == (1 << 14, 1 << 14)
    assert y.dtype == torch.bfloat16
    assert aot.is_abstract(x)
    assert aot.is_abstract(y)
    assert torch.tpu.memory_allocated() == before


def test_reading_an_abstract_tensor_raises() -> None:
    with aot.abstract():
        x = torch.ones(3, device=DEVICE)
        with pytest.raises(RuntimeError, match="abstract"):
            x.tolist()
    for use in (lambda: x.cpu(), lambda: x + 1, lambda: x.sum().item(), lambda: print(x)):
        with pytest.raises(RuntimeError, match="abstract"):
            use()
    assert aot.is_abstract(x.clone())


def test_never_written_abstract_tensors_raise_too() -> None:
    with aot.abstract():
        x = torch.empty(3, 4, device=DEVICE)
    for use in (lambda: x.cpu(), lambda: x.t().sum()):
        with pytest.raises(RuntimeError, match="abstract"):
            use()


def test_real_content_ends_abstractness() -> None:
    before = torch.tpu.memory_allocated()
    with aot.abstract():
        x = torch.zeros(2, 3, device=DEVICE)
    x.copy_(torch.arange(6.0).view(2, 3))
    assert not aot.is_abstract(x)
    assert torch.tpu.memory_allocated() == before + 24
    assert x.sum().item() == 15
    del x
    assert torch.tpu.memory_allocated() == before


def test_real_tensors_keep_their_content() -> None:
    x = torch.arange(4.0, device=DEVICE) * 2
    with aot.abstract():
        y = x + 1
        z = torch.arange(3).to(DEVICE)
    assert x.tolist() == [0, 2, 4, 6]
    assert aot.is_abstract(y)
    assert aot.is_abstract(z)


def test_abstract_like() -> None:
    meta = torch.empty(4, 3, device="meta", dtype=torch.float16).t()
    x = aot.abstract_like(meta)
    assert (x.shape, x.stride(), x.dtype) == (meta.shape, meta.stride(), meta.dtype)
    assert aot.is_abstract(x)


def test_operators_without_lowering_keep_shapes() -> None:
    with aot.abstract():
        x = torch.zeros(4, 4, device=DEVICE, dtype=torch.float64)
        torch.nn.init.orthogonal_(x)
    assert aot.is_abstract(x)


# ---- lowering ----


def test_lower_names_inputs_and_outputs() -> None:
    with aot.abstract(), DEVICE:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        x = torch.randn(2, 8)
    lowered = aot.lower(model, x)
    _main(lowered.text)
    names = {slot.name: slot for slot in lowered.inputs}
    assert set(names) == {"arg0", "0.weight", "0.bias", "2.weight", "2.bias"}
    assert names["0.weight"].kind == "parameter"
    assert names["0.weight"].shape == (16, 8)
    assert names["0.weight"].bytes == 16 * 8 * 4
    assert names["arg0"].kind == "argument"
    assert [slot.shape for slot in lowered.outputs] == [(2, 4)]
    assert lowered.returned == [0]
    assert lowered.donated == []


def test_results_whose_type_names_no_parts_are_numbered() -> None:
    from diffusers.models.autoencoders.vae import DecoderOutput

    with aot.abstract():
        x = torch.zeros(2, 3, device="tpu")
        lowered = aot.lower(lambda x: (x + 1, DecoderOutput(sample=x * 2)), x)
    assert [slot.name for slot in lowered.outputs] == ["0", "1"]
    assert lowered.result[1].sample.shape == (2, 3)


def test_lower_takes_real_tensors_and_leaves_them() -> None:
    x = torch.arange(4.0, device=DEVICE)
    torch.tpu.synchronize()
    launches = torch.tpu.metrics()["launches"]
    lowered = aot.lower(lambda a: (a * 2).add_(1), x)
    assert torch.tpu.metrics()["launches"] == launches
    assert x.tolist() == [0, 1, 2, 3]
    assert "stablehlo.multiply" in lowered.text


def test_in_place_writes_are_aliased_outputs() -> None:
    with aot.abstract(), DEVICE:
        cache, step = torch.zeros(4, 8), torch.ones(1, 8)

    def write(cache: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        cache[2:3] = step
        return cache.sum()

    lowered = aot.lower(write, cache, step)
    (donated,) = lowered.donated
    assert lowered.inputs[donated].name == "arg0"
    assert {slot.name for slot in lowered.outputs} == {"result", "arg0"}
    assert lowered.outputs[lowered.inputs[donated].alias].alias == donated
    assert lowered.text.count("tf.aliasing_output") == 1


@pytest.mark.parametrize("capturable", [False, True])
def test_training_step(capturable: bool) -> None:
    with aot.abstract(), DEVICE:
        model = torch.nn.Linear(8, 4)
        x = torch.randn(2, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=capturable)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    lowered = aot.lower(step, x)
    outputs = {slot.name: slot for slot in lowered.outputs}
    assert {"weight", "bias", "weight.grad", "weight.exp_avg", "bias.exp_avg_sq"} <= set(outputs)
    updated = {lowered.inputs[i].name for i in lowered.donated}
    assert {"weight", "bias"} <= updated
    assert model.weight.grad is None
    assert not optimizer.state


def test_existing_optimizer_state_is_an_input() -> None:
    with aot.abstract(), DEVICE:
        model = torch.nn.Linear(8, 4)
        x = torch.randn(2, 8)
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    lowered = aot.lower(step, x)
    updated = {lowered.inputs[i].name for i in lowered.donated}
    assert {"weight", "weight.exp_avg", "weight.exp_avg_sq", "bias.step"} <= updated
    assert not any(slot.name.endswith(".grad") for slot in lowered.outputs)


def test_random_numbers_are_an_input() -> None:
    state = torch.tpu.get_rng_state()
    lowered = aot.lower(lambda x: torch.nn.functional.dropout(x), torch.ones(8, device=DEVICE))
    assert [slot.kind for slot in lowered.inputs if slot.name == "random0"] == ["random"]
    assert torch.equal(torch.tpu.get_rng_state(), state)


def test_returned_views_and_inputs_are_results() -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    lowered = aot.lower(lambda x: {"t": x.t(), "x": x, "row": x[1]}, x)
    assert [slot.name for slot in lowered.outputs] == ["t", "x", "row"]
    assert [slot.bytes for slot in lowered.outputs] == [24, 24, 12]


def test_data_dependence_is_not_lowered() -> None:
    x = torch.ones(4, device=DEVICE)
    with pytest.raises(aot.NotLowered, match=r"test_aot\.py:") as caught:
        aot.lower(lambda x: x.nonzero(), x)
    assert caught.value.operator == "aten::nonzero"
    with pytest.raises(aot.NotLowered, match="_local_scalar_dense"):
        aot.lower(lambda x: x if x.sum() > 3 else x + 1, x)
    assert (x + 1).tolist() == [2, 2, 2, 2]


@pytest.fixture(scope="module")
def foreign_operator() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Yield an operator that only the CPU has."""
    library = torch.library.Library("torus_test_aot", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", torch.empty_like, "Meta")
    yield torch.ops.torus_test_aot.twice
    library._destroy()


def test_operators_without_lowering_are_named(
    foreign_operator: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    a = torch.randn(4, 4, device=DEVICE)
    with pytest.raises(aot.NotLowered, match="has no lowering") as caught:
        aot.lower(lambda a: foreign_operator(a), a)
    assert caught.value.operator == "torus_test_aot::twice"
    assert re.search(r"test_aot\.py:\d+", caught.value.line)


def test_operators_without_lowering_are_collected(
    foreign_operator: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    a = torch.randn(4, 4, device=DEVICE)
    lowered = aot.lower(
        lambda a: foreign_operator(foreign_operator(a) + 1), a, on_missing="collect"
    )
    assert [m.operator for m in lowered.fallbacks] == ["torus_test_aot::twice"] * 2
    assert lowered.outputs[0].shape == (4, 4)


def test_an_error_of_the_function_passes_through() -> None:
    x = torch.ones(2, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        aot.lower(lambda x: x @ x, x)
    assert x.sum().item() == 6
