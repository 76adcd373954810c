# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Equal layers in a program: runs of operations that are the same again and again.

A `Run` is a number of rounds of equal operations. In each of them an operand is one of four things:
a result of the same round, a result of the round before it, a value from outside that is the same
in all rounds, or one from outside that differs, such as a layer's weight.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from torch_tpu.aot.capture import Slot
from torch_tpu.aot.program import Operation, Program, bytes_of

__all__ = ["Finder", "Role", "Run", "gather_updates"]

# A round has this many operations at least, and a loop saves that many.
_SMALLEST, _SAVED = 8, 48
# Layers may come in groups, such as five with a window and one without.
_LARGEST_GROUP = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """What an operand is.

    Attributes
    ----------
    kind : str
        ``"inner"``, ``"carried"``, ``"same"`` or ``"each"``.
    place : tuple of int
        For the first two, the operation in the round and the number of its result.
    names : tuple of str
        For ``"carried"`` the value before the first round, for ``"same"`` the value, for ``"each"``
        that of each round.
    """

    kind: str
    place: tuple[int, int] = (0, 0)
    names: tuple[str, ...] = ()


@dataclasses.dataclass
class Run:
    """Rounds of equal operations.

    Attributes
    ----------
    start, period, rounds : int
        Operation at which they start, operations in each, how many there are.
    roles : list of list of Role
        For each operation of a round, those of its operands.
    """

    start: int
    period: int
    rounds: int
    roles: list[list[Role]] = dataclasses.field(default_factory=list, repr=False)

    @property
    def end(self) -> int:
        """The operation after the last."""
        return self.start + self.period * self.rounds


# ---- order ----


def gather_updates(program: Program, outputs: Sequence[Slot]) -> None:
    """Move what only updates one parameter to where its gradient is known.

    Optimizers take their steps over all parameters at once; behind each layer's gradients, its
    updates are part of the layer.
    """
    owners = _owners(program, outputs)
    latest: dict[int, int] = {}
    first: dict[int, int] = {}
    places = _places(program.operations)
    for i, operation in enumerate(program.operations):
        owner = owners[i]
        if owner < 0:
            continue
        first.setdefault(owner, i)
        used = (places[name][0] for name in operation.operands if name in places)
        outside = [i for i in used if owners[i] != owner]
        latest[owner] = max([latest.get(owner, -1), *outside])
    keys = [
        (i, -1, i) if owner < 0 else (latest[owner], first[owner], i)
        for i, owner in enumerate(owners)
    ]
    program.operations = [program.operations[i] for _, _, i in sorted(keys)]


def _owners(program: Program, outputs: Sequence[Slot]) -> list[int]:
    """Return for each operation the parameter that alone it matters for, else -1."""
    names = [slot.name for slot in outputs if slot.kind == "parameter"]
    numbers = {name: i for i, name in enumerate(names)}
    reached: dict[str, int] = {}
    for name, slot in zip(program.returned, outputs, strict=True):
        owner = numbers.get(slot.name, numbers.get(slot.name.rpartition(".")[0], -1))
        reached[name] = owner if reached.get(name, owner) == owner else -1
    found = [-1] * len(program.operations)
    for i in range(len(found) - 1, -1, -1):
        operation = program.operations[i]
        of = {reached[name] for name in operation.results() if name in reached}
        found[i] = of.pop() if len(of) == 1 else -1
        for name in operation.operands:
            owner = found[i]
            reached[name] = owner if reached.get(name, owner) == owner else -1
    return found


def _places(operations: Sequence[Operation]) -> dict[str, tuple[int, int]]:
    """Return for each result the operation that makes it, and which of its results it is."""
    return {
        name: (i, k) for i, operation in enumerate(operations)
        for k, name in enumerate(operation.results())
    }  # fmt: skip


# ---- runs ----


