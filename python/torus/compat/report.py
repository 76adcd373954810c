# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Verdicts about architectures: what counts, shares, and the pages that say so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]
Outcome = dict[str, Any]

FAILURES = ("differs", "error", "timeout", "crash")
PASSES = ("match", "random")


def failures(row: Row) -> Iterator[tuple[str, Outcome]]:
    """Yield the stages of an architecture that count against the backend."""
    for stage, found in row["stages"].items():
        if found["verdict"] in FAILURES:
            yield stage, found


def is_failure(row: Row) -> bool:
    """Return whether any stage counts against the backend."""
    return any(True for _ in failures(row))


def share(rows: Iterable[Row], stage: str) -> tuple[int, int]:
    """Return in how many architectures a stage agrees, and how many have it and run on the CPU."""
    verdicts = [row["stages"][stage]["verdict"] for row in rows if stage in row["stages"]]
    passed = sum(verdict in PASSES for verdict in verdicts)
    return passed, passed + sum(verdict in FAILURES for verdict in verdicts)


def stages(rows: Iterable[Row]) -> list[str]:
    """Return all stages, in the order of their appearance."""
    return list(dict.fromkeys(stage for row in rows for stage in row["stages"]))


def without_fallback(rows: Iterable[Row], stage: str) -> tuple[int, int]:
    """Return in how many of the architectures that agree no operator ran on the CPU."""
    agreeing = [
        row["stages"][stage]
        for row in rows
        if row["stages"].get(stage, {}).get("verdict") in PASSES
    ]
    return sum(not found.get("fallbacks") for found in agreeing), len(agreeing)


def summary(rows: list[Row]) -> list[str]:
    """Return lines that say the shares."""
    ran = [row for row in rows if row["stages"]]
    lines = [f"{len(ran)} of {len(rows)} architectures run on the CPU"]
    for stage in stages(rows):
        passed, tried = share(rows, stage)
        clean, _ = without_fallback(rows, stage)
        lines.append(
            f"{stage}: {passed} of {tried} agree ({passed / max(tried, 1):.1%}), "
            f"{clean} without a fallback ({clean / max(tried, 1):.1%})"
        )
    return lines
