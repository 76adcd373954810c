# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Attention over several processes, and collectives in compiled functions."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

_NAMES = harness.names_in(Path(__file__).with_name("context_cases.py"))


@pytest.mark.parametrize("name", _NAMES)
def test_context(outcomes, name):
    problem = outcomes("context_cases", 2)[name]
    assert not problem, problem
