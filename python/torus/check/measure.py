# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""One program on one topology: what the compiler says, and what the figures of the chip allow."""

from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
from typing import Any

from torch_tpu import aot
from torch_tpu.aot.hlo import Collective, Module

from torus.check import chips, verdict
from torus.check.analysis import Analysis
from torus.check.plan import Plan

__all__ = ["Result", "Traffic", "measure"]

_TELLABLE_SECONDS = 0.4
# Weights in loops would be copied into tiles of twice the height, which weights of single layers,
# read as they come, are not.
_FOR_LOOPS = {"xla_tpu_control_large_2nd_minor_layout_for_x16": False}


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Exchanges of one kind.

    Attributes
    ----------
    kind : str
        ``"all-gather"`` and so on.
    count : int
        How many there are in a step.
    bytes : int
        Of the values that are exchanged, on each device.
    sent_bytes : float
        That each device sends if its group passes them around a ring.
    """

    kind: str
    count: int
    bytes: int
    sent_bytes: float


@dataclasses.dataclass
class Result:
    """What is known of a step on a topology. All bytes and seconds are those of one device.

    Attributes
    ----------
    topology : str
        Its name.
    device_kind : str
        As the compiler calls the chip.
    chips, devices : int
        In the topology.
    partitions : int
        Devices that share the program.
    plan : str
        How.
    verdict : verdict.Verdict
        Whether the compiler takes it.
    capacity_bytes : int
        Memory that programs may use.
    argument_bytes, output_bytes, alias_bytes, temporary_bytes, code_bytes : int
        As the compiler lays them out. Of a program that it refuses only the first is known, without
        padding.
    copied_bytes : int
        Of arguments that are copied into another layout before they are used.
    peak_bytes : int
        The most in use at a time.
    compile_seconds : float
        That the compiler took here.
    flops : float
        Of matrix products and convolutions, counted by hand.
    compiler_flops, compiler_bytes : float
        What the compiler counts: all operations, and bytes between memory and core.
    intensity : float
        `flops` for each of `compiler_bytes`.
    compute_seconds, memory_seconds, exchange_seconds : float
        What products, reading each argument and writing each result once, and exchanges take at the
        published peaks.
    compiler_seconds : float or None
        The step by the compiler's own cost model, where it has one.
    unestimated : int
        Kernels that the cost model gives no time for.
    exchanges : list of Traffic
        Of the compiled program.
    loops_with_exchanges : int
        Exchanges in loops of unknown rounds, counted once all the same.
    batch : int
        Samples in the step, over all devices.
    loops : list of tuple of int and int
        Of repeated layers that were compiled as loops: rounds, and operations in each.
    extended_from : tuple of int
        Numbers of layers that were compiled in place of the model's; empty if the model was.
    saved : str
        Where the executable was written.
    """

    topology: str
    device_kind: str
    chips: int
    devices: int
    partitions: int
    plan: str
    verdict: verdict.Verdict
    capacity_bytes: int = 0
    argument_bytes: int = 0
    output_bytes: int = 0
    alias_bytes: int = 0
    temporary_bytes: int = 0
    code_bytes: int = 0
    copied_bytes: int = 0
    peak_bytes: int = 0
    compile_seconds: float = 0.0
    flops: float = 0.0
    compiler_flops: float = 0.0
    compiler_bytes: float = 0.0
    intensity: float = 0.0
    compute_seconds: float = 0.0
    memory_seconds: float = 0.0
    exchange_seconds: float = 0.0
    compiler_seconds: float | None = None
    unestimated: int = 0
    exchanges: list[Traffic] = dataclasses.field(default_factory=list)
    loops_with_exchanges: int = 0
    loops: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    extended_from: tuple[int, ...] = ()
    saved: str = ""
    batch: int = 1

    @property
    def bound_seconds(self) -> float:
        """The least that a step can take at the published peaks."""
        return max(self.compute_seconds, self.memory_seconds, self.exchange_seconds)

    @property
    def bound_by(self) -> str:
        """What sets `bound_seconds`: ``"compute"``, ``"memory"`` or ``"exchange"``."""
        parts = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "exchange": self.exchange_seconds,
        }
        return max(parts, key=lambda name: parts[name]) if self.bound_seconds else ""

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in a step."""
        return sum(t.sent_bytes for t in self.exchanges)

    @property
    def efficiencies(self) -> tuple[float, float]:
        """Estimate the share of the step in which the matrix units work at their peak.

        A step is what the compiler's cost model says, no less than the published peaks allow, and
        exchanges: in the first estimate they run beside the rest as far as they can, in the second
        not at all.
        """
        busy = max(self.compute_seconds, self.memory_seconds, self.compiler_seconds or 0.0)
        if not self.compute_seconds:
            return 0.0, 0.0
        hidden, exposed = max(busy, self.exchange_seconds), busy + self.exchange_seconds
        return self.compute_seconds / hidden, self.compute_seconds / exposed

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        derived = {
            "bound_seconds": self.bound_seconds,
            "bound_by": self.bound_by,
            "sent_bytes": self.sent_bytes,
            "efficiencies": self.efficiencies,
        }
        return {**dataclasses.asdict(self), **derived, "ok": self.verdict.ok}


