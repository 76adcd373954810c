# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The benchmarks run and write their page; what they measure is not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORUS_BENCH_")}
    return subprocess.run(
        [sys.executable, str(RUN), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
        check=False,
    )


def test_list() -> None:
    done = run("--list")
    assert done.returncode == 0
    assert "mlp_sgd" in done.stdout.split()
    assert run("--cases", "no_such_case").returncode == 2


@pytest.mark.slow
def test_quick(tmp_path: Path) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    done = run(
        "--quick", "--memory-steps", "60", "--out", str(page), "--json", str(figures)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    for case, results in found["results"].items():
        assert "torus fused" in results, case
        for name, result in results.items():
            assert "error" not in result, (case, name, result)
            assert len(result["seconds"]) == 2
    assert found["results"]["mlp_adamw_captured"]["torus fused"]["launches_per_unit"] == 1
    assert found["extras"]["second_process"]["compilations"][1] == 0
    assert "growth" in found["extras"]["memory"]
    text = page.read_text()
    assert "| MLP training step, AdamW |" in text
    assert "failed" not in text
