# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Processes that end while the group's threads still have something to drop."""

from __future__ import annotations

from torchrun import torchrun


def test_end_right_after_a_collective() -> None:
    for _ in range(3):  # whether a thread is late is chance
        torchrun("exit_job.py", size=2)
