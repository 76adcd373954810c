# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Start a program with one process for each TPU chip, on one host or on each host of a pod.

Reads what the TPU VM knows of itself (variables TPU_* and MEGASCALE_*, then the metadata server)
and starts the processes through torch.distributed.run. On a pod, run it on every host. Without a
TPU the processes run on the CPU plugin.

Exit status: 0 if all processes end well; 1 if not; 2 for wrong usage, or where what the machine
says of itself is not enough.

Examples
--------
  torus launch train.py --epochs 3            one process for each chip of this host or pod
  torus launch --dry-run train.py             what would be set and run
  torus launch --nproc 4 train.py             four processes on the CPU, on a machine without TPU
  torus launch --nproc 1 train.py             one process that drives all chips of its host
  torus launch --max-restarts 3 -m package.train
  torus launch --metadata tpu-env.txt --dry-run --json train.py
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shlex
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu.distributed.pod import Pod

    from torus.launch.plan import Plan

HELP = "start a program with one process for each TPU chip"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "--nproc", type=int, default=0, help="processes on this host (default: one for each chip)"
    )
    parser.add_argument(
        "--port", type=int, default=29500, help="where the first host listens (default: 29500)"
    )
    parser.add_argument(
        "--max-restarts", type=int, default=0, help="how often lost processes are started again"
    )
    parser.add_argument(
        "--metadata",
        metavar="FILE",
        help="read this in place of the environment and the metadata server: JSON, or lines "
        "NAME: 'value' as in the attribute tpu-env",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be set and run")
    parser.add_argument("--json", action="store_true", help="with --dry-run: as JSON")
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file or module")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)


def run(arguments: argparse.Namespace) -> int:
    """Work out the plan, then follow it or print it.

    Returns
    -------
    int
        See the description of the module.
    """
    try:
        plan = _plan(arguments)
    except (OSError, ValueError) as error:
        print(f"torus launch: {error}", file=sys.stderr)
        return 2
    if arguments.dry_run:
        _print(plan, arguments.json)
        return 0
    return _start(plan)


def _plan(arguments: argparse.Namespace) -> Plan:
    from torus.launch import plan

    if arguments.nproc < 0 or arguments.max_restarts < 0:
        raise ValueError("--nproc and --max-restarts are not negative")
    options = plan.Options(arguments.nproc, arguments.port, arguments.max_restarts)
    program = ["-m"] if arguments.module else []
    program += [arguments.program, *arguments.arguments]
    return plan.make(_pod(arguments.metadata), options, program, os.environ, os.cpu_count() or 1)


def _pod(metadata: str | None) -> Pod | None:
    from torch_tpu import platform
    from torch_tpu.distributed import pod

    if metadata is not None:
        return pod.read({}, pod.parse(pathlib.Path(metadata).read_text("utf-8")))
    found = pod.read(os.environ) if "TPU_WORKER_HOSTNAMES" in os.environ else None
    if found is not None or os.environ.get("TORUS_PLATFORM", "").strip() == "cpu":
        return found
    asks = "GCE_METADATA_HOST" in os.environ or platform.find_tpu_hardware()
    return pod.read(os.environ, pod.read_server(os.environ) if asks else None)


def _start(plan: Plan) -> int:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.update(plan.common, TORUS_LAUNCH=json.dumps(plan.ranks))
    try:
        torchrun.run(torchrun.parse_args(plan.arguments))
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _report(plan: Plan) -> dict[str, Any]:
    pod = plan.pod
    machine = {"accelerator": "none: the CPU plugin"}
    if pod:
        machine = {
            "accelerator": pod.accelerator,
            "topology": list(pod.topology),
            "chips_per_host": list(pod.chips_per_host),
            "hosts": list(pod.addresses),
            "worker": pod.worker,
            "slice": pod.slice_index,
            "slices": pod.slice_count,
            "coordinator": pod.first_address,
        }
    first = plan.node * plan.nproc
    return {
        "machine": machine,
        "nodes": plan.nodes,
        "node": plan.node,
        "processes_per_node": plan.nproc,
        "world_size": plan.world_size,
        "environment": plan.common,
        "processes": [{"rank": first + k, "environment": own} for k, own in enumerate(plan.ranks)],
        "command": [sys.executable, "-m", "torch.distributed.run", *plan.arguments],
    }


def _print(plan: Plan, as_json: bool) -> None:
    report = _report(plan)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(report):
        facts.add_row(name, escape(value))
    console.print(facts)
    names = [name for name in plan.ranks[0] if len({own[name] for own in plan.ranks}) > 1]
    if not names:
        return
    table = Table("rank", *names)
    for process in report["processes"]:
        own = process["environment"]
        table.add_row(str(process["rank"]), *(own[name] for name in names))
    console.print(table)


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    machine = report["machine"]
    rows = [("accelerator", machine["accelerator"])]
    if "topology" in machine:
        rows += [
            ("slice", "x".join(map(str, machine["topology"])) + " chips"),
            ("host", "x".join(map(str, machine["chips_per_host"])) + " chips"),
            ("hosts", ", ".join(machine["hosts"])),
            ("this host", f"worker {machine['worker']} of slice {machine['slice']}"),
            ("slices", str(machine["slices"])),
        ]
    rows.append(("processes", f"{report['world_size']}, {report['processes_per_node']} on each"))
    same = dict(report["environment"])
    for name, value in report["processes"][0]["environment"].items():
        if all(process["environment"][name] == value for process in report["processes"]):
            same[name] = value
    rows += sorted(same.items())
    rows.append(("command", shlex.join(report["command"])))
    return rows
