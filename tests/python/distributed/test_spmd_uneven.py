# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Eight virtual devices that do not divide the sizes of tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from spmd_runner import cases, run_spread

FILE = Path(__file__).with_name("spmd_uneven_cases.py")


@pytest.mark.parametrize("name", cases(FILE))
def test_case(name: str) -> None:
    result = run_spread(str(FILE), name)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
