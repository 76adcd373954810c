# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Where the values of several layers lie: rows of arrays, and columns of those."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from torch_tpu.aot.capture import Slot
from torch_tpu.aot.repeats import Run

__all__ = [
    "Column",
    "OutOfLineError",
    "Row",
    "Scope",
    "Stacked",
    "families_of",
    "in_line",
    "stacked_type",
]


@dataclasses.dataclass(frozen=True)
class Stacked(Slot):
    """An argument or result that holds those of several layers, one behind the other.

    Attributes
    ----------
    layer : Slot
        The first of them.
    members : tuple of int
        Their numbers in the program as it was.
    """

    layer: Slot | None = None
    members: tuple[int, ...] = ()


class OutOfLineError(Exception):
    """What a run takes in its rounds lies in no one array; perhaps without some of them it does."""

    def __init__(self, run: Run, front: int, back: int) -> None:
        super().__init__(run, front, back)
        self.run, self.front, self.back = run, front, back


@dataclasses.dataclass
class Scope:
    """A place where lines are written; `names` are what values are called there."""

    lines: list[str]
    names: dict[str, str]
    numbers: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Where a value lies: in row `index` of `stack`."""

    stack: str
    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """Rows that a loop goes through: `first` + `step` * round of `stack`."""

    stack: str
    first: int
    step: int


def families_of(runs: Sequence[Run], arguments: dict[str, str]) -> list[list[str]]:
    """Return the arguments that are one array each: those that one operand is in all rounds."""
    numbers = {name: i for i, name in enumerate(arguments)}
    family: dict[str, set[str]] = {}
    for names in _columns(runs):
        if all(name in numbers for name in names):
            joined = set(names).union(*(family.get(name, ()) for name in names))
            family.update((name, joined) for name in joined)
    found = {min(numbers[n] for n in members): members for members in family.values()}
    return [sorted(found[number], key=numbers.__getitem__) for number in sorted(found)]


def _columns(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    return [
        role.names for run in runs for roles in run.roles for role in roles if role.kind == "each"
    ]


def in_line(rows: Sequence[Row | None]) -> Column | None:
    """Return the column that rows are, if they are one."""
    if any(row is None or row.stack != rows[0].stack for row in rows):  # type: ignore[union-attr]
        return None
    places = [row.index for row in rows if row is not None]
    step = places[1] - places[0]
    if any(b - a != step for a, b in itertools.pairwise(places)) or not step:
        return None
    assert rows[0] is not None
    return Column(rows[0].stack, places[0], step)


def stacked_type(kind: str, count: int) -> str:
    """Return the type of an array of values of a type."""
    return f"tensor<{count}x{kind[len('tensor<') :]}"
