# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Data parallel and sharded training in two processes."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

_NAMES = harness.names_in(Path(__file__).with_name("data_parallel_cases.py"))


@pytest.mark.parametrize("name", _NAMES)
def test_data_parallel(outcomes, name):
    problem = outcomes("data_parallel_cases", 2)[name]
    assert not problem, problem
