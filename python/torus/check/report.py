# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The report for people: topologies side by side, then what is common to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch_tpu.aot import Missing

from torus.check.analysis import Analysis
from torus.check.measure import Result

__all__ = ["Report", "as_bytes", "as_flops", "as_seconds", "print_report", "rows"]


@dataclasses.dataclass
class Report:
    """All that one run of ``torus check`` found.

    Attributes
    ----------
    model : str
        Its name.
    request : dict
        Mode, batch, seq, dtype, shard.
    parameters : int
        Number of parameters.
    parameter_bytes, cache_bytes, optimizer_bytes, input_bytes : int
        Of the step's inputs, all devices together.
    capture_seconds : float
        To build the model and record the step.
    text_bytes : int
        Of the program.
    missing : list of Missing
        Operators without a lowering.
    analysis : Analysis or None
        Of the program; None if there is none.
    results : list of Result
        One for each topology.
    hints : list of str
        Advice.
    problem : str
        Why there is no result; empty if there is one.
    is_scaling : bool
        Whether the results are slices of several sizes.
    """

    model: str
    request: dict[str, Any]
    parameters: int = 0
    parameter_bytes: int = 0
    cache_bytes: int = 0
    optimizer_bytes: int = 0
    input_bytes: int = 0
    capture_seconds: float = 0.0
    text_bytes: int = 0
    missing: list[Missing] = dataclasses.field(default_factory=list)
    analysis: Analysis | None = None
    results: list[Result] = dataclasses.field(default_factory=list)
    hints: list[str] = dataclasses.field(default_factory=list)
    problem: str = ""
    is_scaling: bool = False

    @property
    def ok(self) -> bool:
        """Whether the step lowers and each topology takes it."""
        fits = bool(self.results) and all(r.verdict.ok for r in self.results)
        return fits and not self.missing and not self.problem

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        facts = dataclasses.asdict(self)
        facts["results"] = [result.as_json() for result in self.results]
        facts["ok"] = self.ok
        if self.analysis is not None:
            facts["analysis"]["largest"] = [
                {**dataclasses.asdict(t), "bytes": t.bytes} for t in self.analysis.largest
            ]
        return facts


# ---- words ----


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    names = list(units)
    while abs(value) >= step and len(names) > 1:
        value /= step
        names.pop(0)
    return f"{value:.3g} {names[0]}" if abs(value) < 1000 else f"{value:.0f} {names[0]}"


def as_bytes(value: float) -> str:
    """Return a size in powers of 1024: ``"1.5 GiB"``."""
    return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def as_flops(value: float) -> str:
    """Return a count of operations in powers of 1000: ``"4.08 T"``."""
    return _scaled(value, 1000, ("", "K", "M", "G", "T", "P", "E")).strip()


def as_seconds(value: float | None) -> str:
    """Return a time: ``"4.93 ms"``; a dash for none."""
    if not value:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def as_share(part: float, whole: float) -> str:
    """Return a percentage; empty without a whole."""
    if not whole:
        return ""
    return f" ({part / whole:.0%})" if part > 0.01 * whole else " (under 1%)"


# ---- tables ----

Cell = Callable[[Result], str]


def _peak(r: Result) -> str:
    if r.verdict.kind == "too large":
        return as_bytes(r.verdict.needed_bytes)
    return as_bytes(r.peak_bytes) + as_share(r.peak_bytes, r.capacity_bytes)


def _told(cell: Callable[[Result], str]) -> Cell:
    """Show a dash where the compiler gave no program."""
    return lambda r: cell(r) if r.verdict.ok else "-"


def _exchanges(r: Result) -> str:
    if r.partitions == 1:
        return "none"
    kinds = ", ".join(f"{t.count} {t.kind}" for t in r.exchanges)
    once = r.loops_with_exchanges
    note = f"; {once} of them in loops of unknown length, counted once" if once else ""
    return f"{as_bytes(r.sent_bytes)}: {kinds}{note}" if kinds else "none"


def _loops(r: Result) -> str:
    return ", ".join(f"{rounds} x {count} operations" for rounds, count in r.loops) or "-"


def _estimate(r: Result) -> str:
    note = f", {r.unestimated} kernels not counted" if r.unestimated else ""
    return as_seconds(r.compiler_seconds) + (note if r.compiler_seconds else "")


def _efficiency(r: Result) -> str:
    if r.partitions == 1:
        return "-"
    hidden, exposed = r.efficiencies
    return f"{exposed:.0%} to {hidden:.0%}"


