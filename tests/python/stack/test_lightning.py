# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Lightning's Trainer and Fabric train on "tpu" through the adapter's public registrations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

lightning = pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")

import stack_parts as parts
from lightning_fabric import Fabric
from torch_tpu.integrations.lightning import TpuAccelerator, fabric_strategy, trainer_strategy


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.seen: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        assert inputs.device.type == self.device.type
        loss = nn.functional.cross_entropy(self.body(inputs), labels)
        self.log("loss", loss)
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, labels = batch
        self.log("score", (self.body(inputs).argmax(-1) == labels).float().mean())

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.body(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loader() -> torch.utils.data.DataLoader:
    torch.manual_seed(1)
    rows = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randint(0, 3, (16,)))
    return torch.utils.data.DataLoader(rows, batch_size=4)


def trainer(folder: Path, **options: Any) -> Any:
    return lightning.Trainer(
        default_root_dir=str(folder),
        **{
            "max_epochs": 2,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            **options,
        },
    )


def fit(folder: Path, **options: Any) -> Net:
    model = Net()
    trainer(folder, **options).fit(model, loader(), loader())
    return model


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("32-true", 1e-3), ("bf16-mixed", 5e-2), ("bf16-true", 0.1)]
)
def test_trainer(tmp_path: Path, precision: str, tolerance: float) -> None:
    expected = fit(tmp_path, accelerator="cpu", devices=1)
    actual = fit(tmp_path, strategy=trainer_strategy(precision=precision))
    assert len(actual.seen) == 8
    assert actual.seen == pytest.approx(expected.seen, rel=tolerance)


def test_trainer_by_names(tmp_path: Path) -> None:
    made = trainer(tmp_path, accelerator="torus", strategy="single_torus", devices=1)
    assert isinstance(made.accelerator, TpuAccelerator)
    model = Net()
    made.fit(model, loader())
    assert made.strategy.root_device == torch.device("tpu:0")
    (scores,) = made.validate(model, loader(), verbose=False)
    assert 0 <= scores["score"] <= 1
    predictions = made.predict(model, loader())
    assert predictions[0].shape == (4, 3)


def test_scaler_clipping_and_accumulation(tmp_path: Path) -> None:
    model = fit(
        tmp_path,
        strategy=trainer_strategy(precision="16-mixed"),
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
    )
    assert torch.tensor(model.seen).isfinite().all()


def test_checkpoints(tmp_path: Path) -> None:
    options = {"strategy": trainer_strategy(), "enable_checkpointing": True}
    made, model = trainer(tmp_path, max_epochs=1, **options), Net()
    made.fit(model, loader())
    made.save_checkpoint(tmp_path / "one.ckpt")
    again = Net()
    trainer(tmp_path, strategy=trainer_strategy()).fit(
        again, loader(), ckpt_path=str(tmp_path / "one.ckpt")
    )
    whole = fit(tmp_path, strategy=trainer_strategy())
    assert again.seen == pytest.approx(whole.seen[4:], rel=1e-4)
    on_cpu = Net.load_from_checkpoint(tmp_path / "one.ckpt", map_location="cpu")
    assert on_cpu.device.type == "cpu"


def train_with_fabric(fabric: Any) -> list[float]:
    fabric.launch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    losses = []
    for inputs, labels in fabric.setup_dataloaders(loader()):
        assert inputs.device == fabric.device
        loss = nn.functional.cross_entropy(model(inputs), labels)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("32-true", 1e-3), ("bf16-mixed", 5e-2), ("16-mixed", 5e-2)]
)
def test_fabric(precision: str, tolerance: float) -> None:
    expected = train_with_fabric(Fabric(accelerator="cpu", devices=1))
    fabric = Fabric(strategy=fabric_strategy(precision=precision))
    assert fabric.device == torch.device("tpu:0")
    assert train_with_fabric(fabric) == pytest.approx(expected, rel=tolerance)


def test_saving_with_fabric(tmp_path: Path) -> None:
    fabric = Fabric(accelerator="torus", strategy="single_torus", devices=1)
    model = fabric.setup(nn.Linear(3, 2))
    state = {"model": model, "step": 7}
    fabric.save(tmp_path / "state.pt", state)
    with torch.no_grad():
        wanted = model.weight.clone()
        model.weight.zero_()
    state["step"] = 0
    fabric.load(tmp_path / "state.pt", state)
    assert state["step"] == 7
    assert torch.equal(model.weight, wanted)


def test_what_the_adapter_refuses() -> None:
    with pytest.raises(ValueError, match="precision='8' is none of 32-true"):
        trainer_strategy(precision="8")
    with pytest.raises(ValueError, match="devices tpu"):
        TpuAccelerator.parse_devices([99])
    assert TpuAccelerator.parse_devices("1") == TpuAccelerator.parse_devices("0,") == [0]


SCRIPT = """
import json, sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import torch
from test_lightning import Net, loader, trainer, trainer_strategy
model = Net()
made = trainer(Path("."), strategy=trainer_strategy(processes=2))
made.fit(model, loader())
assert model.device.type == "cpu" or model.device.type == "tpu"
total = sum(value.detach().sum().item() for value in model.parameters())
report = dict(world=made.world_size, seen=len(model.seen), total=total)
open(f"report{{made.global_rank}}.json", "w").write(json.dumps(report))
"""


def test_trainer_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    parts.launch(["train.py"], tmp_path, processes=2)
    reports = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("report*.json"))]
    assert [report["world"] for report in reports] == [2, 2]
    assert [report["seen"] for report in reports] == [4, 4]
    assert reports[0]["total"] == reports[1]["total"]