def measure(
    text: str,
    topology: aot.Topology,
    plan: Plan,
    analysis: Analysis,
    argument_bytes: int = 0,
    save: pathlib.Path | None = None,
    is_rolled: bool = False,
) -> Result:
    """Compile a program and collect the figures.

    Parameters
    ----------
    text : str
        StableHLO, with the shardings of `plan`.
    topology : torch_tpu.aot.Topology
        What it is compiled for.
    plan : Plan
        How it is spread.
    analysis : Analysis
        Of the program, all devices together.
    argument_bytes : int
        Of the arguments on one device, for a program that the compiler does not take.
    save : pathlib.Path, optional
        Where to write the executable.
    is_rolled : bool
        Whether its layers are loops.

    Returns
    -------
    Result

    Raises
    ------
    torch_tpu.aot.LibtpuMissing
        If there is no compiler.
    """
    partitions = plan.mesh.size if plan.kind != "none" else 1
    result = Result(
        topology.name,
        topology.device_kind,
        topology.chip_count,
        topology.device_count,
        partitions,
        plan.describe(),
        verdict.accepted(),
        capacity_bytes=topology.memory_bytes,
        flops=analysis.flops / partitions,
        argument_bytes=argument_bytes,
    )
    try:
        compiled = _compiled(text, topology, partitions, save is not None, is_rolled)
    except aot.CompilationRefused as error:
        result.verdict = verdict.of_error(error.code, error.detail)
        if result.verdict.available_bytes and not result.capacity_bytes:
            result.capacity_bytes = result.verdict.available_bytes
    else:
        _take(result, compiled)
        if save is not None:
            save.write_bytes(compiled.serialized)
            result.saved = str(save)
    _bound(result, analysis)
    return result


def _compiled(
    text: str, topology: aot.Topology, partitions: int, serialize: bool, is_rolled: bool
) -> aot.Compiled:
    """Compile, with the options for loops if the compiler knows them."""
    common = {"num_partitions": partitions, "serialize": serialize}
    if not is_rolled:
        return aot.compile_text(text, topology.name, **common)
    try:
        return aot.compile_text(text, topology.name, options=_FOR_LOOPS, **common)
    except aot.CompilationRefused as error:
        if "No such compile option" not in error.detail:
            raise
        return aot.compile_text(text, topology.name, **common)


def _take(result: Result, compiled: aot.Compiled) -> None:
    memory = compiled.memory
    if memory is not None:
        for name in ("argument", "output", "alias", "temporary", "code"):
            setattr(result, f"{name}_bytes", getattr(memory, f"{name}_bytes"))
        result.peak_bytes = memory.peak_bytes or memory.total_bytes
    result.compile_seconds = compiled.seconds
    result.compiler_flops = compiled.cost.get("flops", 0.0)
    result.compiler_bytes = compiled.cost.get("bytes accessed", 0.0)
    seconds = compiled.cost.get("optimal_seconds", 0.0)
    # XLA's cost model counts -1 second for each kernel that it knows nothing of, so that a step of
    # less than one second can be told from their number.
    result.unestimated = math.ceil(-seconds) if seconds < 0 else 0
    result.compiler_seconds = seconds + result.unestimated or None
    if compiled.optimized:
        module = Module(compiled.optimized)
        result.exchanges = _sum_up(module.collectives)
        result.loops_with_exchanges = sum(c.in_unknown_loop for c in module.collectives)
        result.copied_bytes = module.copied_arguments()
        _count_rounds(result, module)


def _count_rounds(result: Result, module: Module) -> None:
    """Add the rounds of loops to what the compiler's cost model knows of the rest."""
    added = module.loops_add()
    if not added.cycles:
        return
    result.compiler_bytes += added.traffic
    seconds = result.compiler_seconds or 0.0
    chip = chips.of_topology(result.topology)
    if chip is not None and chip.cycle_seconds:
        result.compiler_seconds = seconds + added.cycles * chip.cycle_seconds
    elif seconds and added.cycles_outside:
        result.compiler_seconds = seconds * (1 + added.cycles / added.cycles_outside)
    else:
        result.compiler_seconds = None


def _sum_up(collectives: tuple[Collective, ...]) -> list[Traffic]:
    kinds: dict[str, list[Collective]] = collections.defaultdict(list)
    for c in collectives:
        kinds[c.kind].append(c)
    return [
        Traffic(
            kind,
            sum(c.times for c in of),
            sum(c.bytes * c.times for c in of),
            sum(c.sent_bytes * c.times for c in of),
        )
        for kind, of in sorted(kinds.items())
    ]


def _bound(result: Result, analysis: Analysis) -> None:
    """Set the times at the published peaks, each device having its share of the chip."""
    least = result.argument_bytes + result.output_bytes - result.alias_bytes
    traffic = result.compiler_bytes or float(least)
    result.intensity = result.flops / traffic if traffic else 0.0
    chip = chips.of_topology(result.topology)
    if chip is None:
        return
    share = result.chips / result.devices
    result.compute_seconds = sum(
        flops / result.partitions / (chip.peak_flops(dtype) * share)
        for dtype, flops in analysis.passes.items()
    )
    result.memory_seconds = least / (chip.hbm_bandwidth * share)
    result.exchange_seconds = result.sent_bytes / (chip.ici_bandwidth * share)
    if result.unestimated and result.bound_seconds > _TELLABLE_SECONDS:
        result.compiler_seconds = None
