# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Distributed tensors: placements, operators and random numbers."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

_NAMES = harness.names_in(Path(__file__).with_name("dtensor_cases.py"))


@pytest.mark.parametrize("name", _NAMES)
def test_dtensor(outcomes, name):
    problem = outcomes("dtensor_cases", 2)[name]
    assert not problem, problem
