# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Gives each test file the outcome of its cases, run once in several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness

Outcomes = Callable[[str, int], "dict[str, str]"]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return a function from a file of cases and a number of ranks to what went wrong."""
    known: dict[tuple[str, int], dict[str, str]] = {}

    def run(name: str, size: int) -> dict[str, str]:
        if (name, size) not in known:
            folder = tmp_path_factory.mktemp(name)
            file = Path(__file__).with_name(f"{name}.py")
            known[name, size] = harness.run_cases(file, size, folder)
        return known[name, size]

    return run
