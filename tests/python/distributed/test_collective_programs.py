# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Collectives as programs: run on eight virtual devices, compiled for TPUs that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import names_in
from spmd_runner import run_spread
from torch_tpu.aot import hlo, topologies
from torch_tpu.distributed import programs

FILE = Path(__file__).with_name("collective_cases.py")


@pytest.mark.parametrize("name", names_in(FILE))
def test_case(name: str) -> None:
    result = run_spread(str(FILE), name)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]


@pytest.mark.parametrize(("topology", "size"), [("v6e:2x2", 4), ("tpu7x:2x2x1", 8)])
def test_the_tpu_compiler_takes_them(topology: str, size: int) -> None:
    if not topologies.is_available():
        pytest.skip("libtpu is not installed (pip install libtpu; no TPU is needed)")
    ring = [(k, (k + 1) % size) for k in range(size)]
    for kind in programs.KINDS:
        collective = programs.Collective(
            kind, torch.float32, 1024, size, pairs=ring if kind == "permute" else ()
        )
        compiled = programs.compile_for(collective, topology)
        assert hlo.Module(compiled.optimized).collective_counts(), kind
