# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Starts scripts of this folder with torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness


def torchrun(
    script: str, *arguments: str, size: int, options: tuple[str, ...] = (), **variables: str
) -> str:
    """Run ``torchrun --nproc-per-node size script arguments`` and return what it printed.

    `options` are torchrun's own; `variables` are set in the environment.

    Raises
    ------
    AssertionError
        If it did not end well.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    file = str(Path(__file__).with_name(script))
    result = subprocess.run(
        [*command, f"--nproc-per-node={size}", file, *arguments],
        env=harness.environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout
