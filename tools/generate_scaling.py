# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Write docs/scaling.md and its plots: weak scaling of Llama 3 on TPU7x, 1 to 256 chips.

Needs libtpu and no TPU. A program takes minutes to compile; what has been compiled is kept in
build/scaling.json and not compiled again, so that the tool can be stopped and started.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

from rich.console import Console
from torus.check import plot
from torus.check.report import as_bytes, as_seconds

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "scaling.json"
COUNTS = (1, 4, 16, 64, 256)
SEQ = 2048
# Title, configuration, plan: what one would train them with.
RUNS = (
    ("Llama 3 8B", "llama-3-8b", "fsdp"),
    ("Llama 3 70B", "llama-3-70b", "2d"),
)

INTRODUCTION = """\
# Weak scaling on TPU7x

One training step (forward, backward, AdamW; bfloat16, {seq} tokens a sample, one sample for each
part of the axis "data", layers computed again in the backward pass) on 1 to 256 chips of TPU7x;
each chip is two devices. Written by `python tools/generate_scaling.py`, which runs

    torus check examples/configs/llama-3-8b.json --mode train --remat --seq {seq} \\
        --shard fsdp --topology tpu7x:2x2x1 --scaling 1,4,16,64,256 --roll always

and the same for `llama-3-70b.json` with `--shard 2d`. No TPU was used.

- **From the compiler** is what the TPU compiler says of the program for that topology: memory as it
  laid it out, and the bytes that its collectives move. The programs are of the whole model, with
  its layers as loops over stacked weights ([torus check](check.md#layers-as-loops)); an exchange in
  such a loop counts in each of its rounds. Where the compiler made loops of its own around
  exchanges, of a length that is not in the program, they count once, and the table says how many.
- **Estimated** is arithmetic on Google's published peaks (2307 TFLOP/s in bfloat16, 7380 GB/s to
  memory, 600 GB/s to the neighbours one way, for each chip). A real step is slower: no kernel runs
  at its peak, and the network is shared. The two efficiencies bracket what overlapping can do:
  exchanges hidden behind products as far as they are shorter, and not hidden at all.
"""


def check(config: str, shard: str, chips: int) -> dict[str, Any]:
    """Run ``torus check`` for one slice and return its only result."""
    command = [
        *(sys.executable, "-m", "torus", "check", f"examples/configs/{config}.json", "--json"),
        *("--mode", "train", "--remat", "--seq", str(SEQ), "--shard", shard),
        *("--topology", "tpu7x:2x2x1", "--scaling", str(chips)),
        *("--roll", "always"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 2 or not done.stdout:
        raise SystemExit(done.stderr)
    report = json.loads(done.stdout)
    if not report["results"]:
        raise SystemExit(f"{config}: {report['problem'] or report['missing']}")
    return report["results"][0]


def gather(runs: tuple[tuple[str, str, str], ...], counts: list[int]) -> dict[str, Any]:
    """Return the results of all runs by ``"config/shard/chips"``, compiling what is missing."""
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    console = Console(stderr=True)
    KEPT.parent.mkdir(exist_ok=True)
    for chips in counts:
        for title, config, shard in runs:
            key = f"{config}/{shard}/{chips}"
            if key in kept:
                continue
            with console.status(f"{title} on {chips} chips"):
                kept[key] = check(config, shard, chips)
            KEPT.write_text(json.dumps(kept), "utf-8")
            console.print(f"{title} on {chips} chips: {kept[key]['verdict']['kind']}")
    return kept


def measured(results: list[dict[str, Any]]) -> list[str]:
    """Return the table of what the compiler says."""
    lines = [
        "| chips | devices | batch | HBM peak of a device | of which arguments | temporaries | "
        "sent by a device and step | collectives | verdict |",
        "|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for r in results:
        fits = r["ok"]
        peak = r["peak_bytes"] if fits else r["verdict"]["needed_bytes"]
        kinds = ", ".join(f"{t['count']} {t['kind']}" for t in r["exchanges"]) or "-"
        if r["loops_with_exchanges"]:
            kinds += f" (and the rounds of {r['loops_with_exchanges']} in loops of unknown length)"
        cells = [
            *(r["chips"], r["partitions"], r["batch"], as_bytes(peak)),
            as_bytes(r["argument_bytes"]),
            as_bytes(r["temporary_bytes"]) if fits else "-",
            as_bytes(r["sent_bytes"]) if fits else "-",
            kinds,
            r["verdict"]["kind"],
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def estimated(results: list[dict[str, Any]]) -> list[str]:
    """Return the table of what published peaks allow."""
    lines = [
        "| chips | products | memory traffic | exchanges | least step | compiler's estimate | "
        "efficiency, hidden | not hidden |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in results:
        if not r["ok"]:
            continue
        hidden, exposed = r["efficiencies"]
        times = (
            *("compute_seconds", "memory_seconds", "exchange_seconds"),
            *("bound_seconds", "compiler_seconds"),
        )
        cells = [as_seconds(r[name]) for name in times]
        lines.append(f"| {r['chips']} | {' | '.join(cells)} | {hidden:.0%} | {exposed:.0%} |")
    return lines


def render(kept: dict[str, Any], counts: list[int]) -> str:
    """Return the page, and write its plots."""
    parts = [INTRODUCTION.format(seq=SEQ)]
    memory: dict[str, list[tuple[float, float]]] = {}
    sent: dict[str, list[tuple[float, float]]] = {}
    for title, config, shard in RUNS:
        results = [kept[key] for c in counts if (key := f"{config}/{shard}/{c}") in kept]
        parts += [f"\n## {title}, {shard}\n", "From the compiler:\n", *measured(results)]
        parts += ["\nEstimated from published peaks:\n", *estimated(results)]
        memory[title] = [
            (r["chips"], r["peak_bytes"] or r["verdict"]["needed_bytes"]) for r in results
        ]
        sent[title] = [(r["chips"], r["sent_bytes"]) for r in results]
    memory["capacity"] = [(c, capacity(kept)) for c in counts]
    for name, series, words in (
        ("memory", memory, "HBM peak of a device"),
        ("exchanged", sent, "bytes that a device sends in a step"),
    ):
        drawing = plot.lines(series, "chips", words)
        (ROOT / "docs" / f"scaling-{name}.svg").write_text(drawing + "\n", "utf-8")
        parts.append(f"\n![{words}](scaling-{name}.svg)")
    return "\n".join(parts) + "\n"


def capacity(kept: dict[str, Any]) -> int:
    """Return what programs may use of a device's memory."""
    return max(result["capacity_bytes"] for result in kept.values())


def main() -> None:
    """Compile what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="one configuration, such as llama-3-8b")
    parser.add_argument("--chips", default=",".join(map(str, COUNTS)), help="slices to compile")
    parser.add_argument("--kept", action="store_true", help="write what has been compiled so far")
    arguments = parser.parse_args()
    counts = [] if arguments.kept else [int(word) for word in arguments.chips.split(",")]
    runs = tuple(run for run in RUNS if arguments.only in ("", run[1]))
    kept = gather(runs, counts)
    (ROOT / "docs" / "scaling.md").write_text(render(kept, list(COUNTS)), "utf-8")


if __name__ == "__main__":
    main()
