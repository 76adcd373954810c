# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Models of timm classify and train on "tpu" as on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = ["resnet10t", "vit_tiny_patch16_224", "convnext_atto"]


@pytest.fixture(scope="module")
def outcome() -> dict[str, dict[str, float]]:
    """Run all models in one process of its own, with timm's folder on the path there only."""
    folder = Path(sys.prefix) / "vision"
    if not (folder / "timm").is_dir():
        pytest.skip("timm and torchvision are not installed: make build")
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("timm_cases.py")), *MODELS],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_model(outcome: dict[str, dict[str, float]], name: str) -> None:
    assert outcome[name]["scores"] < 1e-3
    assert outcome[name]["losses"] < 2e-3
    assert outcome[name]["fallbacks"] == 0
