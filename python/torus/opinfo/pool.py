# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Spread operators over child processes, so that a crash costs one verdict."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torus import workers
from torus.opinfo.judge import Plan, Verdict

Row = dict[str, Any]

_WORKER = [sys.executable, "-m", "torus.opinfo.worker"]
# What a child may take beyond the limit that it watches itself, stuck in native code; generous,
# because the first answer includes the start of the interpreter.
_GRACE_SECONDS = 120


def run(
    plan: Plan,
    operators: Iterable[tuple[int, str]],
    on_row: Callable[[Row], None],
    *,
    jobs: int = 1,
    seconds: int = 60,
    fallback: str = "error",
) -> None:
    """Judge operators in child processes.

    Parameters
    ----------
    plan : Plan
    operators : iterable of (int, str)
        Position in ``judge.entries(plan.dtype)``, and name.
    on_row : callable
        Called with every verdict as it comes, from several threads but never at once.
    jobs : int
        Processes at a time.
    seconds : int
        Limit for one operator.
    fallback : str
        "error" or "silent": what happens to operators that have no lowering.
    """
    names = {str(index): name for index, name in operators}
    settings = json.dumps({**dataclasses.asdict(plan), "seconds": seconds})

    def start() -> workers.Worker:
        environment = {"TORUS_FALLBACK": fallback}
        if plan.target:
            environment["TORUS_CACHE"] = "0"  # a program from disk comes without its text
        patience = (3 if plan.ranks else 1) * seconds + _GRACE_SECONDS
        return workers.Worker([*_WORKER, settings], patience, environment, start='{"op"')

    def on_lost(request: str, error: workers.LostError) -> Row:
        verdict = Verdict(names[request], error.verdict, 0, 1, str(error))
        return {**dataclasses.asdict(verdict), "seconds": 0.0, "fallbacks": []}

    workers.run(names, start, on_row, on_lost, jobs=jobs)
