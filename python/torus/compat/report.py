# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Verdicts about architectures: what counts, shares, causes."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]
Outcome = dict[str, Any]

FAILURES = ("differs", "error", "timeout", "crash")
PASSES = ("match", "random")
# How a note says its cause; what the pattern finds stands at the end of the cause.
_CAUSES: list[tuple[str, str]] = [
    (r"(aten::[\w.]+) is not implemented", "no lowering of"),
    (r"requires the (\w+) library", "needs the package"),
    (r"(too big)", "no small configuration:"),
    (r"no (small configuration) of", "not written yet:"),
    (r"(without a model class)", "configuration"),
    (r"missing \d+ required positional argument", "inputs not known: forward takes more"),
    (r"^timeout|^over \d+ s|(?:timeout) while building", "took too long"),
    (r"ended by (SIG\w+)", "process ended by"),
    (r"NotBuiltError: [^:]*: (\w+(?:Error|Exception))", "not built:"),
    (r"differs? by|integers differ|NaN or infinity|instead of", "other values"),
]


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


def without_fallback(rows: Iterable[Row], stage: str) -> int:
    """Return in how many architectures a stage agrees and no operator ran on the CPU."""
    found = (row["stages"].get(stage, {}) for row in rows)
    return sum(f.get("verdict") in PASSES and not f.get("fallbacks") for f in found)


def fallbacks(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Return the operators that ran on the CPU, with the names of architectures."""
    found: dict[str, dict[str, None]] = collections.defaultdict(dict)
    for row in rows:
        for outcome in row["stages"].values():
            for operator in outcome.get("fallbacks", ()):
                found[operator][row["name"]] = None
    return {k: list(v) for k, v in sorted(found.items(), key=lambda item: -len(item[1]))}


def cause(note: str) -> str:
    """Return the group that a failure with this note belongs to."""
    for pattern, text in _CAUSES:
        found = re.search(pattern, note)
        if found:
            return " ".join(filter(None, (text, *found.groups()))).strip()
    return re.sub(r"\d+", "N", note.split(" || ")[0])[:80] or "unknown"


def by_cause(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return names by the cause of their notes, the most frequent cause first.

    Parameters
    ----------
    pairs : iterable of (str, str)
        Name and note.
    """
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name, note in pairs:
        groups[cause(note)].append(name)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def not_run(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Return the architectures that do not run on the CPU, by cause."""
    pairs = ((row["name"], row.get("note", "")) for row in rows if not row["stages"])
    return by_cause(pairs)


def summary(rows: list[Row]) -> list[str]:
    """Return lines that say the shares."""
    ran = [row for row in rows if row["stages"]]
    lines = [f"{len(ran)} of {len(rows)} architectures run on the CPU"]
    for stage in stages(rows):
        passed, tried = share(rows, stage)
        clean = without_fallback(rows, stage)
        lines.append(
            f"{stage}: {passed} of {tried} agree ({passed / max(tried, 1):.1%}), "
            f"{clean} without a fallback ({clean / max(tried, 1):.1%})"
        )
    return lines
