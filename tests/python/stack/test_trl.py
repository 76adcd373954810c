# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""TRL tunes a language model on "tpu": by examples, by preferences and by rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

import stack_parts as parts


def options(folder: Path, device: str, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder / device),
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": device == "cpu",
        **more,
    }


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("adapter", [False, True])
def test_supervised_tuning(tmp_path: Path, adapter: bool) -> None:
    rows = datasets.Dataset.from_dict({"text": parts.SENTENCES})
    results = []
    for device in parts.DEVICES:
        more: dict[str, Any] = {}
        if adapter:
            peft = pytest.importorskip("peft")
            more["peft_config"] = peft.LoraConfig(r=2, target_modules=["q_proj"])
        torch.manual_seed(0)
        with parts.accelerate_on(device):
            trainer = trl.SFTTrainer(
                model=parts.llama(layers=1),
                args=trl.SFTConfig(**options(tmp_path, device), max_length=16),
                train_dataset=rows,
                processing_class=parts.generator_tokenizer(),
                **more,
            )
            trainer.train()
        assert trainer.model.device.type == device
        results.append(losses(trainer))
    assert results[1] == pytest.approx(results[0], rel=1e-2)


def test_supervised_tuning_from_a_folder(tmp_path: Path) -> None:
    folder = parts.save(parts.llama(layers=1), tmp_path / "model", parts.generator_tokenizer())
    trainer = trl.SFTTrainer(
        model=str(folder),
        args=trl.SFTConfig(**options(tmp_path, "tpu", bf16=True), packing=False, max_length=16),
        train_dataset=datasets.Dataset.from_dict({"text": parts.SENTENCES}),
    )
    trainer.train()
    assert trainer.model.device.type == "tpu"
    assert torch.tensor(losses(trainer)).isfinite().all()


def test_preferences(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict(
        {
            "prompt": ["the cat", "a dog"],
            "chosen": [" sleeps on the warm stove", " runs over the green hill"],
            "rejected": [" runs", " falls"],
        }
    )
    results = []
    for device in parts.DEVICES:
        with parts.accelerate_on(device):
            trainer = trl.DPOTrainer(
                model=parts.llama(layers=1),
                ref_model=parts.llama(layers=1),
                args=trl.DPOConfig(**options(tmp_path, device), max_length=24),
                train_dataset=rows,
                processing_class=parts.generator_tokenizer(),
            )
            trainer.train()
        results.append(losses(trainer))
    assert results[1] == pytest.approx(results[0], rel=1e-2)


def test_rewards(tmp_path: Path) -> None:
    trainer = trl.GRPOTrainer(
        model=parts.llama(layers=1),
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=trl.GRPOConfig(
            **options(tmp_path, "tpu", max_steps=1, per_device_train_batch_size=4),
            num_generations=2,
            max_completion_length=4,
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": parts.SENTENCES}),
        processing_class=parts.generator_tokenizer(),
    )
    trainer.train()
    assert trainer.model.device.type == "tpu"
    assert torch.tensor(losses(trainer)).isfinite().all()
