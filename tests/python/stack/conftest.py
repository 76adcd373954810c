# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The libraries around PyTorch, unmodified, on device "tpu": what their tests have in common."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

# Every file builds its models with it.
collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Begin each test with fresh seeds, and leave no state of Accelerate behind."""
    torch.manual_seed(0)
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.fixture
def no_fallbacks() -> Iterator[None]:
    """Fail the test if an operator of it ran on the CPU."""
    torch.tpu.reset_metrics()
    yield
    assert torch.tpu.metrics()["fallbacks"] == {}
