# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Run every architecture of Transformers and Diffusers, small, on device "tpu" against the CPU.

Each architecture is made with random weights from its configuration and runs in a process of its
own: a crash or a stage that takes too long is its verdict.

Examples
--------
  torus compat --only bert                     one architecture
  torus compat --only 'qwen*,gemma*' --json    some, as JSON lines
  torus compat --resume run.jsonl              all; goes on where it was stopped
  torus compat --resume run.jsonl --retry      those that failed once more
  torus compat --resume run.jsonl --report docs
                                               and write the pages

Exit status 0: everything that runs on the CPU agrees. 1: something does not. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import pathlib
import sys
from typing import Any

from torus import workers
from torus.journal import Journal, progress_bar

HELP = "run every architecture of Transformers and Diffusers on the device against the CPU"

Row = dict[str, Any]

_KEY = ("name", "mode")
_STAGES = ("forward", "generate", "train", "denoise")
# The first answer of a worker includes the start of the interpreter and the libraries' import.
_GRACE_SECONDS = 300
_MOST_PER_WORKER = 200
_QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    # One module for LLVM instead of many: a third less for programs as small as these.
    " --xla_cpu_parallel_codegen_split_count=1"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "--only", metavar="PATTERNS", help="names or shell patterns, separated by commas"
    )
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument(
        "--mode",
        choices=("eager", "strict", "compile"),
        default="eager",
        help="windows of operators, one operator at a time, or torch.compile (default: eager)",
    )
    parser.add_argument(
        "--stages",
        default=",".join(_STAGES),
        metavar="STAGES",
        help=f"what to run of each (default: {','.join(_STAGES)})",
    )
    parser.add_argument(
        "--attention",
        default="",
        metavar="NAME",
        help="implementation of attention in Transformers' models, such as eager or sdpa",
    )
    parser.add_argument(
        "--compile-for",
        metavar="TOPOLOGIES",
        help="have the TPU compiler compile the forward pass, such as v6e:2x2,tpu7x:2x2x1",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="let the CPU plugin compile without optimising: about three times faster",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="limit for one stage, in processor time"
    )
    parser.add_argument(
        "--resume", metavar="FILE", help="keep verdicts in FILE and do not repeat those it holds"
    )
    parser.add_argument(
        "--retry", action="store_true", help="with --resume: repeat what did not agree"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON lines")
    parser.add_argument(
        "--report", metavar="FOLDER", help="write compatibility.md and .html, and their data"
    )
    parser.add_argument(
        "--label", default="torus", help="with --report: name of what was run, for its data"
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="FILE",
        help="interpreter of the worker processes, to try another backend for device 'tpu'",
    )
    parser.add_argument(
        "--prelude", default="", metavar="FILE", help="Python to run in a worker before the device"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the architectures and print what came out.

    Returns
    -------
    int
        0 if everything compared agrees, 1 if not, 2 for an unknown name or stage.
    """
    from torus.compat import pages, report

    try:
        names = _names(arguments.only)
        stages, settings = _settings(arguments)
    except (ImportError, ValueError) as error:
        print(f"torus compat: {error}", file=sys.stderr)
        return 2
    if arguments.list:
        print("\n".join(names))
        return 0
    with Journal(arguments.resume, _KEY) as journal:
        rows = _run(names, stages, settings, arguments, journal)
    if arguments.report:
        kept = [r for r in journal.rows.values() if r["mode"] == arguments.mode]
        folder = pathlib.Path(arguments.report)
        pages.write(folder, kept, arguments.label, arguments.mode, _note(kept, arguments))
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
    else:
        _print(rows)
    return int(any(report.is_failure(row) for row in rows))


def _note(rows: list[Row], arguments: argparse.Namespace) -> str:
    """Say what of a run the reader of its report has to know."""
    parts = ["compiled without optimising (--quick)"] if arguments.quick else []
    count = len(_names(None))
    if len(rows) < count:
        parts.append(f"{len(rows)} of {count} architectures were tried")
    return "; ".join(parts)


def _names(only: str | None) -> list[str]:
    # Libraries say at their import what else could be installed.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from torus.compat import cases

    names = cases.names()
    if not names:
        raise ImportError("install transformers or diffusers (pip install torus-tpu[compat])")
    if only is None:
        return names
    chosen: dict[str, None] = {}
    for pattern in only.split(","):
        found = [name for name in names if _matches(name, pattern)]
        if not found:
            raise ValueError(f"no architecture is named {pattern!r}; see torus compat --list")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _matches(name: str, pattern: str) -> bool:
    short = name.partition("/")[2]
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(short, pattern)


def _settings(arguments: argparse.Namespace) -> tuple[list[str], Row]:
    stages = list(filter(None, arguments.stages.split(",")))
    for stage in stages:
        if stage not in _STAGES:
            raise ValueError(f"no stage {stage!r}, only {', '.join(_STAGES)}")
    stages += _compile_stages(arguments.compile_for)
    return stages, {
        "mode": arguments.mode,
        "seconds": arguments.seconds,
        "prelude": arguments.prelude,
        "attention": arguments.attention,
    }


def _compile_stages(topologies: str | None) -> list[str]:
    """Return a stage for each topology."""
    if not topologies:
        return []
    from torch_tpu import aot

    from torus.compat import cases

    names = topologies.split(",")
    if not aot.topologies.is_available():
        raise ImportError("the TPU compiler is missing: pip install libtpu")
    for name in names:
        aot.describe(name)
    return [f"{cases.COMPILE_FOR}{name}" for name in names]


def _run(
    names: list[str],
    stages: list[str],
    settings: Row,
    arguments: argparse.Namespace,
    journal: Journal,
) -> list[Row]:
    from torus.compat import report

    mode = arguments.mode
    wanted = {n: _missing(journal.rows.get((n, mode)), stages, arguments.retry) for n in names}
    requests = [json.dumps({"name": n, "stages": s}) for n, s in wanted.items() if s]
    command = [arguments.python, "-m", "torus.compat.worker", json.dumps(settings)]
    patience = 10 * (len(stages) + 1) * arguments.seconds + _GRACE_SECONDS
    environment = {"XLA_FLAGS": _QUICK} if arguments.quick else {}

    def start() -> workers.Worker:
        return workers.Worker(command, patience, environment, start='{"name"')

    def on_lost(request: str, error: workers.LostError) -> Row:
        lost = {"verdict": error.verdict, "note": f"the worker: {error}"}
        return {"name": json.loads(request)["name"], "mode": mode, "stages": {stages[0]: lost}}

    with progress_bar(mode, len(requests)) as advance:

        def on_row(row: Row) -> None:
            old = journal.rows.get((row["name"], mode), {"stages": {}})
            journal.add({**row, "stages": {**old["stages"], **row["stages"]}})
            advance(row["name"], report.is_failure(row))

        jobs = max(arguments.jobs, 1)
        workers.run(requests, start, on_row, on_lost, jobs=jobs, most=_MOST_PER_WORKER)
    return [journal.rows[name, mode] for name in names]


def _missing(row: Row | None, stages: list[str], retry: bool) -> list[str]:
    """Return the stages still to be run of an architecture."""
    from torus.compat import report

    if row is None:
        return stages
    if not row["stages"]:  # does not run on the CPU
        return []
    failed = dict(report.failures(row)) if retry else {}
    return [stage for stage in stages if stage not in row["stages"] or stage in failed]


def _print(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from torus.compat import report

    console = Console()
    failed = [row for row in rows if report.is_failure(row)]
    if failed:
        table = Table("architecture", "stage", "verdict", "note")
        for row in failed:
            for stage, found in report.failures(row):
                cells = (row["name"], stage, found["verdict"], found.get("note", ""))
                table.add_row(*map(escape, cells))
        console.print(table)
    for line in report.summary(rows):
        console.print(escape(line))
