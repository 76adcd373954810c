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


def train(
    model: nn.Module, folder: Path, resume: Any = None, callbacks: Any = None, **options: Any
) -> Any:
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, **options),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        processing_class=parts.generator_tokenizer(),
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def evaluations(trainer: Any) -> list[float]:
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def train_on_both(folder: Path, **options: Any) -> list[Any]:
    results = []
    for device in parts.DEVICES:
        with parts.accelerate_on(device):
            own = {"use_cpu": True} if device == "cpu" else {}
            trainer = train(parts.llama(layers=1), folder / device, **own, **options)
            assert trainer.args.device.type == device
            assert trainer.model.device.type == device
            trainer.evaluate()
        results.append(trainer)
    return results


def test_same_training_as_on_the_cpu(tmp_path: Path) -> None:
    expected, actual = train_on_both(tmp_path)
    assert losses(actual) == pytest.approx(losses(expected), rel=1e-3)
    parts.assert_same_weights(actual.model, expected.model, rtol=0, atol=2e-3)
    assert evaluations(actual) == pytest.approx(evaluations(expected), rel=1e-2)


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
        {"bf16": True, "gradient_checkpointing": True},
        {"bf16": True, "optim": "adamw_torch_fused"},
        {"optim": "adafactor"},
    ],
)
def test_ways_of_training(tmp_path: Path, options: dict[str, Any]) -> None:
    expected, actual = train_on_both(tmp_path, max_steps=2, **options)
    assert losses(actual) == pytest.approx(losses(expected), rel=3e-2)


def test_half_precision_is_refused(tmp_path: Path) -> None:
    """Accelerate has a list of devices for float16, and bfloat16 needs no scaler."""
    with pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
        train(parts.llama(layers=1), tmp_path, fp16=True, max_steps=1)


def test_compiled_training(tmp_path: Path) -> None:
    """``torch_compile_backend`` has a closed list of names; a model that compiles itself works."""
    model = parts.llama(layers=1)
    model.compile(backend="tpu")
    compiled = train(model, tmp_path, max_steps=2)
    expected = train(parts.llama(layers=1), tmp_path, max_steps=2)
    assert losses(compiled) == pytest.approx(losses(expected), rel=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_resuming_from_a_checkpoint(tmp_path: Path, dropout: float) -> None:
    """Four steps are the same as two, a checkpoint, and two, to the bit."""
    from torch_tpu.integrations.transformers import DeviceRandomState

    model = parts.llama(layers=1, attention_dropout=dropout)
    options = {
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "bf16": True,
        "restore_callback_states_from_checkpoint": True,
    }
    whole = train(copy.deepcopy(model), tmp_path, callbacks=[DeviceRandomState()], **options)
    checkpoint = tmp_path / "checkpoint-2"
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {
        file.name for file in checkpoint.iterdir()
    }
    resumed = train(
        copy.deepcopy(model), tmp_path, str(checkpoint), [DeviceRandomState()], **options
    )
    assert resumed.state.global_step == 4
    parts.assert_same_weights(resumed.model, whole.model, rtol=0, atol=0)


def test_checkpoint_loads_on_the_cpu(tmp_path: Path) -> None:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    train(parts.llama(layers=1), tmp_path, **options)
    with parts.accelerate_on("cpu"):
        checkpoint = str(tmp_path / "checkpoint-1")
        resumed = train(parts.llama(layers=1), tmp_path, checkpoint, use_cpu=True, **options)
    assert resumed.model.device.type == "cpu"
    assert resumed.state.global_step == 2


def test_prediction_and_best_model(tmp_path: Path) -> None:
    trainer = train(
        parts.llama(layers=1),
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


SCRIPT = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, {folder!r})
import stack_parts as parts
from test_trainer import train
given = {{"use_configured_state": True}}
trainer = train(parts.llama(layers=1), Path("out"), max_steps=2, accelerator_config=given)
assert trainer.args.world_size == 2 and trainer.args.device.type == "tpu"
torch.save(parts.weights(trainer.model), f"weights{{trainer.args.process_index}}.pt")
"""


def test_training_in_two_processes(tmp_path: Path) -> None:
    """Two processes with four rows each are one process with eight."""
    (tmp_path / "train.py").write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    parts.launch(["-m", "torch_tpu.integrations.accelerate", "train.py"], tmp_path, processes=2)
    whole = train(parts.llama(layers=1), tmp_path, max_steps=2, per_device_train_batch_size=8)
    first, second = (torch.load(tmp_path / f"weights{rank}.pt") for rank in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, parts.weights(whole.model), rtol=1e-2, atol=2e-3)
