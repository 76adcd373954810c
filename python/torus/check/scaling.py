# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Weak scaling: the same model on more and more chips, the batch growing with them.

What the compiler says of each program (memory, exchanged bytes) is one thing; how long the
step takes there is an estimate from published peaks, and is called that everywhere.
"""

from __future__ import annotations

import dataclasses

from torus.check import chips, runner
from torus.check.report import Report
from torus.check.source import Source

__all__ = ["check", "slice_of"]

# Slices whose compute the wrap-around links of a torus help, as the cloud offers them.
_SHAPES_3D = {
    1: "1x1x1",
    2: "1x2x1",
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
}
_SHAPES_2D = {
    1: "1x1",
    2: "1x2",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}


def slice_of(kind: str, count: int) -> str:
    """Return the topology with `count` chips of a kind.

    Raises
    ------
    ValueError
        If there is none.
    """
    chip = chips.CHIPS.get(kind)
    if chip is None:
        raise ValueError(f"{kind!r} is no known chip; there are {', '.join(chips.CHIPS)}")
    shapes = _SHAPES_2D if chip.torus_rank == 2 else _SHAPES_3D
    if count not in shapes:
        sizes = ", ".join(map(str, shapes))
        raise ValueError(f"there is no slice of {count} {kind} chips here; there are {sizes}")
    return f"{kind}:{shapes[count]}"


def check(source: Source, options: runner.Options, counts: list[int], say: runner.Say) -> Report:
    """Check a model on slices of several sizes.

    Parameters
    ----------
    source : Source
        The model.
    options : runner.Options
        What to do; the first topology names the kind of chip, and the batch is that of one part of
        the axis "data".
    counts : list of int
        Chips.
    say : callable
        Told what is being done.

    Returns
    -------
    Report
        With one result for each count.
    """
    kind = options.topologies[0].partition(":")[0] if options.topologies else "tpu7x"
    shard = "fsdp" if options.shard == "none" else options.shard
    each = max(options.batch, 1)
    report: Report | None = None
    for count in sorted(set(counts)):
        one = dataclasses.replace(
            options, topologies=(slice_of(kind, count),), shard=shard, batch=0, each=each
        )
        found = runner.check(source, one, say)
        if report is None:
            report = found
            report.request.update(shard=shard, batch=f"{each} for each part of data")
        else:
            report.results += found.results
            report.hints += [hint for hint in found.hints if hint not in report.hints]
        report.missing, report.problem = found.missing, found.problem
        if found.missing or found.problem:
            break
    assert report is not None
    report.is_scaling = True
    return report
