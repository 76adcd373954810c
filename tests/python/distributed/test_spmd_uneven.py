# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Eight virtual devices that do not divide the sizes of tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import names_in
from spmd_runner import run_spread

FILE = Path(__file__).with_name("spmd_uneven_cases.py")


@pytest.mark.parametrize("name", names_in(FILE))
def test_case(name: str) -> None:
    result = run_spread(str(FILE), name)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
