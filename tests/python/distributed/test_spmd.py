# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""One process, eight virtual devices, one program on all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import names_in
from spmd_runner import run_spread
from torch_tpu.distributed.pictures import visualize_sharding

FILE = Path(__file__).with_name("spmd_cases.py")


@pytest.mark.parametrize("name", names_in(FILE))
def test_case(name: str) -> None:
    result = run_spread(str(FILE), name)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert "sharding_propagation" not in result.stderr


PICTURES = """
import torch
from torch.distributed.tensor import Replicate, Shard
from torch_tpu.distributed import spmd

mesh = spmd.init_mesh((2, 4), ("data", "model"))
x = spmd.distribute_tensor(torch.zeros(16, 8), mesh, [Shard(0), Shard(1)])
torch.tpu.visualize_sharding(x, "picture.svg")
torch.tpu.visualize_sharding(spmd.distribute_tensor(torch.zeros(8), mesh, [Replicate(), Shard(0)]))
torch.tpu.visualize_sharding(spmd.distribute_tensor(torch.zeros(8), mesh))
cube = spmd.init_mesh((2, 2, 2), ("a", "b", "c"))
y = spmd.distribute_tensor(torch.zeros(2, 2, 2, dtype=torch.bfloat16), cube, [Shard(0), Shard(1),
                                                                             Shard(2)])
torch.tpu.visualize_sharding(y)
"""
DRAWN = """\
float32[16, 8] on 8 devices: dimension 0 in 2, dimension 1 in 4
+---+---+---+---+
| 0 | 1 | 2 | 3 |
+---+---+---+---+
| 4 | 5 | 6 | 7 |
+---+---+---+---+
float32[8] on 8 devices: dimension 0 in 4
+-----+
| 0,4 |
+-----+
| 1,5 |
+-----+
| 2,6 |
+-----+
| 3,7 |
+-----+
float32[8] on 8 devices: all of it on each
+-----+
| 0-7 |
+-----+
bfloat16[2, 2, 2] on 8 devices: dimension 0 in 2, dimension 1 in 2, dimension 2 in 2
dimension 2: part 0
+---+---+
| 0 | 2 |
+---+---+
| 4 | 6 |
+---+---+
dimension 2: part 1
+---+---+
| 1 | 3 |
+---+---+
| 5 | 7 |
+---+---+
"""


def test_pictures_show_who_holds_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_spread("-c", PICTURES)
    assert result.returncode == 0, result.stderr
    assert result.stdout == DRAWN
    picture = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert picture.count("<rect") == 8
    assert ">7</text>" in picture


def test_a_tensor_on_one_device_is_drawn_too(capsys: pytest.CaptureFixture[str]) -> None:
    text = visualize_sharding(torch.zeros(3, device="tpu"), show=False)
    assert text == "float32[3] on tpu:0\n+---+\n| 0 |\n+---+"
    assert capsys.readouterr().out == ""
