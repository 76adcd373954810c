# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Tensor and pipeline parallel training, and checkpoints, in two processes."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

_NAMES = harness.names_in(Path(__file__).with_name("model_parallel_cases.py"))


@pytest.mark.parametrize("name", _NAMES)
def test_model_parallel(outcomes, name):
    problem = outcomes("model_parallel_cases", 2)[name]
    assert not problem, problem
