# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Runs cases of one process with eight virtual devices, each in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys


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
