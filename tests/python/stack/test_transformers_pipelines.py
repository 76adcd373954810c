# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""``transformers.pipeline`` gives on "tpu" what it gives on the CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

import stack_parts as parts

pytestmark = pytest.mark.usefixtures("no_fallbacks")


def run(task: str, model: Any, *arguments: Any, **options: Any) -> list[Any]:
    results = []
    for device in parts.DEVICES:
        own = copy.deepcopy(model)
        pipe = transformers.pipeline(task, model=own, device=device, **options)
        assert pipe.device.type == device
        assert own.device.type == device
        results.append(pipe(*arguments))
    return results


def assert_scores(actual: Any, expected: Any, name: str) -> None:
    assert [entry[name] for entry in actual] == [entry[name] for entry in expected]
    scores = [torch.tensor([entry["score"] for entry in side]) for side in (actual, expected)]
    torch.testing.assert_close(*scores, rtol=1e-3, atol=1e-5)


def test_text_generation() -> None:
    options = {"tokenizer": parts.generator_tokenizer(), "max_new_tokens": 6, "do_sample": False}
    expected, actual = run("text-generation", parts.llama(), "the cat sleeps", **options)
    assert actual == expected
    assert actual[0]["generated_text"].startswith("the cat sleeps")


def test_text_generation_of_a_batch_and_a_chat() -> None:
    words = parts.generator_tokenizer()
    options = {"tokenizer": words, "max_new_tokens": 4, "do_sample": False, "batch_size": 2}
    expected, actual = run("text-generation", parts.llama(), parts.SENTENCES[:3], **options)
    assert actual == expected
    chat = [{"role": "user", "content": "the cat sleeps"}]
    expected, actual = run("text-generation", parts.llama(), chat, **options)
    assert actual == expected
    assert actual[0]["generated_text"][-1]["role"] == "assistant"


def test_text_generation_from_a_folder(tmp_path: Path) -> None:
    folder = str(parts.save(parts.llama(), tmp_path / "model", parts.generator_tokenizer()))
    texts = []
    for place in ({"device": "cpu"}, {"device": "tpu"}, {"device_map": "tpu"}):
        pipe = transformers.pipeline("text-generation", model=folder, **place)
        texts.append(pipe("a small dog", max_new_tokens=5, do_sample=False))
    assert pipe.model.device.type == "tpu"
    assert texts[0] == texts[1] == texts[2]


def test_fill_mask() -> None:
    model = parts.bert(transformers.BertForMaskedLM)
    text = "the [MASK] sleeps on the warm stove"
    expected, actual = run("fill-mask", model, text, tokenizer=parts.tokenizer())
    assert_scores(actual, expected, "token_str")


def test_feature_extraction() -> None:
    expected, actual = run(
        "feature-extraction", parts.bert(), parts.SENTENCES[0], tokenizer=parts.tokenizer()
    )
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-3, atol=1e-4)


def test_text_and_token_classification() -> None:
    words = parts.tokenizer()
    model = parts.bert(transformers.BertForSequenceClassification, num_labels=3)
    options = {"tokenizer": words, "top_k": 3}
    expected, actual = run("text-classification", model, parts.SENTENCES[1:2], **options)
    assert_scores(actual[0], expected[0], "label")
    model = parts.bert(transformers.BertForTokenClassification, num_labels=3)
    expected, actual = run("token-classification", model, parts.SENTENCES[1], tokenizer=words)
    assert_scores(actual, expected, "word")


def test_question_answering_model() -> None:
    words, model = parts.tokenizer(), parts.bert(transformers.BertForQuestionAnswering)
    inputs = words(parts.SENTENCES[0], parts.SENTENCES[1], return_tensors="pt")

    def answer(own: Any, device: str) -> list[torch.Tensor]:
        with torch.no_grad():
            output = own(**inputs.to(device))
        return [output.start_logits.cpu(), output.end_logits.cpu()]

    expected, actual = parts.on_both(model, answer)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def image_processor() -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return ViTImageProcessorPil(size={"height": 32, "width": 32})


def test_image_classification() -> None:
    pytest.importorskip("PIL")
    options = {"image_processor": image_processor(), "top_k": 4}
    expected, actual = run("image-classification", parts.vit(), parts.picture(), **options)
    assert_scores(actual, expected, "label")


def test_image_feature_extraction() -> None:
    pytest.importorskip("PIL")
    model = transformers.ViTModel(parts.vit().config, add_pooling_layer=False).eval()
    options = {"image_processor": image_processor()}
    expected, actual = run("image-feature-extraction", model, parts.picture(), **options)
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-3, atol=1e-4)


def test_audio_classification() -> None:
    config = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        conv_dim=(16, 16),
        conv_stride=(8, 4),
        conv_kernel=(10, 8),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=16,
        num_labels=3,
    )
    transformers.set_seed(0)
    model = transformers.Wav2Vec2ForSequenceClassification(config).eval()
    sound = torch.sin(torch.arange(4000) * 0.05).numpy()
    options = {"feature_extractor": transformers.Wav2Vec2FeatureExtractor(), "top_k": 3}
    expected, actual = run("audio-classification", model, sound, **options)
    assert_scores(actual, expected, "label")
