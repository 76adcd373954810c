# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""``generate`` in all its ways writes on "tpu" what it writes on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

import stack_parts as parts

pytestmark = pytest.mark.usefixtures("no_fallbacks")


def prompt(device: str) -> dict[str, torch.Tensor]:
    words = parts.generator_tokenizer()
    return dict(words(parts.SENTENCES[:2], padding=True, return_tensors="pt").to(device))


def texts(model: Any, **options: Any) -> list[Any]:
    def run(own: Any, device: str) -> list[list[int]]:
        result = own.generate(**prompt(device), **{"max_new_tokens": 5, **options})
        assert result.device.type == device
        return result.tolist()

    return parts.on_both(model, run)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_caches(cache: str) -> None:
    expected, actual = texts(parts.llama(), do_sample=False, cache_implementation=cache)
    assert actual == expected


def test_without_a_cache() -> None:
    expected, actual = texts(parts.llama(), do_sample=False, use_cache=False)
    assert actual == expected


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_sliding_window(cache: str) -> None:
    config = transformers.MistralConfig(
        sliding_window=6, **{**parts.llama().config.to_dict(), "model_type": "mistral"}
    )
    transformers.set_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    expected, actual = texts(
        model, do_sample=False, cache_implementation=cache, disable_compile=True
    )
    assert actual == expected


def test_layers_of_both_kinds() -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.2,
        pad_token_id=1,
        eos_token_id=6,
    )
    transformers.set_seed(0)
    model = transformers.Gemma3ForCausalLM(config).eval()
    expected, actual = texts(model, do_sample=False)
    assert actual == expected


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.5, "early_stopping": True},
    ],
)
def test_beam_search(options: dict[str, Any]) -> None:
    expected, actual = texts(parts.llama(), do_sample=False, **options)
    assert actual == expected


def test_processors_of_scores() -> None:
    options = {
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 4,
        "bad_words_ids": [[10], [11, 12]],
        "suppress_tokens": [3, 4],
        "forced_eos_token_id": 6,
    }
    expected, actual = texts(parts.llama(), do_sample=False, **options)
    assert actual == expected


def test_sampling_repeats_with_its_seed() -> None:
    model = parts.llama().tpu()
    options = {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 1.5, "min_p": 0.01}
    results = []
    for seed in (1, 1, 2):
        transformers.set_seed(seed)
        results.append(model.generate(**prompt("tpu"), max_new_tokens=5, **options).tolist())
    assert results[0] == results[1] != results[2]


def test_sampling_follows_the_scores() -> None:
    """Samples of the first token come as often as the model says."""
    model = parts.llama().tpu()
    inputs = {name: value[:1] for name, value in prompt("tpu").items()}
    with torch.no_grad():
        wanted = model(**inputs).logits[0, -1].softmax(-1).cpu()
    transformers.set_seed(0)
    options = {"do_sample": True, "top_k": 0, "num_return_sequences": 2000, "max_new_tokens": 1}
    drawn = model.generate(**inputs, **options)[:, -1].cpu()
    shares = torch.bincount(drawn, minlength=64) / len(drawn)
    assert (shares - wanted).abs().max() < 0.05


def test_beam_sampling_repeats_with_its_seed() -> None:
    model, results = parts.llama().tpu(), []
    for _ in range(2):
        transformers.set_seed(3)
        options = {"do_sample": True, "num_beams": 2, "max_new_tokens": 5}
        results.append(model.generate(**prompt("tpu"), **options).tolist())
    assert results[0] == results[1]


def test_assisted_decoding() -> None:
    model, helper = parts.llama(), parts.llama(seed=1, layers=1)
    inputs = {name: value[1:] for name, value in prompt("tpu").items()}
    options = {"do_sample": False, "max_new_tokens": 8}
    model, helper = model.tpu(), helper.tpu()
    plain = model.generate(**inputs, **options).tolist()
    assert model.generate(**inputs, assistant_model=helper, **options).tolist() == plain


def test_prompt_lookup_decoding() -> None:
    model = parts.llama().tpu()
    inputs = {name: value[1:] for name, value in prompt("tpu").items()}
    options = {"do_sample": False, "max_new_tokens": 8}
    plain = model.generate(**inputs, **options).tolist()
    assert model.generate(**inputs, prompt_lookup_num_tokens=3, **options).tolist() == plain


def test_scores_and_hidden_states() -> None:
    def run(own: Any, device: str) -> list[torch.Tensor]:
        result = own.generate(
            **prompt(device),
            max_new_tokens=3,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            output_hidden_states=True,
        )
        scores = own.compute_transition_scores(
            result.sequences, result.scores, normalize_logits=True
        )
        return [scores.cpu(), *(value[-1].cpu() for value in result.hidden_states)]

    expected, actual = parts.on_both(parts.llama(), run)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_stopping_and_streaming() -> None:
    words, model = parts.generator_tokenizer(), parts.llama().tpu()
    inputs = {name: value[1:] for name, value in prompt("tpu").items()}
    pieces: list[str] = []

    class Collect(transformers.TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            pieces.append(text)

    result = model.generate(
        **inputs, max_new_tokens=6, do_sample=False, streamer=Collect(words, skip_prompt=True)
    )
    tail = result[0, inputs["input_ids"].shape[1] :]
    assert "".join(pieces).split() == words.decode(tail).split()


def test_compiled_generation_with_a_static_cache() -> None:
    expected, actual = texts(
        parts.llama(), do_sample=False, cache_implementation="static", max_new_tokens=4
    )
    assert actual == expected


def test_encoder_and_decoder() -> None:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_heads=4,
        pad_token_id=1,
        eos_token_id=6,
        decoder_start_token_id=1,
        initializer_factor=2.0,
    )
    transformers.set_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    expected, actual = texts(model, do_sample=False, num_beams=2, max_new_tokens=4)
    assert actual == expected
