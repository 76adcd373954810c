# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What came out, as Markdown and as a plot: ratios within one session, and counts."""

from __future__ import annotations

import datetime
import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REFERENCE = "torch CPU"

TITLES = {
    "mlp_sgd": "MLP training step, SGD",
    "mlp_adamw": "MLP training step, AdamW",
    "mlp_sgd_captured": "the same captured, SGD",
    "mlp_adamw_captured": "the same captured, AdamW",
    "cosine": "AdamW with a cosine schedule",
    "last_batch": "epoch with a smaller last batch",
    "multiplications": "300 multiplications",
    "mixed_chain": "1000 mixed operators, 64x64",
    "times_i": "`x * i`",
    "index": "`x[i] + 0`",
    "slice": "`x[i:i+4] + 0`",
    "row_write": "`z[i].mul_(c)`",
    "cache_write": "KV-cache write, then a sum",
    "prefix_sum": "`x[:n].sum()`",
    "ones": "`ones(n) + 1`",
    "add_and_wait": "one add, then wait",
    "add_and_read": "`(s + 1).item()`",
    "print_small": "print a 2x3 tensor",
    "convnet": "small ResNet training step",
    "bert": "small BERT, forward",
    "llama": "small Llama, forward",
    "generate_static": "Llama, 32 tokens, static cache",
    "generate_dynamic": "Llama, 32 tokens, growing cache",
}

Results = Mapping[str, Mapping[str, dict[str, Any]]]


def ratio(
    results: Results, case: str, name: str, of: str = REFERENCE
) -> tuple[float, float] | None:
    """Return the median over rounds of the ratio of two contenders, and that of their least."""
    own, other = results[case].get(name, {}), results[case].get(of, {})
    mine, theirs = own.get("seconds"), other.get("seconds")
    if not mine or not theirs:
        return None
    pairs = [a / b for a, b in zip(mine, theirs, strict=False)]
    return statistics.median(pairs), min(mine) / min(theirs)


def _title(case: str) -> str:
    return TITLES.get(case, case)


def _ratio_cell(results: Results, case: str, name: str) -> str:
    found = ratio(results, case, name)
    if found is not None:
        return f"{found[0]:.2f} / {found[1]:.2f}"
    return "failed" if "error" in results[case].get(name, {}) else "-"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _times(results: Results, names: Sequence[str]) -> list[str]:
    columns = [name for name in names if name != REFERENCE]
    rows = [[_title(case), *(_ratio_cell(results, case, n) for n in columns)] for case in results]
    return _table(["case", *columns], rows)


def _count_cell(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return "failed"
    if "first" not in result or "compilations" not in result["first"]:
        return "-"
    text = " + ".join(
        str(part) for part in (
            result["first"]["compilations"],
            result["second"]["compilations"],
            result.get("later_compilations", 0),
        )
    )  # fmt: skip
    launches = result.get("launches_per_unit")
    return text if launches is None else f"{text}; {launches:.3g}"


def _counts(results: Results, names: Sequence[str]) -> list[str]:
    columns = [n for n in names if any("compilations" in r.get(n, {}).get("first", {}) for r in
                                       results.values())]  # fmt: skip
    rows = [
        [_title(case), *(_count_cell(results[case].get(n, {})) for n in columns)]
        for case in results
    ]
    return _table(["case", *columns], rows)


def _extras(extras: Mapping[str, Any]) -> list[str]:
    lines = []
    second = extras.get("second_process")
    if second and "ratio" in second:
        first, again = second["compilations"]
        lines.append(
            f"- Second process with the same script: {again} compilations after {first}; from the "
            f"imports (torch, and torch._dynamo, which PyTorch loads for the first optimizer) to "
            f"its result it takes {second['ratio']:.2f} of the first's time."
        )
    memory = extras.get("memory")
    if memory and "growth" in memory:
        lines.append(
            f"- Host memory from step {memory['warm']} to step {memory['steps']} of the AdamW "
            f"training: {100 * memory['growth']:+.1f} %."
        )
    lines += [
        f"- {name.replace('_', ' ')} failed: {extra['error']}"
        for name, extra in extras.items()
        if "error" in extra
    ]
    return lines


def _failures(results: Results) -> list[str]:
    return [
        f"- {_title(case)}, {name}: `{result['error'].splitlines()[0][:160]}`"
        for case, by_name in results.items()
        for name, result in by_name.items()
        if result.get("error")
    ]


def _floor(results: Results, names: Sequence[str]) -> list[str]:
    if "C loop" not in results.get("add_and_wait", {}):
        return []
    parts = []
    for name in names:
        found = ratio(results, "add_and_wait", name, "C loop")
        if found is not None and name != "C loop":
            parts.append(f"{name} {found[0]:.1f} / {found[1]:.1f}")
    return [f"- One add, then wait, over the C loop that awaits each run: {', '.join(parts)}."]


def write_markdown(
    path: Path, results: Results, extras: Mapping[str, Any], names: Sequence[str], settings: str,
    plot: str | None,
) -> None:  # fmt: skip
    """Write the page.

    Parameters
    ----------
    path : Path
        Where.
    results : mapping
        By case and contender: ``seconds`` of each round, and the counts.
    extras : mapping
        Of the cases that are no rounds.
    names : sequence of str
        The contenders in order.
    settings : str
        How it was run.
    plot : str or None
        File of the plot, relative to the page.
    """
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`; do not edit. All contenders take turns in one session on one "
        "machine, so only ratios and counts are given. On the CPU plugin they show what the "
        "backends themselves cost and how much they compile, not the speed of a TPU.",
        "",
        f"{settings} Python {platform.python_version()}, {platform.machine()}, "
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}.",
        "",
        "## Time over torch CPU",
        "",
        "Median of the rounds' ratios / ratio of the least times; below 1 is faster than PyTorch's "
        "own eager CPU. Captured steps are compared with the plain eager step.",
        "",
    ]
    if plot:
        lines += [f"![Time over torch CPU]({plot})", ""]
    lines += _times(results, names)
    lines += [
        "",
        "## Programs",
        "",
        "Compilations in the first pass + in the second + in all later ones; launches per step or "
        "value in the last pass. One pass is 20 steps, or 50 values each read back before the "
        "next, or what the case says.",
        "",
    ]
    lines += _counts(results, names)
    more = _floor(results, names) + _extras(extras) + _failures(results)
    if more:
        lines += ["", "## Besides", "", *more]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_plot(path: Path, results: Results, names: Sequence[str]) -> bool:
    """Write a plot of the ratios; returns whether matplotlib is there to do so."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "torus"
    from matplotlib import pyplot as plt

    columns = [n for n in names if n not in (REFERENCE, "C loop")]
    cases = [c for c in results if any(ratio(results, c, n) for n in columns)]
    if not cases:
        return False
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.42 * len(cases)), layout="constrained")
    height = 0.8 / len(columns)
    for k, name in enumerate(columns):
        points = [(row, ratio(results, case, name)) for row, case in enumerate(cases)]
        rows = [row + (k + 0.5) * height - 0.4 for row, found in points if found]
        widths = [math.log10(found[0]) for _, found in points if found]
        axes.barh(rows, widths, height, label=name)
    axes.set_yticks(range(len(cases)), [_title(c).replace("`", "") for c in cases])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{10**value:.3g}x")
    axes.set_xlabel("time over torch CPU eager (median; left of the line is faster)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return True
