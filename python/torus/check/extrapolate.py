# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Large models from small ones: figures of a few layers, extended in a straight line.

A model of equal layers grows by the same amounts with each of them, and the compiler takes long for
many on many devices. What is found this way is marked as such: nobody compiled the whole model.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

from torus.check.measure import Result, Traffic
from torus.check.source import Source, SourceError
from torus.check.verdict import Verdict

__all__ = ["extend", "layer_count", "with_layers"]

_GROWING = (
    "argument_bytes", "output_bytes", "alias_bytes", "temporary_bytes", "code_bytes",
    "copied_bytes", "peak_bytes",
    "flops", "compiler_flops", "compiler_bytes", "compute_seconds", "memory_seconds",
    "exchange_seconds", "compiler_seconds", "unestimated", "loops_with_exchanges",
)  # fmt: skip


def layer_count(source: Source) -> int:
    """Return how many layers the model has.

    Raises
    ------
    SourceError
        If its configuration does not say, or the number cannot be changed.
    """
    count = getattr(source.config, "num_hidden_layers", None)
    if source.with_config is None or not isinstance(count, int):
        raise SourceError("--layers needs a configuration of Transformers with num_hidden_layers")
    return count


def with_layers(source: Source, count: int) -> Source:
    """Return the same model with another number of layers."""
    assert source.with_config is not None
    config = copy.deepcopy(source.config)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        config.layer_types = list(kinds)[:count]
    config.num_hidden_layers = count
    return source.with_config(config)


def extend(few: Result, more: Result, counts: tuple[int, int], wanted: int) -> Result:
    """Extend the figures of two numbers of layers to a third.

    Parameters
    ----------
    few, more : Result
        For `counts` layers; both must have been taken by the compiler.
    counts : tuple of int
        The layers of `few` and of `more`.
    wanted : int
        The layers of the model.

    Returns
    -------
    Result
        With a verdict that goes by the extended peak.
    """
    steps = (wanted - counts[0]) / (counts[1] - counts[0])

    def line(a: float | None, b: float | None) -> float:
        # What the layers do not set, such as the memory of a large head, may shrink by chance
        # from one program to the next; with more layers nothing does.
        return max((a or 0) + ((b or 0) - (a or 0)) * steps, b or 0)

    made = dataclasses.replace(more, extended_from=counts)
    for name in _GROWING:
        value = line(getattr(few, name), getattr(more, name))
        is_whole = isinstance(getattr(more, name), int)
        setattr(made, name, round(value) if is_whole else value)
    made.compiler_seconds = made.compiler_seconds or None
    made.compile_seconds = few.compile_seconds + more.compile_seconds
    made.exchanges = _exchanges(few, more, line)
    if made.capacity_bytes and made.peak_bytes > made.capacity_bytes:
        made.verdict = Verdict(
            "too large",
            f"needs about {made.peak_bytes / 2**30:.1f} GiB of a device's "
            f"{made.capacity_bytes / 2**30:.1f} GiB of HBM, extended from {counts[0]} and "
            f"{counts[1]} layers",
            "more chips, or a smaller batch",
            made.peak_bytes,
            made.capacity_bytes,
        )
    return made


def _exchanges(few: Result, more: Result, line: Callable[[float, float], float]) -> list[Traffic]:
    before = {t.kind: t for t in few.exchanges}
    found = []
    for t in more.exchanges:
        old = before.get(t.kind, Traffic(t.kind, 0, 0, 0.0))
        count, size = line(old.count, t.count), line(old.bytes, t.bytes)
        found.append(Traffic(t.kind, round(count), round(size), line(old.sent_bytes, t.sent_bytes)))
    return found