class Finder:
    """Finds the runs of a program.

    Parameters
    ----------
    program : Program
        Its operations in the order in which they run.
    least_rounds : int
        How many rounds a run has at least.
    """

    def __init__(self, program: Program, least_rounds: int = 3) -> None:
        self.program = program
        self.operations = program.operations
        self.least = least_rounds
        self.places = _places(program.operations)
        self.tokens = self._tokens()

    def _tokens(self) -> np.ndarray:
        numbers: dict[tuple[str, ...], int] = {}
        return np.array(
            [numbers.setdefault(o.pieces, len(numbers)) for o in self.operations], dtype=np.int64
        )

    def runs(self) -> list[Run]:
        """Return runs that do not overlap, in order."""
        return sorted(self._found(), key=lambda run: run.start)

    def _found(self) -> Iterator[Run]:
        """Yield runs, the largest first."""
        waiting = [(0, len(self.operations))]
        while waiting:
            low, high = waiting.pop()
            run = self._largest(low, high)
            if run is not None:
                yield run
                waiting += [(low, run.start), (run.end, high)]

    def _largest(self, low: int, high: int) -> Run | None:
        for start, end, period in self._stretches(low, high):
            for group in range(1, _LARGEST_GROUP + 1):
                run = self._regular(start, end, period * group)
                if run is not None:
                    return run
        return None

    def _stretches(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Yield start, end and period where tokens repeat, what saves most operations first."""
        found = []
        tokens = self.tokens[low:high]
        for period in self._periods(low, high):
            length, begin = _longest_true(tokens[:-period] == tokens[period:])
            rounds = (length + period) // period
            saved = (rounds - 1) * period
            if rounds >= self.least and saved >= _SAVED:
                found.append((saved, -period, low + begin, low + begin + length + period))
        found.sort(reverse=True)
        for _, period, start, end in found[:4]:
            yield start, end, -period

    def _periods(self, low: int, high: int) -> list[int]:
        """Return the distances between equal products."""
        places = collections.defaultdict(list)
        for i in range(low, high):
            if self.operations[i].is_product:
                places[self.tokens[i]].append(i)
        distances: collections.Counter[int] = collections.Counter()
        for of in places.values():
            for step in range(1, 9):
                distances.update(b - a for a, b in zip(of, of[step:], strict=False))
        wide = [d for d, n in distances.most_common(64) if d >= _SMALLEST and n >= self.least - 1]
        return [d for d in wide if d * self.least <= high - low]

    def _regular(self, start: int, end: int, period: int) -> Run | None:
        """Return rounds between two places whose operands have roles, if there are any."""
        if (end - start) // period < self.least:
            return None
        phase = self._cut(start, end, period)
        first = start + (phase - start) % period
        rounds = (end - first) // period
        for front, back in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (1, 2), (2, 2)):
            left = rounds - front - back
            if left < self.least:
                continue
            run = Run(first + front * period, period, left)
            if self.assign(run):
                return run
        return None

    def _cut(self, start: int, end: int, period: int) -> int:
        """Return the place in the middle of a stretch over which the fewest bytes are carried."""
        middle = start + (end - start) // period // 2 * period
        change = np.zeros(end - start + 1)
        for i in range(start, end):
            for name in self.operations[i].operands:
                made = self.places.get(name, (-1, 0))[0]
                if start <= made < i and i - made <= period:
                    size = bytes_of(self.program.types[name])
                    change[made + 1 - start] += size
                    change[i + 1 - start] -= size
        carried = np.cumsum(change)[middle - start : middle - start + period]
        shift = (np.arange(period) + middle - start) % period
        rounds = (end - start - shift) // period
        # A little more to carry is worth a round that need not stand alone.
        rounds[carried > 4 * carried.min()] = 0
        best = np.flatnonzero(rounds == rounds.max())
        return middle + int(best[np.argmin(carried[best])])

    def assign(self, run: Run) -> bool:
        """Set the roles of a run; return whether all operands have one."""
        run.roles = []
        for j in range(run.period):
            rounds = [
                self.operations[run.start + k * run.period + j].operands for k in range(run.rounds)
            ]
            roles = [self._role(run, names) for names in zip(*rounds, strict=True)]
            if None in roles:
                return False
            run.roles.append([role for role in roles if role is not None])
        return True

    def _role(self, run: Run, names: tuple[str, ...]) -> Role | None:
        whence = [self._whence(run, k, name) for k, name in enumerate(names)]
        kind, *place = whence[-1]
        if any(found != whence[-1] for found in whence[1:]):
            return None
        if kind == "carried" and whence[0][0] == "outside":
            return Role(kind, (place[0], place[1]), names[:1])
        if whence[0] != whence[-1]:
            return None
        if kind == "inner":
            return Role(kind, (place[0], place[1]))
        if kind == "outside":
            same = len(set(names)) == 1
            return Role("same", names=names[:1]) if same else Role("each", names=names)
        return None

    def _whence(self, run: Run, k: int, name: str) -> tuple[str, int, int]:
        """Return where a name that round `k` uses comes from."""
        made, number = self.places.get(name, (-1, 0))
        offset = made - (run.start + k * run.period)
        if 0 <= offset < run.period:
            return "inner", offset, number
        if k and -run.period <= offset < 0:
            return "carried", offset + run.period, number
        if run.start <= made < run.end:
            return "far", 0, 0
        return "outside", 0, 0


def _longest_true(values: np.ndarray) -> tuple[int, int]:
    """Return length and start of the longest stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], values.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    starts, ends = edges[::2], edges[1::2]
    best = int(np.argmax(ends - starts))
    return int(ends[best] - starts[best]), int(starts[best])
