# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Which programs are compiled, how long that takes, and why: `explain`."""

from __future__ import annotations

import collections
import dataclasses
import textwrap
from collections.abc import Callable
from typing import Any

from torch_tpu import _C

_COUNTERS = ("launches", "cache_hits", "windows", "operators")
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One program that was compiled or loaded from disk.

    Attributes
    ----------
    serial : int
        Number of the event since the device was opened, from 1.
    trigger : str
        Kind of reason: ``first`` (nothing alike is known), ``number``, ``size``, ``type``,
        ``results``, ``donation``, ``detail``, ``structure``, ``operators``, ``again`` or ``other``.
    reason : str
        The reason in words, such as ``"dimension 0 of addmm's input: 4 -> 7 (...)"``.
    operators : str
        The operators of the window, abbreviated.
    operator_count, node_count : int
        How many operators were recorded, and how many operations they became.
    text_bytes : int
        Size of the StableHLO text; 0 if the program was loaded and no text was made.
    seconds : float
        Time to compile or to load.
    from_disk : bool
        It was loaded from the disk cache.
    mode : str
        ``debug``, ``strict`` or ``fused``.
    device : int
        Index of the device it was made for first.
    first_line, last_line : str
        ``"file:line"`` that called the first and the last operator; empty if not known.
    error : str
        Why it could not be compiled; empty if it could.
    """

    serial: int
    trigger: str
    reason: str
    operators: str
    operator_count: int
    node_count: int
    text_bytes: int
    seconds: float
    from_disk: bool
    mode: str
    device: int
    first_line: str
    last_line: str
    error: str


class ExplainReport:
    """What happened in an `explain` block; complete when the block has ended.

    Attributes
    ----------
    events : list of Compilation
        Programs compiled or loaded from disk, oldest first.
    missed : int
        Events that are no longer known: only the last 1024 are kept.
    counters : dict of str to int
        ``launches``, ``cache_hits``, ``windows``, ``operators`` and ``fallbacks`` of the block, in
        all threads.
    result : Any
        What the function returned, if `explain` was given one.
    """

    def __init__(self) -> None:
        self.events: list[Compilation] = []
        self.missed = 0
        self.counters: dict[str, int] = {}
        self.result: Any = None
        self._after = 0
        self._before: dict[str, int] = {}

    def __enter__(self) -> ExplainReport:
        _wait()
        self._after, _ = _C._compilations(2**63)
        self._before = _read_counters()
        _C._want_places(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _C._want_places(False)
        try:
            _wait()
        except Exception:
            # The error of the block itself is the one to see.
            if kind is None:
                raise
        finally:
            self._collect()

    def _collect(self) -> None:
        newest, events = _C._compilations(self._after)
        self.events = [Compilation(**event) for event in events]
        self.missed = newest - self._after - len(self.events)
        self.counters = {
            name: count - self._before[name] for name, count in _read_counters().items()
        }

    @property
    def compiled(self) -> list[Compilation]:
        """The programs that were compiled, those in vain included."""
        return [event for event in self.events if not event.from_disk]

    @property
    def loaded(self) -> list[Compilation]:
        """The programs that were loaded from disk."""
        return [event for event in self.events if event.from_disk]

    @property
    def seconds(self) -> float:
        """Time spent on compiling and loading."""
        return sum(event.seconds for event in self.events)

    def summary(self) -> str:
        """Return what happened in a line or three."""
        compiled, loaded = self.compiled, self.loaded
        text = (
            f"{_count(len(compiled), 'program')} compiled in {_total(compiled):.2f} s, "
            f"{len(loaded)} loaded from disk in {_total(loaded):.2f} s."
        )
        if self.counters:
            text += (
                f"\n{_count(self.counters['operators'], 'operator')} ran as "
                f"{_count(self.counters['launches'], 'launch', 'launches')}, "
                f"{self.counters['cache_hits']} of them of programs in memory; "
                f"{_count(self.counters['fallbacks'], 'fallback')} to the CPU."
            )
        triggers = collections.Counter(event.trigger for event in self.events)
        if triggers:
            kinds = ", ".join(f"{kind} {count}" for kind, count in triggers.most_common())
            text += f"\nReasons: {kinds}."
        if self.missed:
            text += f"\n{_count(self.missed, 'earlier event')} of the block are no longer known."
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data that `json.dumps` takes (but for `result`)."""
        return {
            "events": [dataclasses.asdict(event) for event in self.events],
            "missed": self.missed,
            "seconds": self.seconds,
            "counters": dict(self.counters),
        }

    def __str__(self) -> str:
        lines = [self.summary()]
        if self.events:
            lines += [
                "",
                f"{'#':>4}  {'seconds':>7}  {'from':8}  {'mode':6}  {'nodes':>6}  operators",
            ]
        for event in self.events:
            source = "failed" if event.error else "disk" if event.from_disk else "compiler"
            lines.append(
                f"{event.serial:>4}  {event.seconds:>7.3f}  {source:8}  {event.mode:6}  "
                f"{event.node_count:>6}  {event.operators}"
            )
            lines += _details(event)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ExplainReport: {len(self.compiled)} compiled, {len(self.loaded)} loaded>"


def explain(
    function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any
) -> ExplainReport:
    """Tell which programs are compiled, and why.

    As a context manager it reports on its block. With a function it calls that and reports on the
    call. In both cases it waits for all devices before and after, so that work recorded before
    does not count, and turns on the recording of Python lines where that is not always on.

    Parameters
    ----------
    function : callable, optional
        Called at once with `args` and `kwargs`; what it returns is ``report.result``.

    Returns
    -------
    ExplainReport
        Printing it gives a table.

    Examples
    --------
    >>> with torch.tpu.explain() as report:  # doctest: +SKIP
    ...     model(x)
    >>> print(report)  # doctest: +SKIP
    >>> print(torch.tpu.explain(model, x).summary())  # doctest: +SKIP
    """
    report = ExplainReport()
    if function is not None:
        with report:
            report.result = function(*args, **kwargs)
    return report


def _wait() -> None:
    if not _C._is_initialized() or _C._is_in_bad_fork():
        return
    for index in range(_C._device_count()):
        _C._synchronize(index)


def _read_counters() -> dict[str, int]:
    metrics = _C._metrics()
    counters = {name: metrics[name] for name in _COUNTERS}
    counters["fallbacks"] = sum(metrics["fallbacks"].values())
    return counters


def _total(events: list[Compilation]) -> float:
    return sum(event.seconds for event in events)


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def _details(event: Compilation) -> list[str]:
    texts = [f"{event.trigger}: {event.reason}"]
    if event.last_line and event.first_line != event.last_line:
        texts.append(f"at {event.first_line} to {event.last_line}")
    elif event.last_line:
        texts.append(f"at {event.last_line}")
    if event.error:
        texts.append(f"error: {event.error.splitlines()[0]}")
    indent = " " * 15
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  "
        )
    ]
