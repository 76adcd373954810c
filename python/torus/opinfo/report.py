# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The page that says what came out."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]

VERDICTS = ("pass", "wrong", "error", "timeout", "crash", "harness", "skipped", "nosample")
_UNCOUNTED = ("skipped", "nosample", "harness")
_INTRODUCTION = """\
# PyTorch's operator samples

Every entry of PyTorch's operator database (OpInfo) that takes the dtype on the CPU, its samples run
on device "tpu" and compared with the CPU. Written by `torus opinfo --report`.

- **wrong**: other values or gradients than the CPU's; **error**: refused.
- **skipped**: random or uninitialised results, nothing to compare. **nosample**: the CPU itself
  takes no sample (or it needs what is not installed). Neither counts in the share that passes.
- **gradient**: the gradients of a weighted sum of the results are compared too.
- **views**: every tensor of a sample is a view inside a larger buffer (transposed, stepped, sliced,
  expanded, overlapping).
- **DTensor**: the sample's tensors lie on a mesh of processes, cut evenly in up to 24 ways; each
  way is a sample here. Only those count that give the plain operator's result on the CPU with Gloo.
"""


def is_failure(row: Row) -> bool:
    """Return whether a verdict counts against the backend."""
    return row["verdict"] != "pass" and row["verdict"] not in _UNCOUNTED


def share(rows: Iterable[Row]) -> tuple[int, int]:
    """Return how many operators passed and how many were compared."""
    counted = [row for row in rows if row["verdict"] not in _UNCOUNTED]
    return sum(row["verdict"] == "pass" for row in counted), len(counted)


def title(row: Row) -> str:
    """Return the run that a verdict belongs to, such as "float32, gradient"."""
    parts = [row["dtype"]]
    parts += ["gradient"] if row["backward"] else []
    parts += ["views"] if row["views"] else []
    parts += [f"compiled for {row['target']}"] if row.get("target") else []
    parts += ["torch.compile"] if row.get("compiled") else []
    parts += [f"DTensor on {row['ranks']} processes"] if row.get("ranks") else []
    parts += ["CPU fallback allowed"] if row["fallback"] == "silent" else []
    return ", ".join(parts)


def by_run(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the verdicts of each run, in the order of their appearance."""
    runs: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        runs[title(row)].append(row)
    return dict(runs)


def render(rows: Iterable[Row], versions: str) -> str:
    """Return the page as Markdown.

    Parameters
    ----------
    rows : iterable of dict
        Fields of a `Verdict` and of the plan it was reached with.
    versions : str
        What was run, for the heading of the table.
    """
    runs = by_run(rows)
    used = [v for v in VERDICTS if any(r["verdict"] == v for run in runs.values() for r in run)]
    lines = [_INTRODUCTION, f"{versions}\n"]
    lines.append(f"| run | samples | {' | '.join(used)} | share |")
    lines.append("|---|" + "---:|" * (len(used) + 2))
    for name, run in runs.items():
        counts = collections.Counter(row["verdict"] for row in run)
        passed, compared = share(run)
        cells = " | ".join(str(counts[verdict]) for verdict in used)
        tried = sum(row["tried"] for row in run)
        lines.append(f"| {name} | {tried} | {cells} | {passed / max(compared, 1):.1%} |")
    lines += _remains(runs)
    return "\n".join(lines) + "\n"


def _remains(runs: dict[str, list[Row]]) -> list[str]:
    lines = ["", "## What remains", "", "| operator | run | verdict | passed | reason |"]
    lines.append("|---|---|---|---:|---|")
    for name, run in runs.items():
        for row in sorted(filter(is_failure, run), key=lambda row: row["op"]):
            note = row["note"].replace("|", "\\|")
            passed = f"{row['passed']}/{row['tried']}"
            lines.append(f"| `{row['op']}` | {name} | {row['verdict']} | {passed} | {note} |")
    return lines if any(is_failure(r) for run in runs.values() for r in run) else []
