# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""`torch_tpu.compat`: opt-in, never in front of a real torch_xla, and plain about what it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_it_is_not_there_unless_asked_for(run_python) -> None:
    code = "import importlib.util, torch; print(importlib.util.find_spec('torch_xla'))"
    assert run_python(code).stdout.strip() == "None"


def test_enable(run_python) -> None:
    code = """
import os, sys
from torch_tpu import compat
compat.enable()
compat.enable()
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
from transformers.utils import is_torch_xla_available
assert not is_torch_xla_available()
assert sum("compat" in entry for entry in sys.path) == 1
assert xm.xla_device() == torch_xla.device() == torch.device("tpu")
said = []
xm.add_step_closure(said.append, args=(1,))
assert said == []
xm.mark_step()
assert said == [1]
info = xm.get_memory_info(xm.xla_device())
assert info["bytes_limit"] > 0
assert xm.do_on_ordinals(lambda x: x.device.type, (torch.ones(1, device="tpu"),)) == "cpu"
for place, name in ((xm, "send"), (torch_xla, "_XLAC"), (xr, "nothing")):
    try:
        getattr(place, name)
    except AttributeError as error:
        assert "docs/migrating.md" in str(error) and name in str(error), error
    else:
        raise AssertionError(name)
"""
    run_python(code)


def test_a_real_torch_xla_wins(run_python, tmp_path: Path) -> None:
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla" / "__init__.py").write_text("REAL = True\n")
    code = "import sys; sys.path.insert(0, '.'); from torch_tpu import compat; compat.enable()"
    result = run_python(code, check=False)
    assert result.returncode == 1
    assert "ImportError: A real torch_xla is installed" in result.stderr


def test_files_of_the_real_serialization_are_read(run_python, tmp_path: Path) -> None:
    code = """
import os, torch
from torch_tpu import compat
compat.enable()
import torch_xla.utils.serialization as xser
os.mkdir("old.pt.tensors")
torch.save(torch.arange(3.0), "old.pt.tensors/tensor_0.pt")
torch.save({"w": xser.TensorReference(0), "step": 5}, "old.pt")
loaded = xser.load("old.pt")
assert loaded["step"] == 5 and loaded["w"].tolist() == [0, 1, 2]
"""
    run_python(code)


@pytest.mark.parametrize("arguments", [["program.py", "a", "b"], ["-m", "program", "a", "b"]])
def test_command_line(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 3\n")
    (tmp_path / "program.py").write_text(
        "import sys, neighbour, torch_xla\n"
        "print(__name__, sys.argv[1:], neighbour.VALUE, torch_xla.device())\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "torch_tpu.compat", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "__main__ ['a', 'b'] 3 tpu\n"


def test_help() -> None:
    command = [sys.executable, "-m", "torch_tpu.compat", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0
    assert "usage: python -m torch_tpu.compat" in result.stdout
