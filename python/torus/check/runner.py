# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""One run of ``torus check``: capture, plan, compile for each topology, advise."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch_tpu import aot
from torch_tpu.aot import rolling
from torch_tpu.aot.program import Unreadable

from torus.check import analysis, extrapolate, hints, measure, plan, step
from torus.check.report import Report
from torus.check.source import Source

__all__ = ["Options", "check"]

Say = Callable[[str], None]

# Operations from which on layers become loops, on one device and on several: each takes the
# compiler a tenth of a second, exchanges more.
_LONG, _LONG_SHARED = 10_000, 2_000


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes
    ----------
    topologies : tuple of str
        For which devices.
    mode, seq, dtype, remat
        See `torus.check.step.Request`.
    batch : int
        Samples in a step over all devices; 0 for one for each part of the axis "data".
    each : int
        Samples for each part of the axis "data", where `batch` is 0.
    shard : str
        One of `torus.check.plan.KINDS`.
    model_parallel : int
        Size of the axis "model"; chosen if 0.
    layers : tuple of int
        Two numbers of layers to compile in place of the model's; empty to compile the model.
    roll : str
        Whether repeated layers become loops: ``"never"``, ``"always"`` or, in long programs,
        ``"auto"``.
    save, save_text : pathlib.Path or None
        Folders or files for executables and programs.
    """

    topologies: tuple[str, ...]
    mode: str = "forward"
    batch: int = 0
    each: int = 1
    seq: int = 512
    dtype: str = "bfloat16"
    remat: bool = False
    shard: str = "none"
    model_parallel: int = 0
    layers: tuple[int, ...] = ()
    roll: str = "auto"
    save: pathlib.Path | None = None
    save_text: pathlib.Path | None = None

    def request(self, batch: int) -> step.Request:
        """Return the step for a batch."""
        return step.Request(self.mode, batch, self.seq, self.dtype, self.remat)


@dataclasses.dataclass
class _Captured:
    """A step as a program."""

    model: Any
    lowered: aot.Lowered
    analysis: analysis.Analysis
    seconds: float


def check(source: Source, options: Options, say: Say) -> Report:
    """Check a model.

    Parameters
    ----------
    source : Source
        The model.
    options : Options
        What to do.
    say : callable
        Told what is being done, one line at a time.

    Returns
    -------
    Report

    Raises
    ------
    SourceError
        If the model cannot be built or called.
    ValueError
        If a topology is not known, or a plan does not fit one.
    """
    each = 1 if options.shard == "none" else "one for each part of data"
    request = {"mode": options.mode, "batch": options.batch or each, "seq": options.seq}
    report = Report(source.name, {**request, "dtype": options.dtype, "shard": options.shard})
    captured: dict[int, _Captured] = {}
    try:
        for topology, made in _plans(source, options):
            if made.batch not in captured:
                captured[made.batch] = _capture(source, options.request(made.batch), report, say)
            if report.missing:
                break
            if options.layers:
                report.results.append(_extended(source, topology, made, options, say))
            else:
                report.results.append(_one(captured[made.batch], topology, made, options, say))
        if captured:
            _advise(source, options, captured, report)
    except aot.NotLowered as error:
        report.missing = error.missing
    except aot.LibtpuMissing as error:
        report.problem = str(error)
        _without_compiler(source, options, report, say)
    return report


def _without_compiler(source: Source, options: Options, report: Report, say: Say) -> None:
    """Find out at least whether the step lowers, and what it asks for."""
    try:
        captured = _capture(source, options.request(max(options.batch, 1)), report, say)
    except aot.NotLowered as error:
        report.missing = error.missing
        return
    one_device = dataclasses.replace(options, shard="none", model_parallel=0)
    _advise(source, one_device, {max(options.batch, 1): captured}, report)


def _plans(source: Source, options: Options) -> Iterator[tuple[aot.Topology, plan.Plan]]:
    heads = _heads(source.config)
    described = [aot.describe(name) for name in options.topologies]
    for topology in described:
        made = plan.make(
            options.shard, topology.device_count, options.batch, options.model_parallel, heads
        )
        parts = 1 if options.shard == "none" else made.axis("data")
        yield topology, dataclasses.replace(made, batch=options.batch or parts * options.each)


def _heads(config: Any) -> int:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if isinstance(text, dict):
        return int(text.get("num_attention_heads") or 0)
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", 0)
    return int(heads or 0)


def _capture(source: Source, request: step.Request, report: Report, say: Say) -> _Captured:
    say(f"building {source.name} and recording its step (batch {request.batch})")
    begin = time.perf_counter()
    model, lowered = step.lower(source, request)
    seconds = time.perf_counter() - begin
    say("counting")
    found = analysis.analyse(lowered.text)
    if report.analysis is None:
        _describe(report, model, lowered)
        report.analysis, report.capture_seconds = found, seconds
        report.text_bytes = len(lowered.text)
        report.missing = list(lowered.fallbacks)
    return _Captured(model, lowered, found, seconds)


def _describe(report: Report, model: Any, lowered: aot.Lowered) -> None:
    if isinstance(model, torch.nn.Module):
        report.parameters = sum(p.numel() for p in model.parameters())
        report.parameter_bytes = sum(p.numel() * p.itemsize for p in model.parameters())
    states = (".exp_avg", ".exp_avg_sq", ".step")
    for slot in lowered.inputs:
        if slot.name.endswith(states):
            report.optimizer_bytes += slot.bytes
        elif slot.name.startswith("kv."):
            report.cache_bytes += slot.bytes
        elif slot.kind == "argument":
            report.input_bytes += slot.bytes


def _one(
    captured: _Captured,
    topology: aot.Topology,
    made: plan.Plan,
    options: Options,
    say: Say,
) -> measure.Result:
    say(f"compiling for {topology.name} ({made.describe()}), about a minute or more")
    program = _rolled(made.pinned(captured.lowered), made, options, say)
    text = made.apply(program)
    word = topology.name.replace(":", "-")
    if options.save_text is not None:
        _target(options.save_text, f"{word}.mlir").write_text(text, "utf-8")
    save = None if options.save is None else _target(options.save, f"{word}.executable")
    arguments = sum(made.local_bytes(slot) for slot in captured.lowered.inputs)
    is_rolled = isinstance(program, rolling.Rolled)
    result = measure.measure(text, topology, made, captured.analysis, arguments, save, is_rolled)
    result.batch = made.batch
    if not isinstance(program, rolling.Rolled):
        return result
    result.loops = [(loop.rounds, loop.operations) for loop in program.loops]
    if options.roll == "auto" and result.verdict.kind == "too large":
        return _as_it_is(captured, topology, made, options, say, result)
    return result


def _as_it_is(
    captured: _Captured,
    topology: aot.Topology,
    made: plan.Plan,
    options: Options,
    say: Say,
    rolled: measure.Result,
) -> measure.Result:
    """Compile a program whose loops do not fit as it is, unless its arguments alone do not."""
    if rolled.argument_bytes > rolled.capacity_bytes:
        return rolled
    say("the loops do not fit; compiling the program as it is, which takes minutes")
    return _one(captured, topology, made, dataclasses.replace(options, roll="never"), say)


def _rolled(
    lowered: aot.Lowered, made: plan.Plan, options: Options, say: Say
) -> aot.Lowered | rolling.Rolled:
    """Return the program with its layers as loops, if that is wanted and possible."""
    limit = _LONG if made.mesh.size == 1 else _LONG_SHARED
    is_long = lowered.text.count("\n") > limit
    if options.roll == "never" or (options.roll == "auto" and not is_long):
        return lowered
    say("looking for repeated layers")
    try:
        return rolling.roll(lowered.text, lowered.inputs, lowered.outputs) or lowered
    except Unreadable as error:
        say(f"layers stay as they are: {error}")
        return lowered


def _extended(
    source: Source, topology: aot.Topology, made: plan.Plan, options: Options, say: Say
) -> measure.Result:
    """Compile two small models and extend their figures to the whole one."""
    wanted = extrapolate.layer_count(source)
    results = []
    for count in options.layers:
        small = extrapolate.with_layers(source, count)
        scratch = Report(f"{source.name} of {count} layers", {})
        captured = _capture(small, options.request(made.batch), scratch, say)
        results.append(_one(captured, topology, made, options, say))
        if not results[-1].verdict.ok:
            return dataclasses.replace(results[-1], extended_from=options.layers[: len(results)])
    few, more = results
    return extrapolate.extend(few, more, (options.layers[0], options.layers[1]), wanted)


def _target(folder: pathlib.Path, name: str) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _advise(
    source: Source, options: Options, captured: dict[int, _Captured], report: Report
) -> None:
    """Collect the hints of all batches, each once."""
    devices = {result.partitions for result in report.results} or {1}
    for batch, one in captured.items():
        for count in devices:
            made = plan.make(
                options.shard, count, batch, options.model_parallel, _heads(source.config)
            )
            found = hints.find(
                source.config, options.request(batch), one.lowered, one.analysis, made
            )
            report.hints += [hint for hint in found if hint not in report.hints]
