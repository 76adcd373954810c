# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Time this project beside PyTorch on the CPU and, where installed, other backends.

For each case all contenders are prepared, then they take turns, in an order that rotates, so that
whatever else the machine does falls on all alike. Writes a page with ratios and counts, and a plot.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contenders import Contender, make_contenders, time_second_process
from report import TITLES, write_markdown, write_plot
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("mlp_adamw", "mlp_adamw_captured", "multiplications", "index", "add_and_wait",
         "print_small")  # fmt: skip


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cases and rounds: < 2 minutes")
    parser.add_argument("--cases", default="", help="comma-separated names; see --list")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--rounds", type=int, default=0, help="turns of each contender in a case")
    parser.add_argument("--passes", type=int, default=3, help="passes a turn; the least counts")
    parser.add_argument("--modes", default="fused,strict", help="eager modes of this project")
    parser.add_argument("--torch-threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--peer-prelude", default="", help="Python file that loads the peer")
    parser.add_argument("--peer-modes", default="fused,strict", help="eager modes of the peer")
    parser.add_argument("--memory-steps", type=int, default=0, help="0: 10000, or 300 with --quick")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one request")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--plot", type=Path, default=None, help="default: beside the page, .svg")
    parser.add_argument("--json", type=Path, default=None, help="also write all figures here")
    args = parser.parse_args(argv)
    args.rounds = args.rounds or (2 if args.quick else 9)
    args.plot = args.plot or args.out.with_suffix(".svg")
    args.memory_steps = args.memory_steps or (300 if args.quick else 10000)
    args.cases = [c for c in args.cases.split(",") if c] or list(QUICK if args.quick else TITLES)
    if args.quick:
        args.modes, args.passes = "fused", 1
        args.peer_modes = "fused"
    unknown = [case for case in args.cases if case not in TITLES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; --list names them")
    return args


def _rotated(contenders: Sequence[Contender], by: int) -> Iterator[Contender]:
    for k in range(len(contenders)):
        yield contenders[(k + by) % len(contenders)]


def _take_round(contender: Contender, result: dict[str, Any], passes: int) -> None:
    answer = contender.ask(do="round", passes=passes)
    if "seconds" not in answer:
        result["error"] = answer.get("error", "no answer")
        return
    result["seconds"].append(answer["seconds"])
    if "compilations" in answer:
        result["later_compilations"] = result.get("later_compilations", 0) + answer["compilations"]
    if "launches" in answer:
        result["launches_per_unit"] = answer["launches"] / answer["units"]


def run_case(
    case: str, contenders: Sequence[Contender], rounds: int, passes: int, advance: Any
) -> dict[str, dict[str, Any]]:
    """Run one case; returns, by contender, the seconds of its rounds and its counts."""
    results: dict[str, dict[str, Any]] = {}
    for contender in contenders:
        answer = contender.ask(do="prepare", case=case)
        if "skipped" not in answer:
            results[contender.name] = {**answer, "seconds": []}
        advance()
    for turn in range(rounds):
        for contender in _rotated(contenders, turn):
            result = results.get(contender.name)
            if result is not None and "error" not in result:
                _take_round(contender, result, passes)
            advance()
    return results


def _memory(contenders: Sequence[Contender], steps: int) -> dict[str, Any]:
    own = next((c for c in contenders if c.name.startswith("torus")), None)
    if own is None:
        return {"error": "no mode of this project was asked for"}
    warm = min(500, steps // 3)
    own.stop()  # what other cases left behind is not to be measured
    answer = own.ask(do="memory", steps=steps, warm=warm)
    if "end" not in answer:
        return {"error": answer.get("error", "no answer")}
    growth = answer["end"] / answer["warm"] - 1
    return {"warm": warm, "steps": steps, "growth": growth}


def main(argv: Sequence[str] | None = None) -> int:
    """Run all and write the page; returns the exit status."""
    args = _arguments(argv)
    console = Console(stderr=True)
    if args.list:
        print("\n".join(TITLES))
        return 0
    results: dict[str, dict[str, dict[str, Any]]] = {}
    extras: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="torus-bench-") as name:
        folder = Path(name)
        contenders = make_contenders(
            folder,
            [m for m in args.modes.split(",") if m],
            args.torch_threads,
            str(Path(args.peer_prelude).resolve()) if args.peer_prelude else "",
            [m for m in args.peer_modes.split(",") if m],
            args.timeout,
        )
        console.print("side by side: " + ", ".join(c.name for c in contenders))
        columns = (
            TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        try:
            with Progress(*columns, console=console) as progress:
                turns = len(contenders) * (1 + args.rounds)
                task = progress.add_task("", total=turns * len(args.cases) + 2)
                for case in args.cases:
                    progress.update(task, description=TITLES[case].replace("`", ""))
                    results[case] = run_case(
                        case, contenders, args.rounds, args.passes, lambda: progress.advance(task)
                    )
                progress.update(task, description="second process")
                extras["second_process"] = time_second_process(folder)
                progress.advance(task)
                progress.update(task, description="host memory")
                extras["memory"] = _memory(contenders, args.memory_steps)
                progress.advance(task)
        finally:
            for contender in contenders:
                contender.stop()
    names = [c.name for c in contenders]
    has_plot = write_plot(args.plot, results, names)
    if not has_plot:
        console.print("no plot: matplotlib is not installed (dependency group bench)")
    relative = args.plot.resolve().relative_to(args.out.resolve().parent, walk_up=True) \
        if has_plot and sys.version_info >= (3, 12) else Path(args.plot.name)  # fmt: skip
    settings = (
        f"{args.rounds} rounds of {args.passes} passes; torch on the CPU with "
        f"{args.torch_threads} thread{'s' if args.torch_threads != 1 else ''}."
    )
    write_markdown(args.out, results, extras, names, settings, str(relative) if has_plot else None)
    if args.json is not None:
        args.json.write_text(json.dumps({"results": results, "extras": extras}, indent=1))
    console.print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
