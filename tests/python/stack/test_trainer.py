# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""``transformers.Trainer`` trains on "tpu" without being told, and goes on from a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import stack_parts as parts


class Rows(torch.utils.data.Dataset):
    """Sixteen rows of eight tokens."""

    def __init__(self) -> None:
        self.tokens = torch.randint(7, 30, (16, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def arguments(folder: Path, **options: Any) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "per_device_train_batch_size": 4,
            "max_steps": 4,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            **options,
        },
    )


def train(model: nn.Module, folder: Path, resume: Any = None, **options: Any) -> Any:
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, **options),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        processing_class=parts.generator_tokenizer(),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def train_on_both(folder: Path, **options: Any) -> list[Any]:
    results = []
    for device in parts.DEVICES:
        trainer = train(parts.llama(), folder / device, use_cpu=device == "cpu", **options)
        assert trainer.args.device.type == device
        assert trainer.model.device.type == device
        results.append(trainer)
    return results


def test_same_training_as_on_the_cpu(tmp_path: Path) -> None:
    expected, actual = train_on_both(tmp_path)
    assert losses(actual) == pytest.approx(losses(expected), rel=1e-3)
    parts.assert_same_weights(actual.model, expected.model, rtol=0, atol=2e-3)
    assert actual.evaluate()["eval_loss"] == pytest.approx(
        expected.evaluate()["eval_loss"], rel=1e-2
    )


def test_accumulation_clipping_and_schedule(tmp_path: Path) -> None:
    expected, actual = train_on_both(
        tmp_path,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        weight_decay=0.1,
    )
    assert losses(actual) == pytest.approx(losses(expected), rel=1e-3)
    norms = [
        [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
        for trainer in (actual, expected)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


@pytest.mark.parametrize(
    "options",
    [
        {"bf16": True},
        {"bf16": True, "gradient_checkpointing": True},
        {"optim": "adafactor"},
        {"optim": "sgd"},
        {"optim": "adamw_torch_fused"},
    ],
)
def test_ways_of_training(tmp_path: Path, options: dict[str, Any]) -> None:
    expected, actual = train_on_both(tmp_path, max_steps=3, **options)
    assert losses(actual) == pytest.approx(losses(expected), rel=3e-2)


def test_half_precision_with_a_scaler(tmp_path: Path) -> None:
    trainer = train(parts.llama(), tmp_path, fp16=True, max_steps=3)
    assert trainer.args.device.type == "tpu"
    assert all(torch.tensor(losses(trainer)).isfinite())


def test_compiled_training(tmp_path: Path) -> None:
    trainer = train(
        parts.llama(), tmp_path, torch_compile=True, torch_compile_backend="tpu", max_steps=2
    )
    expected = train(parts.llama(), tmp_path, max_steps=2)
    assert losses(trainer) == pytest.approx(losses(expected), rel=1e-2)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_resuming_from_a_checkpoint(tmp_path: Path, dropout: float) -> None:
    """Four steps are the same as two, a checkpoint, and two; without dropout to the bit."""
    model = parts.llama(attention_dropout=dropout)
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "bf16": True}
    whole = train(copy.deepcopy(model), tmp_path, **options)
    checkpoint = tmp_path / "checkpoint-2"
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {
        file.name for file in checkpoint.iterdir()
    }
    resumed = train(copy.deepcopy(model), tmp_path, resume=str(checkpoint), **options)
    assert resumed.state.global_step == 4
    if dropout == 0:
        parts.assert_same_weights(resumed.model, whole.model, rtol=0, atol=0)
    else:
        assert losses(resumed)[-1] == pytest.approx(losses(whole)[-1], rel=0.2)


def test_checkpoint_loads_on_the_cpu(tmp_path: Path) -> None:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    train(parts.llama(), tmp_path, **options)
    resumed = train(
        parts.llama(), tmp_path, resume=str(tmp_path / "checkpoint-1"), use_cpu=True, **options
    )
    assert resumed.model.device.type == "cpu"
    assert resumed.state.global_step == 2


def test_prediction_and_best_model(tmp_path: Path) -> None:
    trainer = train(
        parts.llama(),
        tmp_path,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
    )
    assert trainer.state.best_model_checkpoint is not None
    output = trainer.predict(Rows())
    assert output.predictions.shape == (16, 8, 64)
