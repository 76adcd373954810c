# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Equal layers as a loop, for compilers whose time grows with the length of a program.

`roll` writes a program anew: its runs of equal operations (see `torch_tpu.aot.repeats`) become
``stablehlo.while`` loops, and what differs from round to round, the weights of the layers and the
states of the optimizer, one array each with the layers as its first dimension. It computes what
the program computed, from arguments of another shape; that is enough to ask a compiler for memory
and times, and nothing that a caller of the first program could call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_tpu.aot import repeats
from torch_tpu.aot.capture import Slot
from torch_tpu.aot.program import parse
from torch_tpu.aot.repeats import Run
from torch_tpu.aot.roll_program import Writer
from torch_tpu.aot.roll_values import OutOfLineError, Stacked

__all__ = ["Loop", "Rolled", "Stacked", "roll"]


@dataclasses.dataclass(frozen=True)
class Loop:
    """One loop.

    Attributes
    ----------
    rounds : int
        How often it goes round.
    operations : int
        In each round.
    """

    rounds: int
    operations: int


@dataclasses.dataclass(frozen=True)
class Rolled:
    """A program with loops.

    Attributes
    ----------
    text : str
        StableHLO.
    inputs, outputs : list of Slot
        Its arguments and results; some of them are `Stacked`.
    loops : list of Loop
        In order.
    operations : int
        That the program had.
    """

    text: str
    inputs: list[Slot]
    outputs: list[Slot]
    loops: list[Loop]
    operations: int

    @property
    def rounds(self) -> int:
        """How many equal pieces became loops."""
        return sum(loop.rounds for loop in self.loops)


def roll(
    text: str, inputs: Sequence[Slot], outputs: Sequence[Slot], least_rounds: int = 3
) -> Rolled | None:
    """Turn repeated layers into loops.

    Parameters
    ----------
    text : str
        A program as `torch_tpu.aot.lower` writes it; custom calls for shardings may be in it.
    inputs, outputs : sequence of Slot
        Its arguments and results.
    least_rounds : int
        How many layers are worth a loop.

    Returns
    -------
    Rolled or None
        None if nothing in it repeats.

    Raises
    ------
    Unreadable
        If the text has another form.
    """
    program = parse(text)
    repeats.gather_updates(program, outputs)
    finder = repeats.Finder(program, least_rounds)
    runs = finder.runs()
    while runs:
        try:
            made = Writer(program, runs, inputs, outputs, text).write()
        except OutOfLineError as error:
            runs = _mended(finder, runs, error)
            continue
        loops = [Loop(run.rounds, run.period) for run in sorted(runs, key=lambda run: run.start)]
        return Rolled(made.text, made.inputs, made.outputs, loops, len(program.operations))
    return None


def _mended(finder: repeats.Finder, runs: list[Run], error: OutOfLineError) -> list[Run]:
    """Return the runs with the one in question shorter, or without it."""
    run, left = error.run, error.run.rounds - error.front - error.back
    others = [other for other in runs if other is not run]
    if left < finder.least or left == run.rounds:
        return others
    shorter = Run(run.start + error.front * run.period, run.period, left)
    return [*others, shorter] if finder.assign(shorter) else others
