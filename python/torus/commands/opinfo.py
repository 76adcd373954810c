# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Run PyTorch's own operator samples on device "tpu" and compare with the CPU.

Each operator runs in a child process, so that a crash is one verdict. Needs the package
expecttest, as PyTorch's operator database does.

Examples
--------
  torus opinfo --only add,softmax                      two operators, all their variants
  torus opinfo --dtype bfloat16 --samples 10 --backward --resume run.jsonl
                                                       all, with gradients; goes on where it stopped
  torus opinfo --resume run.jsonl --report opinfo.md   and write the page
  torus opinfo --compile --only nn.functional.gelu     under torch.compile
  torus opinfo --compile-for v6e:2x2,tpu7x:2x2x1       does the TPU compiler take them?

Exit status 0: every operator compared passed. 1: some did not. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

from torus.journal import Journal, progress_bar

HELP = "run PyTorch's operator samples (OpInfo) on the device against the CPU"

Row = dict[str, Any]

_KEY = ("op", "dtype", "samples", "backward", "views", "fallback", "target", "compiled", "ranks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "--dtype",
        action="append",
        metavar="DTYPE",
        help="dtype of the samples, may be repeated (default: float32)",
    )
    parser.add_argument("--samples", type=int, default=3, help="at most so many of each operator")
    parser.add_argument("--backward", action="store_true", help="compare gradients too")
    parser.add_argument("--views", action="store_true", help="lay every tensor out as a view")
    parser.add_argument(
        "--compile-for",
        metavar="TOPOLOGIES",
        help="do not run the samples: ask the TPU compiler whether it takes their programs, for "
        "topologies separated by commas, such as v6e:2x2,tpu7x:2x2x1 (needs libtpu, and no TPU)",
    )
    parser.add_argument(
        "--compile", action="store_true", help="run them under torch.compile(fullgraph=True)"
    )
    parser.add_argument(
        "--dtensor",
        type=int,
        default=0,
        metavar="PROCESSES",
        help="run them on distributed tensors over so many processes, in every even sharding that "
        "PyTorch gets right on the CPU with Gloo",
    )
    parser.add_argument(
        "--only", metavar="NAMES", help="these operators, separated by commas, all their variants"
    )
    parser.add_argument(
        "--fallback",
        choices=("error", "silent"),
        default="error",
        help="what becomes of operators without a lowering (default: error)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="child processes at a time")
    parser.add_argument("--seconds", type=int, default=60, help="limit for one operator")
    parser.add_argument(
        "--resume", metavar="FILE", help="keep verdicts in FILE and do not repeat those it holds"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON lines")
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write a page of all verdicts (with --resume: of all that its file holds)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the samples and print what came out.

    Returns
    -------
    int
        0 if everything compared passed, 1 if not, 2 for an unknown dtype or operator.
    """
    from torus.opinfo import report

    try:
        plans = [(plan, _operators(plan.dtype, arguments.only)) for plan in _plans(arguments)]
    except (ImportError, ValueError) as error:
        print(f"torus opinfo: {error}", file=sys.stderr)
        return 2
    journal = Journal(arguments.resume, _KEY)
    rows: list[Row] = []
    with journal:
        for plan, operators in plans:
            rows += _run_plan(plan, operators, arguments, journal)
    if arguments.report:
        kept = list(journal.rows.values()) if arguments.resume else rows
        pathlib.Path(arguments.report).write_text(report.render(kept, _versions()), "utf-8")
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
    else:
        _print(rows)
    return int(any(report.is_failure(row) for row in rows))


def _plans(arguments: argparse.Namespace) -> list[Any]:
    from torus.opinfo.judge import Plan

    return [
        Plan(
            dtype,
            arguments.samples,
            arguments.backward,
            arguments.views,
            target,
            arguments.compile,
            arguments.dtensor,
        )
        for dtype in arguments.dtype or ["float32"]
        for target in (arguments.compile_for or "").split(",")
    ]


def _operators(dtype: str, only: str | None) -> list[tuple[int, str]]:
    """Position and name of the chosen entries of the operator database."""
    import torch

    from torus.opinfo import judge

    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"no dtype {dtype!r}")
    ops = judge.entries(dtype)
    chosen = only.split(",") if only else None
    for name in chosen or []:
        if not any(name in (op.name, judge.op_name(op)) for op in ops):
            raise ValueError(f"no operator {name!r} in the database for {dtype}")
    return [
        (index, judge.op_name(op))
        for index, op in enumerate(ops)
        if chosen is None or op.name in chosen or judge.op_name(op) in chosen
    ]


def _run_plan(
    plan: Any, operators: list[tuple[int, str]], arguments: argparse.Namespace, journal: Journal
) -> list[Row]:
    from torus.opinfo import pool, report

    common = {**dataclasses.asdict(plan), "fallback": arguments.fallback}
    keys = {name: journal.key({**common, "op": name}) for _, name in operators}
    waiting = [(index, name) for index, name in operators if keys[name] not in journal.rows]
    with progress_bar(plan.dtype, len(waiting)) as advance:

        def on_row(row: Row) -> None:
            journal.add({**row, **common})
            advance(row["op"], report.is_failure(row))

        pool.run(
            plan,
            waiting,
            on_row,
            jobs=max(arguments.jobs, 1),
            seconds=arguments.seconds,
            fallback=arguments.fallback,
        )
    return [journal.rows[key] for key in keys.values()]


def _versions() -> str:
    import torch
    from torch_tpu import platform

    version = torch.__version__.split("+")[0]
    return f"PyTorch {version}, platform {platform.current().name}."


def _print(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from torus.opinfo import report

    console = Console()
    failed = [row for row in rows if report.is_failure(row)]
    if failed:
        table = Table("operator", "run", "verdict", "passed", "reason")
        for row in failed:
            passed = f"{row['passed']}/{row['tried']}"
            cells = (row["op"], report.title(row), row["verdict"], passed, row["note"])
            table.add_row(*map(escape, cells))
        console.print(table)
    for name, run_rows in report.by_run(rows).items():
        passed, compared = report.share(run_rows)
        console.print(f"{name}: {passed} of {compared} pass ({passed / max(compared, 1):.1%})")