_ROWS: tuple[tuple[str, Cell], ...] = (
    ("verdict", lambda r: r.verdict.kind),
    ("chips, devices", lambda r: f"{r.chips}, {r.devices}"),
    ("sharding", lambda r: r.plan),
    ("batch, all devices", lambda r: str(r.batch)),
    ("extended from layers", lambda r: ", ".join(map(str, r.extended_from)) or "-"),
    ("layers as loops", _loops),
    ("HBM capacity", lambda r: as_bytes(r.capacity_bytes) if r.capacity_bytes else "-"),
    ("HBM peak", _peak),
    ("  arguments", lambda r: as_bytes(r.argument_bytes)),
    ("  outputs, not aliased", _told(lambda r: as_bytes(r.output_bytes - r.alias_bytes))),
    ("  temporaries", _told(lambda r: as_bytes(r.temporary_bytes))),
    (
        "    copies of arguments",
        _told(lambda r: as_bytes(r.copied_bytes) if r.copied_bytes else "-"),
    ),
    ("  code", _told(lambda r: as_bytes(r.code_bytes))),
    ("flops", lambda r: as_flops(r.flops)),
    ("memory traffic", _told(lambda r: as_bytes(r.compiler_bytes))),
    ("flops per byte", lambda r: f"{r.intensity:.0f}" if r.intensity else "-"),
    ("exchanged", _told(_exchanges)),
    ("bound: compute", lambda r: as_seconds(r.compute_seconds)),
    ("bound: memory", lambda r: as_seconds(r.memory_seconds)),
    ("bound: exchange", _told(lambda r: as_seconds(r.exchange_seconds))),
    ("least step, bound by", lambda r: f"{as_seconds(r.bound_seconds)}, {r.bound_by}"),
    ("compiler's estimate", _told(_estimate)),
    ("efficiency, estimated", _told(_efficiency)),
    ("compiled here in", _told(lambda r: as_seconds(r.compile_seconds))),
)


def rows(results: list[Result]) -> list[tuple[str, list[str]]]:
    """Return the lines of the table: a title, and a cell for each topology; no empty ones."""
    lines = [(title, [cell(r) for r in results]) for title, cell in _ROWS]
    return [line for line in lines if any(cell not in ("-", "none") for cell in line[1])]


def print_report(report: Report, console: Console) -> None:
    """Print everything."""
    console.print(f"[bold]{escape(report.model)}[/], {escape(_request_line(report))}")
    if report.problem:
        console.print(f"[bold red]{escape(report.problem)}[/]")
    if report.parameters:
        console.print(_size_line(report))
    _print_missing(report, console)
    if report.results:
        console.print(_table(report))
    _print_verdicts(report, console)
    _print_largest(report, console)
    for hint in report.hints:
        console.print(f"[yellow]hint[/] {escape(hint)}")


def _request_line(report: Report) -> str:
    words = dict(report.request)
    return f"{words.pop('mode')}: " + ", ".join(f"{k} {v}" for k, v in words.items())


def _size_line(report: Report) -> str:
    parts = [f"{as_flops(report.parameters)} parameters, {as_bytes(report.parameter_bytes)}"]
    for word, size in (
        ("optimizer state", report.optimizer_bytes),
        ("cache", report.cache_bytes),
        ("inputs", report.input_bytes),
    ):
        if size:
            parts.append(f"{word} {as_bytes(size)}")
    line = "; ".join(parts)
    if report.analysis is not None:
        line += f"; {as_flops(report.analysis.flops)} flops in matrix products"
    captured = f"{as_bytes(report.text_bytes)} of StableHLO in {report.capture_seconds:.1f} s"
    return f"{line}; {captured}"


def _print_missing(report: Report, console: Console) -> None:
    if report.missing:
        console.print("[bold red]operators without a lowering:[/]")
    for missing in report.missing:
        console.print(f"  {escape(str(missing))}")


_STYLES = {"fits": "green", "too large": "red", "refused": "red", "crashed": "red"}


def _table(report: Report) -> Table:
    table = Table(title="on each device", title_justify="left")
    table.add_column("", no_wrap=True)
    for result in report.results:
        table.add_column(f"{result.topology}\n{result.device_kind}", justify="right")
    for title, cells in rows(report.results):
        if title == "verdict":
            cells = [f"[{_STYLES.get(cell, 'yellow')}]{cell}[/]" for cell in cells]
        table.add_row(title, *cells)
    return table


def _print_verdicts(report: Report, console: Console) -> None:
    for result in report.results:
        found = result.verdict
        if found.ok:
            continue
        console.print(f"[bold red]{result.topology}[/]: {escape(found.summary)}")
        if found.remedy:
            console.print(f"  what may help: {escape(found.remedy)}")
        for allocation in found.allocations[:5]:
            padded = allocation.unpadded_bytes
            note = f", {as_bytes(padded)} without padding" if padded else ""
            size = as_bytes(allocation.bytes)
            console.print(f"  {size}{note}: {escape(allocation.shape)}")
        if found.kind != "too large" and found.detail:
            console.print(f"  [dim]{escape(found.detail[:600])}[/]")


def _print_largest(report: Report, console: Console) -> None:
    if report.analysis is None or not report.analysis.largest:
        return
    table = Table(title="largest values, before sharding and fusion", title_justify="left")
    for heading in ("bytes", "shape", "dtype", "made by", "how many"):
        table.add_column(heading, justify="right" if heading in ("bytes", "how many") else "left")
    for tensor in report.analysis.largest:
        shape = " x ".join(map(str, tensor.shape))
        table.add_row(as_bytes(tensor.bytes), shape, tensor.dtype, tensor.what, str(tensor.count))
    console.print(table)
