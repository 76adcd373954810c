# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sentence Transformers finds the device, encodes, compares and trains on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

sentence_transformers = pytest.importorskip("sentence_transformers")

import stack_parts as parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sentence_transformers.sentence_transformer import modules

    path = tmp_path_factory.mktemp("encoder")
    parts.save(parts.bert(), path / "bert", parts.tokenizer())
    words = modules.Transformer(str(path / "bert"))
    pooling = modules.Pooling(32, "mean")
    made = sentence_transformers.SentenceTransformer(
        modules=[words, pooling, modules.Normalize()], device="cpu"
    )
    made.save(str(path / "whole"))
    return path / "whole"


def encoder(folder: Path, device: str | None = "tpu") -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device=device)


def test_encoding(folder: Path) -> None:
    model = encoder(folder)
    expected = encoder(folder, "cpu").encode(parts.SENTENCES)
    for options in ({}, {"batch_size": 2}, {"convert_to_tensor": True}):
        actual = model.encode(parts.SENTENCES, **options)
        if options.get("convert_to_tensor"):
            assert actual.is_tpu
        torch.testing.assert_close(
            torch.as_tensor(actual).cpu(), torch.as_tensor(expected), rtol=1e-3, atol=1e-5
        )
    half = model.encode(parts.SENTENCES, precision="int8")
    assert half.shape == expected.shape


def test_similarity_and_search(folder: Path) -> None:
    results = []
    for device in parts.DEVICES:
        model = encoder(folder, device)
        found = model.encode(parts.SENTENCES, convert_to_tensor=True)
        likeness = model.similarity(found, found).cpu()
        hits = sentence_transformers.util.semantic_search(found[:2], found, top_k=3)
        results.append((likeness, hits))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-3, atol=1e-4)
    ids = [[[hit["corpus_id"] for hit in row] for row in hits] for _, hits in results]
    assert ids[0] == ids[1]
    pairs = sentence_transformers.util.paraphrase_mining(encoder(folder), parts.SENTENCES)
    assert len(pairs) == 15


def test_cross_encoder(tmp_path: Path) -> None:
    import transformers

    kind = transformers.BertForSequenceClassification
    parts.save(parts.bert(kind, num_labels=1), tmp_path, parts.tokenizer())
    pairs = [(parts.SENTENCES[0], other) for other in parts.SENTENCES]
    scores = [
        sentence_transformers.CrossEncoder(str(tmp_path), device=device).predict(pairs)
        for device in parts.DEVICES
    ]
    torch.testing.assert_close(*map(torch.as_tensor, scores[::-1]), rtol=1e-3, atol=1e-4)


def test_training(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(
        {"anchor": parts.SENTENCES[:4], "positive": parts.SENTENCES[1:5]}
    )
    losses = []
    for device in parts.DEVICES:
        with parts.accelerate_on(device):
            losses.append(train(encoder(folder, device), rows, tmp_path / device))
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def train(model: Any, rows: Any, folder: Path) -> list[float]:
    from sentence_transformers.sentence_transformer import losses

    device = model.device.type
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=device == "cpu",
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        loss=losses.MultipleNegativesRankingLoss(model),
    )
    assert trainer.args.device.type == device
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
