# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Adapters of PEFT train, save, load and merge on "tpu" as on the CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

import stack_parts as parts

TOKENS = torch.arange(8, 24).reshape(2, 8)


def lora(**options: Any) -> Any:
    return peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **options
    )


def train(model: nn.Module, steps: int = 2) -> list[float]:
    device = next(model.parameters()).device
    tokens, losses = TOKENS.to(device), []
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS.to(next(model.parameters()).device)).logits.cpu()


def adapted(config: Any, device: str) -> Any:
    torch.manual_seed(0)
    model = peft.get_peft_model(parts.llama(layers=1), config).to(device)
    # A fresh LoRA changes nothing: give its second factor values.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            if "lora_B" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
    return model


CONFIGS = {
    "lora": lora(),
    "dora": lora(use_dora=True),
    "ia3": peft.IA3Config(
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    ),
    "loha": peft.LoHaConfig(r=2, alpha=4, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    "oft": peft.OFTConfig(r=0, oft_block_size=4, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    "prefix": peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    "prompt": peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_training(name: str) -> None:
    model = adapted(copy.deepcopy(CONFIGS[name]), "cpu")
    results = parts.on_both(model, lambda own, device: (train(own), parts.weights(own)))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-3)
    frozen = [key for key, value in model.named_parameters() if not value.requires_grad]
    for key in frozen:
        assert torch.equal(results[1][1][key], results[0][1][key])


def test_saving_and_loading(tmp_path: Path) -> None:
    model = adapted(lora(), "tpu")
    train(model)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").exists()
    for device in parts.DEVICES:
        again = peft.PeftModel.from_pretrained(parts.llama(layers=1).to(device), tmp_path)
        assert {value.device.type for value in again.parameters()} == {device}
        torch.testing.assert_close(logits(again), logits(model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["lora", "dora", "ia3"])
def test_merging(name: str) -> None:
    model = adapted(copy.deepcopy(CONFIGS[name]), "tpu")
    train(model)
    expected = logits(model)
    model.merge_adapter()
    torch.testing.assert_close(logits(model), expected, rtol=1e-3, atol=1e-4)
    model.unmerge_adapter()
    torch.testing.assert_close(logits(model), expected, rtol=1e-3, atol=1e-4)
    merged = model.merge_and_unload()
    assert not any("lora" in key for key, _ in merged.named_parameters())
    torch.testing.assert_close(logits(merged), expected, rtol=1e-3, atol=1e-4)


def test_several_adapters() -> None:
    model = adapted(lora(), "tpu")
    first = logits(model)
    model.add_adapter("second", lora(init_lora_weights=False))
    model.set_adapter("second")
    assert next(model.parameters()).is_tpu
    second = logits(model)
    assert not torch.allclose(first, second, atol=1e-4)
    model.set_adapter("default")
    torch.testing.assert_close(logits(model), first, rtol=1e-3, atol=1e-4)
    with model.disable_adapter():
        plain = logits(parts.llama(layers=1))
        torch.testing.assert_close(logits(model), plain, rtol=1e-3, atol=1e-4)
    model.add_weighted_adapter(["default", "second"], [0.5, 0.5], "mix", combination_type="linear")
    model.set_adapter("mix")
    assert logits(model).isfinite().all()


def test_adapter_on_a_bfloat16_model() -> None:
    model = peft.get_peft_model(parts.llama(layers=1).bfloat16().tpu(), lora())
    before = parts.weights(model)
    train(model)
    assert parts.changed(model, before) == {
        name for name, value in model.named_parameters() if value.requires_grad
    }


def test_trainer(tmp_path: Path) -> None:
    from test_trainer import losses
    from test_trainer import train as train_with_trainer

    model = peft.get_peft_model(parts.llama(layers=1), lora())
    before = parts.weights(model)
    trainer = train_with_trainer(model, tmp_path, max_steps=3, bf16=True)
    assert torch.tensor(losses(trainer)).isfinite().all()
    assert all("lora" in name for name in parts.changed(model, before))
    trainer.save_model(str(tmp_path / "adapter"))
    again = peft.PeftModel.from_pretrained(parts.llama(layers=1).tpu(), tmp_path / "adapter")
    parts.assert_same_weights(again, trainer.model, rtol=0, atol=0)
