# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Every collective of torch.distributed on tensors of two and of three processes."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

_NAMES = harness.names_in(Path(__file__).with_name("c10d_cases.py"))


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("size", [2, 3])
def test_c10d(outcomes, size, name):
    problem = outcomes("c10d_cases", size)[name]
    assert not problem, problem
