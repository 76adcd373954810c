# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Small models under ``torch.compile``: values as on the CPU, in one launch a pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from counters import counted

transformers = pytest.importorskip("transformers")

DEVICE = torch.device("tpu")
Batch = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what Dynamo knows."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def _text() -> Batch:
    return {"input_ids": torch.randint(0, 64, (2, 8)), "labels": torch.randint(0, 64, (2, 8))}


def _bert() -> Any:
    config = transformers.BertConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return transformers.BertForSequenceClassification(config)


def _sentences() -> Batch:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return {
        "input_ids": torch.randint(0, 64, (2, 8)),
        "attention_mask": mask,
        "labels": torch.tensor([0, 1]),
    }


def _resnet() -> Any:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
    )
    return transformers.ResNetForImageClassification(config)


def _vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
        num_labels=3,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return transformers.ViTForImageClassification(config)


def _images(side: int) -> Batch:
    return {"pixel_values": torch.randn(2, 3, side, side), "labels": torch.tensor([0, 1])}


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Batch]]] = {
    "llama": (_llama, _text),
    "bert": (_bert, _sentences),
    "resnet": (_resnet, lambda: _images(32)),
    "vit": (_vit, lambda: _images(16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_training(name: str) -> None:
    torch.manual_seed(0)
    make, batch = MODELS[name]
    host = make().eval()
    device = copy.deepcopy(host).to(DEVICE)
    compiled = torch.compile(device)
    given = batch()
    moved = {key: value.to(DEVICE) for key, value in given.items()}
    with torch.no_grad():
        compiled(**moved)
        got, _, launches = counted(lambda: compiled(**moved))
        torch.testing.assert_close(got.logits.cpu(), host(**given).logits, rtol=1e-3, atol=1e-4)
    assert launches == 1
    host.train()
    device.train()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (host, device)]
    for _ in range(2):
        given = batch()
        losses = []
        for model, optimizer in zip((host, compiled), optimizers, strict=True):
            place = "cpu" if model is host else DEVICE
            loss = model(**{key: value.to(place) for key, value in given.items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-4)


def test_generate_compiles_with_a_static_cache() -> None:
    torch.manual_seed(0)
    host = _llama().eval()
    device = copy.deepcopy(host).to(DEVICE)
    ids = torch.randint(0, 64, (1, 5))
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static"}
    want = host.generate(ids, **options, disable_compile=True)
    for _ in range(2):
        before = torch.tpu.metrics()["compilations"]
        got = device.generate(ids.to(DEVICE), **options)
        compilations = torch.tpu.metrics()["compilations"] - before
        assert torch.equal(got.cpu(), want)
    assert compilations == 0
