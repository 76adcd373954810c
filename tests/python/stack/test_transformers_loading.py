# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""``from_pretrained`` puts weights on the device in the type asked for, and saving reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

import stack_parts as parts

PROMPT = torch.arange(8, 16).reshape(1, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.save(parts.llama(), tmp_path_factory.mktemp("llama"), parts.generator_tokenizer())


def devices_of(model: nn.Module) -> set[str]:
    tensors = [*model.parameters(), *model.buffers()]
    return {tensor.device.type for tensor in tensors}


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(PROMPT.to(model.device)).logits.float().cpu()


@pytest.mark.parametrize("where", ["tpu", "tpu:0", {"": "tpu"}, {"": 0}, 0])
def test_device_map(folder: Path, where: object) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=where)
    assert devices_of(model) == {"tpu"}
    expected = transformers.AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-3, atol=1e-4)


def test_loading_in_bfloat16(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map="tpu"
    )
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    expected = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    parts.assert_same_weights(model, expected, rtol=0, atol=0)
    torch.testing.assert_close(logits(model), logits(expected), rtol=0.1, atol=0.1)


def test_default_device(folder: Path) -> None:
    with torch.device("tpu"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert devices_of(model) == {"tpu"}


def test_building_on_the_device() -> None:
    with torch.device("tpu"):
        model = parts.llama()
    assert devices_of(model) == {"tpu"}
    assert logits(model).isfinite().all()


def test_peak_memory_of_loading(folder: Path) -> None:
    """No part of the way holds the model twice, on the device or on the host."""
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="tpu")
    torch.tpu.synchronize()
    size = model.get_memory_footprint()
    assert size <= torch.tpu.memory_allocated() - before <= 1.1 * size
    assert torch.tpu.max_memory_allocated() - before <= 1.25 * size


HOST_MEMORY = """
import threading, torch, transformers
from pathlib import Path

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])

def watch():
    while not done.wait(0.002):
        seen.append(anonymous())

config = transformers.LlamaConfig(
    vocab_size=64, hidden_size=1024, intermediate_size=2048, num_hidden_layers=3,
    num_attention_heads=8, num_key_value_heads=8,
)
with torch.device("meta"):
    model = transformers.LlamaForCausalLM(config)
model.to_empty(device="cpu").save_pretrained("model")
size = model.get_memory_footprint()
del model
torch.ones(1, device="tpu").cpu()
done, seen, before = threading.Event(), [], anonymous()
thread = threading.Thread(target=watch)
thread.start()
model = transformers.LlamaForCausalLM.from_pretrained("model", device_map="tpu")
torch.tpu.synchronize()
done.set()
thread.join()
print((max(seen) - before) / size, end="")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_host_memory_of_loading(run_python: Any) -> None:
    """On the CPU plugin the device's memory is the host's: once the model, and not twice."""
    assert 0.9 < float(run_python(HOST_MEMORY).stdout) < 1.5


def test_saving_from_the_device(folder: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="tpu")
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    parts.assert_same_weights(again, model, rtol=0, atol=0)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    parts.llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="tpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.is_tpu


def test_half_and_conversions(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="tpu")
    assert {value.dtype for value in model.half().parameters()} == {torch.float16}
    assert {value.dtype for value in model.to("tpu", torch.bfloat16).parameters()} == {
        torch.bfloat16
    }
    assert devices_of(model.cpu()) == {"cpu"}
