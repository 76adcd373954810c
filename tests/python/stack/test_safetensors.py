# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Files of safetensors are written from the device and read to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

safetensors = pytest.importorskip("safetensors")

from safetensors.torch import load, load_file, load_model, save, save_file, save_model
from torch_tpu.integrations import safetensors as adapter

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    values = {str(dtype): (8 * torch.randn(3, 5)).to(dtype) for dtype in DTYPES}
    return {**values, "empty": torch.zeros(0, 4), "number": torch.tensor(7.0)}


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        own = actual[name]
        assert own.is_tpu
        assert (own.dtype, own.shape) == (value.dtype, value.shape)
        whole = own.cpu().contiguous().view(-1).view(torch.uint8) if value.ndim else own.cpu()
        wanted = value.contiguous().view(-1).view(torch.uint8) if value.ndim else value
        assert torch.equal(whole, wanted)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safetensors") / "all.safetensors"
    save_file(tensors(), path, metadata={"format": "pt"})
    return path


# Its reader knows devices by a list of names; a number stands for the accelerator.
@pytest.mark.parametrize("read", [lambda path: load_file(path, device=0), adapter.load_file])
def test_loading(file: Path, read: Callable[[Path], dict[str, torch.Tensor]]) -> None:
    assert_same(read(file), tensors())


def test_reading_one_by_one(file: Path) -> None:
    with safetensors.safe_open(file, framework="pt", device=0) as reader:
        assert set(reader.keys()) == set(tensors())
        assert_same({name: reader.get_tensor(name) for name in tensors()}, tensors())
        part = reader.get_slice(str(torch.float32))
        assert part.get_shape() == [3, 5]
        assert torch.equal(part[1:, :2].cpu(), tensors()[str(torch.float32)][1:, :2])
        assert reader.metadata() == {"format": "pt"}
    with adapter.safe_open(file, device="tpu:0") as reader:
        assert reader.get_tensor(str(torch.int64)).device == torch.device("tpu:0")


def test_adapter_refuses_other_devices(file: Path) -> None:
    with pytest.raises(ValueError, match="device tpu"):
        adapter.load_file(file, device="cpu")


def test_saving_from_the_device(tmp_path: Path) -> None:
    on_device = {name: value.to("tpu") for name, value in tensors().items()}
    save_file(on_device, tmp_path / "own.safetensors")
    assert_same(load_file(tmp_path / "own.safetensors", device=0), tensors())
    again = load(save(on_device))
    assert {value.device.type for value in again.values()} == {"cpu"}
    assert_same({name: value.to("tpu") for name, value in again.items()}, tensors())


def test_shared_memory_is_noticed(tmp_path: Path) -> None:
    x = torch.arange(6.0, device="tpu")
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"a": x, "b": x}, tmp_path / "shared.safetensors")


def test_whole_models(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).tpu()
    model[1].weight = model[0].weight
    save_model(model, str(tmp_path / "model.safetensors"))
    other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).tpu()
    other[1].weight = other[0].weight
    assert load_model(other, str(tmp_path / "model.safetensors")) == (set(), [])
    for actual, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(actual, expected)
