# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Accelerate finds device "tpu", trains on it, and spreads models that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

accelerate = pytest.importorskip("accelerate")

import stack_parts as parts


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.second = nn.Linear(32, 32)
        self.third = nn.Linear(32, 32)
        self.fourth = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second, self.third):
            x = torch.relu(layer(x))
        return self.fourth(x)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def data() -> torch.utils.data.TensorDataset:
    torch.manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(22, 8), torch.randint(0, 3, (22,)))


def train(accelerator: Any, epochs: int = 2, clip: float = 1.0) -> tuple[nn.Module, list[float]]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(data(), batch_size=4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    for _ in range(epochs):
        for inputs, labels in loader:
            assert inputs.device.type == accelerator.device.type
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return accelerator.unwrap_model(model), losses


def on_both(**options: Any) -> list[tuple[nn.Module, list[float]]]:
    results = []
    for device in parts.DEVICES:
        with parts.accelerate_on(device):
            accelerator = accelerate.Accelerator(**options)
            assert accelerator.device.type == device
            results.append(train(accelerator))
    return results


def test_device_is_found() -> None:
    assert accelerate.Accelerator().device.type == "tpu"


@pytest.mark.parametrize("steps", [1, 3])
def test_training_and_accumulation(steps: int) -> None:
    (expected, wanted), (actual, losses) = on_both(gradient_accumulation_steps=steps)
    assert losses == pytest.approx(wanted, rel=1e-3)
    parts.assert_same_weights(actual, expected, atol=1e-4)


def test_mixed_precision() -> None:
    (_, wanted), (actual, losses) = on_both(mixed_precision="bf16")
    assert losses == pytest.approx(wanted, rel=3e-2)
    assert {value.dtype for value in actual.parameters()} == {torch.float32}


def test_half_precision_is_refused() -> None:
    """Accelerate has a list of devices for float16, and bfloat16 needs no scaler."""
    with pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
        accelerate.Accelerator(mixed_precision="fp16")


def test_saving_and_loading_the_state(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    x = torch.randn(4, 8, device=accelerator.device)

    def step() -> dict[str, torch.Tensor]:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return parts.weights(model)

    saved = step()
    accelerator.save_state(str(tmp_path))
    expected = step()
    accelerator.load_state(str(tmp_path))
    assert parts.changed(model, saved) == set()
    assert next(model.parameters()).is_tpu
    torch.testing.assert_close(step(), expected, rtol=0, atol=0)


def test_random_state_in_a_checkpoint(tmp_path: Path) -> None:
    from torch_tpu.integrations.accelerate import DeviceRandomState

    accelerator = accelerate.Accelerator()
    accelerator.register_for_checkpointing(DeviceRandomState())
    accelerator.save_state(str(tmp_path))
    expected = torch.rand(5, device="tpu")
    assert not torch.equal(torch.rand(5, device="tpu"), expected)
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.rand(5, device="tpu"), expected)


def test_saving_a_model(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator()
    model = accelerator.prepare(net())
    accelerator.save_model(model, str(tmp_path), max_shard_size="5KB")
    again = net()
    accelerate.load_checkpoint_in_model(again, str(tmp_path))
    parts.assert_same_weights(model, again, rtol=0, atol=0)


def test_gathering_and_metrics() -> None:
    accelerator = accelerate.Accelerator()
    x = torch.arange(4, device=accelerator.device)
    for result in (
        accelerator.gather(x),
        accelerator.gather_for_metrics((x, x))[0],
        accelerator.reduce(x, "sum"),
        accelerator.pad_across_processes(x),
    ):
        assert result.is_tpu
        assert result.tolist() == [0, 1, 2, 3]


# ---- models that do not fit ----


def footprint(model: nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in model.parameters())


def limits(model: nn.Module) -> dict[Any, int]:
    """Leave room on the device for two of the four layers and what passes through."""
    return {0: 3 * footprint(model) // 4, "cpu": 10 * footprint(model)}


def test_inferred_device_map() -> None:
    places = accelerate.infer_auto_device_map(net(), max_memory=limits(net()))
    assert set(places.values()) == {0, "cpu"}


def test_dispatch_with_a_part_on_the_host() -> None:
    model = net()
    x = torch.randn(5, 8)
    expected = model(x)
    places = accelerate.infer_auto_device_map(model, max_memory=limits(model))
    spread = accelerate.dispatch_model(model, places, main_device=0)
    on_device = [key for key, value in spread.named_parameters() if value.is_tpu]
    assert on_device
    # What the host keeps is held back until it is needed, and then computed on the device.
    assert any(value.device.type == "meta" for value in spread.parameters())
    result = spread(x.to("tpu"))
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["cpu", "disk"])
def test_offload(way: str, tmp_path: Path) -> None:
    model, x = net(), torch.randn(5, 8)
    expected = model(x)
    if way == "cpu":
        model = accelerate.cpu_offload(model, execution_device=torch.device("tpu"))
    else:
        model = accelerate.disk_offload(model, str(tmp_path), execution_device="tpu")
    torch.tpu.reset_metrics()
    result = model(x)
    assert torch.tpu.metrics()["operators"] > 0
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_offload_of_whole_models() -> None:
    model, x = net(), torch.randn(5, 8)
    expected = model(x)
    model, hook = accelerate.cpu_offload_with_hook(model, execution_device="tpu")
    result = model(x)
    assert result.is_tpu
    assert next(model.parameters()).is_tpu
    hook.offload()
    assert next(model.parameters()).device.type == "cpu"
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_empty_weights_and_checkpoint(tmp_path: Path) -> None:
    model = net()
    accelerate.Accelerator().save_model(model, str(tmp_path), max_shard_size="5KB")
    with accelerate.init_empty_weights():
        hollow = Net()
    loaded = accelerate.load_checkpoint_and_dispatch(hollow, str(tmp_path), device_map={"": 0})
    assert all(value.is_tpu for value in loaded.parameters())
    parts.assert_same_weights(loaded, model, rtol=0, atol=0)


def test_transformers_with_a_part_on_the_host(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = parts.llama()
    model.save_pretrained(tmp_path)
    places = {
        "model.embed_tokens": "tpu",
        "model.layers.0": "tpu",
        "model.layers.1": "cpu",
        "model.norm": "tpu",
        "model.rotary_emb": "tpu",
        "lm_head": "tpu",
    }
    spread = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map=places)
    tokens = torch.arange(8, 16).reshape(1, 8)
    with torch.no_grad():
        expected = model(tokens).logits
        actual = spread(tokens.to("tpu")).logits
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-3, atol=1e-4)


# ---- launching ----

SCRIPT = """
import json, sys
import torch
import accelerate
from torch import nn
sys.path.insert(0, {folder!r})
from test_accelerate import train
accelerator = accelerate.Accelerator(mixed_precision={precision!r})
model, losses = train(accelerator)
x = torch.full((2,), float(accelerator.process_index), device=accelerator.device)
report = dict(
    device=str(accelerator.device.type),
    processes=accelerator.num_processes,
    losses=losses,
    gathered=accelerator.gather(x).tolist(),
    weight=model.fourth.weight.float().sum().item(),
)
accelerator.wait_for_everyone()
with open(sys.argv[1] + str(accelerator.process_index), "w") as file:
    json.dump(report, file)
"""


def launch(
    command: list[str], folder: Path, processes: int, launcher: str, precision: str = "no"
) -> list[dict[str, Any]]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), precision=precision))
    parts.launch([*command, str(script), str(folder / "report")], folder, processes, launcher)
    return [json.loads(file.read_text()) for file in sorted(folder.glob("report*"))]


def test_launch_of_one_process(tmp_path: Path) -> None:
    (report,) = launch([], tmp_path, 1, "accelerate")
    assert report["device"] == "tpu"
    _, losses = train(accelerate.Accelerator())
    assert report["losses"] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("launcher", ["accelerate for several", "torchrun"])
def test_launch_of_two_processes(tmp_path: Path, launcher: str) -> None:
    reports = launch(["-m", "torch_tpu.integrations.accelerate"], tmp_path, 2, launcher)
    assert len(reports) == 2
    for report in reports:
        assert report["device"] == "tpu"
        assert report["processes"] == 2
        assert report["gathered"] == [0.0, 0.0, 1.0, 1.0]
    assert reports[0]["weight"] == reports[1]["weight"]
    assert reports[0]["losses"] != reports[1]["losses"]


def test_device_by_the_number_of_the_process(run_python: Any) -> None:
    """A launched process with one device may call it by its own number."""
    code = "import torch; print(torch.ones(1, device='tpu:3').device, end='')"
    assert run_python(code, env={"LOCAL_RANK": "3"}).stdout == "tpu:0"
    refused = run_python(code, env={"LOCAL_RANK": "2"}, check=False)
    assert "device tpu:3 does not exist" in refused.stderr
