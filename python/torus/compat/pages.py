# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The pages about compatibility: one of Markdown to read, one of HTML to search."""

from __future__ import annotations

import importlib.resources
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from torus.compat import records, report
from torus.compat.records import Record

_DATA = ("data", "compatibility")
_NAMED = 8
_INTRODUCTION = """\
# Compatibility

Every model type of Transformers, every model class and scheduler and the main pipelines of
Diffusers, made small with random weights, run on device "tpu" and compared with the CPU: same
weights, same inputs. Written by `torus compat --report docs`;
[compatibility.html](compatibility.html) is the same to search and sort.

- **forward**: every tensor of the result agrees within 0.1 % of the greatest number in it (or is as
  near to float64 as the CPU's float32 is), every integer exactly. **generate**: the tokens of a
  greedy generation. **train**: gradients and parameters after one step of gradient descent, in
  evaluation mode so that no dropout is drawn. **denoise**: the loop of a scheduler or of a whole
  pipeline.
- Shares are of the architectures that run on the CPU. What does not is listed at the end: most of
  it is written for packages that are not installed here, or its inputs are not known to this
  harness.
- **without fallback**: agrees, and no operator ran on the CPU instead.
"""
_UNWEIGHTED = """\
Every architecture counts once: no count of how much each is used is published that could be cited
for all of them, so the shares are not weighted by popularity.
"""


def write(
    folder: pathlib.Path, rows: list[dict[str, Any]], label: str, mode: str, note: str = ""
) -> None:
    """Write the record of a run, then both pages from all records.

    Parameters
    ----------
    folder : pathlib.Path
        Gets ``compatibility.md``, ``compatibility.html`` and ``data/compatibility``.
    rows : list of dict
        What the worker found for each architecture; empty: only write the pages anew.
    label, mode, note : str
        Of this run, see `Record`.
    """
    data = folder.joinpath(*_DATA)
    if rows:
        records.save(data, records.make(rows, label, mode, note))
    found = records.load(data)
    (folder / "compatibility.md").write_text(markdown(found), "utf-8")
    (folder / "compatibility.html").write_text(html(found, records.history(data)), "utf-8")


def markdown(found: list[Record]) -> str:
    """Return the page of Markdown."""
    lines = [_INTRODUCTION, _UNWEIGHTED, *_shares(found), ""]
    for record in found:
        if record.label == "torus":
            lines += _remains(record)
    lines += _fallbacks(found[0].rows) if found else []
    lines += _not_run(found[0].rows) if found else []
    return "\n".join(lines).rstrip() + "\n"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _shares(found: list[Record]) -> Iterator[str]:
    yield "| run | stage | run on the CPU | agree | share | without fallback | share |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for record in _side_by_side(found):
        for stage, (passed, clean, tried) in records.shares(record).items():
            shares = f"{passed} | {_percent(passed, tried)} | {clean} | {_percent(clean, tried)}"
            yield f"| {record.title} | {stage} | {tried} | {shares} |"
    yield ""
    for record in found:
        versions = ", ".join(f"{k} {v}" for k, v in record.versions.items())
        note = f" {record.note}." if record.note else ""
        yield f"{record.title}: {record.date}, {versions}.{note}  "


def _side_by_side(found: list[Record]) -> Iterator[Record]:
    """Yield the records, ahead of each other backend's our own on the same architectures."""
    for record in found:
        if record.label != found[0].label:
            yield records.on_the_same(found[0], record)
        yield record


def _remains(record: Record) -> list[str]:
    failing = [(row, *pair) for row in record.rows for pair in report.failures(row)]
    if not failing:
        return [f"Nothing fails ({record.title}).", ""]
    lines = [f"## What fails ({record.title})", ""]
    lines += ["| architecture | stage | verdict | cause | again |", "|---|---|---|---|---|"]
    option = "" if record.mode == "eager" else f" --mode {record.mode}"
    for row, stage, outcome in failing:
        note = outcome.get("note", "")[:200].replace("|", "\\|").replace("<", "&lt;")
        again = f"`torus compat --only {row['name']}{option}`"
        lines.append(f"| {row['name']} | {stage} | {outcome['verdict']} | {note} | {again} |")
    return [*lines, ""]


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name.partition("/")[2] for name in names[:_NAMED]) + more


def _fallbacks(rows: list[dict[str, Any]]) -> list[str]:
    found = report.fallbacks(rows)
    if not found:
        return []
    lines = ["## Operators that ran on the CPU", "", "| operator | architectures |", "|---|---|"]
    return [*lines, *(f"| `{k}` | {_names(v)} |" for k, v in found.items()), ""]


def _not_run(rows: list[dict[str, Any]]) -> list[str]:
    groups = report.not_run(rows)
    count = sum(map(len, groups.values()))
    if not count:
        return []
    lines = ["## What does not run on the CPU here", "", f"{count} of {len(rows)}.", ""]
    lines += ["| cause | count | architectures |", "|---|---:|---|"]
    for cause, names in groups.items():
        text = cause.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {text} | {len(names)} | {_names(names)} |")
    return [*lines, ""]


def html(found: list[Record], history: list[dict[str, Any]]) -> str:
    """Return the page of HTML, which holds its data and its script."""
    template = importlib.resources.files("torus.compat").joinpath("page.html").read_text("utf-8")
    shares = [[r.title, records.shares(r)] for r in _side_by_side(found)]
    data = {
        "records": [_for_page(record) for record in found],
        "shares": shares,
        "history": history,
    }
    # "</" would end the element that the data stands in.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return template.replace("{{data}}", text)


def _for_page(record: Record) -> dict[str, Any]:
    rows = []
    for row in record.rows:
        outcomes = {
            stage: {**outcome, **_cause_of(outcome)} for stage, outcome in row["stages"].items()
        }
        about = {k: row[k] for k in ("name", "class", "parameters", "recipe") if row.get(k)}
        if not row["stages"]:
            about |= {"note": row.get("note", ""), "cause": report.cause(row.get("note", ""))}
        rows.append({**about, "stages": outcomes})
    return {
        "title": record.title,
        "mode": record.mode,
        "date": record.date,
        "versions": record.versions,
        "note": record.note,
        "shares": records.shares(record),
        "rows": rows,
    }


def _cause_of(outcome: dict[str, Any]) -> dict[str, str]:
    if outcome["verdict"] not in report.FAILURES:
        return {}
    return {"cause": report.cause(outcome.get("note", ""))}
