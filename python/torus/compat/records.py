# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Verdicts as files: the newest of each backend and mode in full, all runs in a summary."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from torus.compat import report

Row = dict[str, Any]

_HISTORY = "history.json"
# What all rows of a record share, or nobody looks up.
_DROPPED = frozenset(["mode", "inputs", "seconds", "verdict"])
_PACKAGES = ("torus-tpu", "torch", "transformers", "diffusers")


@dataclasses.dataclass
class Record:
    """One run.

    Attributes
    ----------
    label : str
        What was run, such as "torus".
    mode : str
        "eager", "strict" or "compile".
    date : str
        Day of the run, as ISO 8601 writes it.
    versions : dict of str to str
        By package.
    rows : list of dict
        What the worker found for each architecture.
    note : str
        What else the reader should know of the run.
    """

    label: str
    mode: str
    date: str
    versions: dict[str, str]
    rows: list[Row]
    note: str = ""

    @property
    def title(self) -> str:
        """Label and mode, for a heading."""
        return self.label if self.mode == "eager" else f"{self.label}, {self.mode}"


def make(rows: Iterable[Row], label: str, mode: str, note: str = "") -> Record:
    """Return a record of today with the versions that are installed."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    if label != "torus":
        versions.pop("torus-tpu", None)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    kept = [{k: v for k, v in row.items() if k not in _DROPPED} for row in rows]
    return Record(label, mode, today, versions, sorted(kept, key=lambda row: row["name"]), note)


def save(folder: pathlib.Path, record: Record) -> None:
    """Write a record and its line of the history.

    Parameters
    ----------
    folder : pathlib.Path
        Made if need be.
    record : Record
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {k: v for k, v in dataclasses.asdict(record).items() if k != "rows"}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in record.rows)
    head = json.dumps(about)[:-1]
    name = re.sub(r"[^a-z0-9.]+", "-", f"{record.label}-{record.mode}".lower())
    path = folder / f"{name}.json"
    path.write_text(f'{head}, "rows": [\n{lines}\n]}}\n', "utf-8")
    runs = [run for run in history(folder) if _same_run(run, about) is False]
    runs.append({**about, "shares": shares(record)})
    text = ",\n".join(json.dumps(run) for run in sorted(runs, key=lambda run: run["date"]))
    (folder / _HISTORY).write_text(f"[\n{text}\n]\n", "utf-8")


def _same_run(run: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(run[k] == other[k] for k in ("label", "mode", "date"))


def shares(record: Record) -> dict[str, list[int]]:
    """Return by stage: architectures that agree, without a fallback, and all that have it."""
    found = {}
    for stage in report.stages(record.rows):
        passed, tried = report.share(record.rows, stage)
        if tried:
            found[stage] = [passed, report.without_fallback(record.rows, stage), tried]
    return found


def on_the_same(record: Record, other: Record) -> Record:
    """Return of a record what another one has too, for shares side by side."""
    counted = (*report.PASSES, *report.FAILURES)
    wanted = {
        (row["name"], stage)
        for row in other.rows
        for stage, found in row["stages"].items()
        if found["verdict"] in counted
    }
    rows = []
    for row in record.rows:
        stages = {k: v for k, v in row["stages"].items() if (row["name"], k) in wanted}
        rows += [{**row, "stages": stages}] if stages else []
    title = f"{record.label}, where {other.label} was run"
    return dataclasses.replace(record, label=title, rows=rows)


def load(folder: pathlib.Path) -> list[Record]:
    """Return the newest record of each backend and mode, those of Torus first."""
    found = []
    for path in sorted(folder.glob("*.json")):
        if path.name != _HISTORY:
            found.append(Record(**json.loads(path.read_text("utf-8"))))
    return sorted(found, key=lambda record: (record.label != "torus", record.label, record.mode))


def history(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the summaries of all runs, the oldest first."""
    path = folder / _HISTORY
    return json.loads(path.read_text("utf-8")) if path.exists() else []
