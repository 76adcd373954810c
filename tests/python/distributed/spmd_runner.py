# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Runs cases of one process with eight virtual devices, each in an interpreter of its own."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path


def cases(file: Path) -> list[str]:
    """Return the names of the functions marked as cases."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [b.split("(")[0][4:] for a, b in itertools.pairwise(lines) if a == "@case"]


def run_spread(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with eight devices; an operator that falls back to the host is an error."""
    own = {"TORUS_PLATFORM": "cpu", "TORUS_CPU_DEVICES": "8", "TORUS_FALLBACK": "error"}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=500,
    )
