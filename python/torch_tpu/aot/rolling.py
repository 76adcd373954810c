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
import re
from collections.abc import Sequence

from torch_tpu.aot import repeats
from torch_tpu.aot.capture import Slot
from torch_tpu.aot.program import Program, Unreadable, bytes_of, dims_of, parse
from torch_tpu.aot.repeats import Role, Run
from torch_tpu.aot.sharding import signature

__all__ = ["Loop", "Rolled", "Stacked", "roll"]

# Values of a column that lie nowhere in one array are copied into one, if they are this small.
_COPIED = 1 << 24
_ALIAS = re.compile(r"tf\.aliasing_output\s*=\s*\d+")


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
        writer = _Writer(program, runs, inputs, outputs, text)
        try:
            return writer.write()
        except _OutOfLineError as error:
            runs = _mended(finder, runs, error)
    return None


class _OutOfLineError(Exception):
    """What a run takes in its rounds lies in no one array; perhaps without some of them it does."""

    def __init__(self, run: Run, front: int, back: int) -> None:
        super().__init__(run, front, back)
        self.run, self.front, self.back = run, front, back


def _mended(finder: repeats.Finder, runs: list[Run], error: _OutOfLineError) -> list[Run]:
    """Return the runs with the one in question shorter, or without it."""
    run, left = error.run, error.run.rounds - error.front - error.back
    others = [other for other in runs if other is not run]
    if left < finder.least or left == run.rounds:
        return others
    shorter = Run(run.start + error.front * run.period, run.period, left)
    return [*others, shorter] if finder.assign(shorter) else others


# ---- arrays of layers ----


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """Where a value lies: in row `index` of `stack`."""

    stack: str
    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """Rows that a loop goes through: `first` + `step` * round of `stack`."""

    stack: str
    first: int
    step: int


def _families(runs: Sequence[Run], arguments: dict[str, str]) -> list[list[str]]:
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


def _in_line(rows: Sequence[_Row | None]) -> _Column | None:
    """Return the column that rows are, if they are one."""
    if any(row is None or row.stack != rows[0].stack for row in rows):  # type: ignore[union-attr]
        return None
    places = [row.index for row in rows if row is not None]
    step = places[1] - places[0]
    if any(b - a != step for a, b in zip(places, places[1:], strict=False)) or not step:
        return None
    assert rows[0] is not None
    return _Column(rows[0].stack, places[0], step)


def _stacked_type(kind: str, count: int) -> str:
    return f"tensor<{count}x{kind[len('tensor<') :]}"


def _pattern(names: Sequence[str]) -> str:
    """Return one name for several: layers.0.weight, layers.1.weight are layers.*.weight."""
    parts = [name.split(".") for name in names]
    if any(len(p) != len(parts[0]) for p in parts):
        return names[0]
    return ".".join(
        words[0] if len(set(words)) == 1 else "*" for words in zip(*parts, strict=True)
    )


# ---- writing ----


@dataclasses.dataclass
class _Scope:
    """A place where lines are written; `names` are what values are called there."""

    lines: list[str]
    names: dict[str, str]
    numbers: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class _State:
    """What a loop hands from round to round: type, value before, in a round, and after it."""

    kind: str
    before: str
    within: str
    after: str = ""


class _Writer:
    def __init__(
        self,
        program: Program,
        runs: Sequence[Run],
        inputs: Sequence[Slot],
        outputs: Sequence[Slot],
        text: str,
    ) -> None:
        self.program, self.inputs, self.outputs, self.text = program, inputs, outputs, text
        self.runs = sorted(runs, key=lambda run: run.start)
        self.types = dict(program.types)
        self.count = 0
        self.main = _Scope([], {})
        self.rows: dict[str, list[_Row]] = {}
        self.inside = self._round_of_operations()
        self.used = self._uses()
        self.families = _families(self.runs, program.arguments)
        self.newest: dict[str, str] = {}  # an array of arguments: its value with updates
        self.updated: dict[str, _Row] = {}  # a value that is such an update: its place there
        self._add_families()

    def _add_families(self) -> None:
        for number, members in enumerate(self.families):
            stack = f"%stack{number}"
            self.types[stack] = _stacked_type(self.types[members[0]], len(members))
            self.newest[stack] = stack
            for i, name in enumerate(members):
                self.rows[name] = [_Row(stack, i)]
        arguments = list(self.program.arguments)
        self.targets: dict[str, _Row] = {}
        for name, slot in zip(self.program.returned, self.outputs, strict=True):
            rows = self.rows.get(arguments[slot.alias]) if slot.alias is not None else None
            if rows:
                self.targets.setdefault(name, rows[0])

    def _round_of_operations(self) -> dict[int, tuple[Run, int]]:
        return {
            i: (run, (i - run.start) // run.period)
            for run in self.runs
            for i in range(run.start, run.end)
        }

    def _uses(self) -> dict[str, list[int]]:
        """Return for each value the operations that use it; -1 for the program's caller."""
        used: dict[str, list[int]] = {name: [-1] for name in self.program.returned}
        for i, operation in enumerate(self.program.operations):
            for name in operation.operands:
                used.setdefault(name, []).append(i)
        return used

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def write(self) -> Rolled:
        place = 0
        for run in [*self.runs, None]:
            end = run.start if run else len(self.program.operations)
            for operation in self.program.operations[place:end]:
                names = [self.name(self.main, n) for n in operation.operands]
                self.main.lines.append(operation.write(operation.name, names))
            if run is not None:
                _LoopWriter(self, run).write()
                place = run.end
        return self._finish()

    # ---- values ----

    def name(self, scope: _Scope, name: str) -> str:
        """Return what a value is called, after making it if it is only a row or a constant."""
        if name not in scope.names:
            if name in self.program.constants:
                scope.names[name] = self.fresh()
                scope.lines.append(self.program.constants[name].write(scope.names[name], ()))
            elif name in self.rows and scope is self.main:
                scope.names[name] = self._row(self.rows[name][0], self.types[name])
            else:
                scope.names[name] = name
        return scope.names[name]

    def _row(self, row: _Row, kind: str) -> str:
        rank = len(dims_of(kind)[0])
        dims, _ = dims_of(kind)
        sizes = ", ".join([f"{row.index}:{row.index + 1}", *(f"0:{d}" for d in dims[:rank])])
        cut, made, one = self.fresh(), self.fresh(), _stacked_type(kind, 1)
        self.main.lines += [
            f"{cut} = stablehlo.slice {row.stack} [{sizes}] : ({self.types[row.stack]}) -> {one}",
            f"{made} = stablehlo.reshape {cut} : ({one}) -> {kind}",
        ]
        return made

    def number(self, scope: _Scope, value: int) -> str:
        """Return a constant of type i32."""
        if value not in scope.numbers:
            name = scope.numbers[value] = self.fresh()
            scope.lines.append(f"{name} = stablehlo.constant dense<{value}> : tensor<i32>")
        return scope.numbers[value]

    def zeros(self, kind: str) -> str:
        """Return an array of zeros."""
        element = dims_of(kind)[1]
        zero = "false" if element == "i1" else "0" if element.lstrip("u").startswith("i") else "0.0"
        zero = f"({zero}, {zero})" if element.startswith("complex") else zero
        one, made = self.fresh(), self.fresh()
        self.main.lines += [
            f"{one} = stablehlo.constant dense<{zero}> : tensor<{element}>",
            f"{made} = stablehlo.broadcast_in_dim {one}, dims = [] : (tensor<{element}>) -> {kind}",
        ]
        return made

    def put(self, scope: _Scope, stack: str, kind: str, value: str, layer: str, at: str) -> str:
        """Write a value into a row of an array and return the array."""
        one, up, made = _stacked_type(layer, 1), self.fresh(), self.fresh()
        zero = self.number(scope, 0)
        rank = len(dims_of(layer)[0])
        places = ", ".join([at, *[zero] * rank])
        numbers = ", ".join(["tensor<i32>"] * (rank + 1))
        scope.lines += [
            f"{up} = stablehlo.reshape {value} : ({layer}) -> {one}",
            f"{made} = stablehlo.dynamic_update_slice {stack}, {up}, {places} : "
            f"({kind}, {one}, {numbers}) -> {kind}",
        ]
        return made

    def take(self, scope: _Scope, stack: str, kind: str, layer: str, at: str) -> str:
        """Return a row of an array."""
        one, cut, made = _stacked_type(layer, 1), self.fresh(), self.fresh()
        zero = self.number(scope, 0)
        dims, _ = dims_of(layer)
        places = ", ".join([at, *[zero] * len(dims)])
        numbers = ", ".join(["tensor<i32>"] * (len(dims) + 1))
        sizes = ", ".join(map(str, (1, *dims)))
        scope.lines += [
            f"{cut} = stablehlo.dynamic_slice {stack}, {places}, sizes = [{sizes}] : "
            f"({kind}, {numbers}) -> {one}",
            f"{made} = stablehlo.reshape {cut} : ({one}) -> {layer}",
        ]
        return made

    # ---- columns ----

    def column(self, run: Run, names: tuple[str, ...]) -> _Column:
        """Return where a loop finds what one of its operands is in each round."""
        options = [self.rows.get(name, []) for name in names]
        for stack in {row.stack for row in options[len(names) // 2]}:
            rows = [next((r for r in of if r.stack == stack), None) for of in options]
            found = _in_line(rows)
            if found is not None:
                return found
            self._blame(run, rows)
        if sum(bytes_of(self.types[name]) for name in names) > _COPIED:
            raise _OutOfLineError(run, 0, 0)
        return self._copied(names)

    def _blame(self, run: Run, rows: list[_Row | None]) -> None:
        """Ask for a shorter run if only rounds at its ends are elsewhere."""
        count = len(rows)
        for front, back in ((1, 0), (0, 1), (1, 1), (2, 0), (0, 2)):
            rest = rows[front : count - back]
            if len(rest) > 1 and _in_line(rest) is not None:
                raise _OutOfLineError(run, front, back)

    def _copied(self, names: tuple[str, ...]) -> _Column:
        kind = self.types[names[0]]
        one, whole = _stacked_type(kind, 1), _stacked_type(kind, len(names))
        parts = []
        for name in names:
            value, part = self.name(self.main, name), self.fresh()
            self.main.lines.append(f"{part} = stablehlo.reshape {value} : ({kind}) -> {one}")
            parts.append(part)
        made = self.fresh()
        self.types[made] = whole
        self.main.lines.append(
            f"{made} = stablehlo.concatenate {', '.join(parts)}, dim = 0 : "
            f"({', '.join([one] * len(names))}) -> {whole}"
        )
        return _Column(made, 0, 1)

    # ---- the end ----

    def _finish(self) -> Rolled:
        inputs, entries, numbers = self._arguments()
        outputs, returned = self._results(numbers)
        kinds = [self.types.get(name) or self.types[name] for name in returned]
        values = [self.main.names.get(name, name) for name in returned]
        aliases = {slot.alias: i for i, slot in enumerate(outputs) if slot.alias is not None}
        entries = [_with_alias(entry, aliases.get(i)) for i, entry in enumerate(entries)]
        slots = [
            dataclasses.replace(slot, alias=aliases.get(i)) for i, slot in enumerate(inputs)
        ]
        text = (
            f"{self.program.head}{', '.join(entries)}) -> ({', '.join(kinds)}) {{\n"
            + "\n".join(self.main.lines)
            + f"\nreturn {', '.join(values)} : {', '.join(kinds)}\n}}\n}}\n"
        )
        loops = [Loop(run.rounds, run.period) for run in self.runs]
        return Rolled(text, slots, outputs, loops, len(self.program.operations))

    def _arguments(self) -> tuple[list[Slot], list[str], dict[int, int]]:
        """Return the new arguments, as slots and as text, and the new number of each old one."""
        entries = signature(self.text)[1]
        place = {name: i for i, name in enumerate(self.program.arguments)}
        family = {name: i for i, members in enumerate(self.families) for name in members}
        slots: list[Slot] = []
        texts: list[str] = []
        numbers: dict[int, int] = {}
        for name, old in place.items():
            if old in numbers:
                continue
            members = self.families[family[name]] if name in family else [name]
            olds = tuple(place[member] for member in members)
            numbers.update((number, len(slots)) for number in olds)
            slots.append(self._slot([self.inputs[i] for i in olds], olds))
            if name in family:
                stack = f"%stack{family[name]}"
                texts.append(f"{stack}: {self.types[stack]}")
            else:
                texts.append(entries[old])
        return slots, texts, numbers

    def _slot(self, slots: Sequence[Slot], members: tuple[int, ...]) -> Slot:
        if len(slots) == 1:
            return slots[0]
        first = slots[0]
        return Stacked(
            _pattern([slot.name for slot in slots]),
            (len(slots), *first.shape),
            first.dtype,
            first.kind,
            layer=first,
            members=members,
        )

    def _results(self, numbers: dict[int, int]) -> tuple[list[Slot], list[str]]:
        """Return the new results and the values that they are."""
        self._update_rest()
        slots: list[Slot] = []
        names: list[str] = []
        done: set[str] = set()
        returned = self.program.returned
        for name, slot in zip(returned, self.outputs, strict=True):
            row = self.targets.get(name) or next(iter(self.rows.get(name, [])), None)
            aliased = None if slot.alias is None else numbers[slot.alias]
            if row is None or (name not in self.targets and not self._is_all_returned(row.stack)):
                slots.append(dataclasses.replace(slot, alias=aliased))
                names.append(self.name(self.main, name))
                self.types[names[-1]] = self.types[name]
            elif row.stack not in done:
                done.add(row.stack)
                same = [i for i, n in enumerate(returned) if self._stack_of(n) == row.stack]
                made = self._slot([self.outputs[i] for i in same], tuple(same))
                shape = dims_of(self.types[row.stack])[0]
                slots.append(dataclasses.replace(made, shape=shape, alias=aliased))
                value = self.newest.get(row.stack, row.stack)
                self.types[value] = self.types[row.stack]
                names.append(value)
        return slots, names

    def _stack_of(self, name: str) -> str:
        row = self.targets.get(name) or next(iter(self.rows.get(name, [])), None)
        return row.stack if row else ""

    def _is_all_returned(self, stack: str) -> bool:
        """Return whether an array holds results of the program and nothing else."""
        count = dims_of(self.types[stack])[0][0]
        return sum(self._stack_of(name) == stack for name in self.program.returned) == count

    def _update_rest(self) -> None:
        """Write into the arrays of arguments what no loop has written there."""
        for name, row in self.targets.items():
            if self.updated.get(name) == row:
                continue
            kind = self.types[row.stack]
            value, at = self.name(self.main, name), self.number(self.main, row.index)
            self.newest[row.stack] = self.put(
                self.main, self.newest[row.stack], kind, value, self.types[name], at
            )


def _with_alias(entry: str, output: int | None) -> str:
    """Return an argument's text with the number of the result that takes its memory."""
    if output is None:
        return entry
    if _ALIAS.search(entry):
        return _ALIAS.sub(f"tf.aliasing_output = {output}", entry)
    return f"{entry} {{tf.aliasing_output = {output} : i32}}"


class _LoopWriter:
    """Writes one run as a loop."""

    def __init__(self, writer: _Writer, run: Run) -> None:
        self.writer, self.run = writer, run
        self.body = _Scope([], {})
        self.states: list[_State] = []
        self.counter = self._state("tensor<i32>", writer.number(writer.main, 0))
        self.arrays: dict[str, _State] = {}
        self.places: dict[tuple[int, int], str] = {}
        self.operations = writer.program.operations[run.start : run.start + run.period]

    def _state(self, kind: str, before: str) -> _State:
        state = _State(kind, before, self.writer.fresh())
        self.states.append(state)
        return state

    def write(self) -> None:
        kept = self._kept()
        self._prepare(kept)
        carried = self._carry()
        for operation, roles in zip(self.operations, self.run.roles, strict=True):
            names = [
                self._operand(role, name, carried)
                for role, name in zip(roles, operation.operands, strict=True)
            ]
            self.body.lines.append(operation.write(operation.name, names))
        for (place, _), state in carried.items():
            state.after = self._result(place)
        finals = self._finals(carried, kept)
        stores = [self._store(place) for place in kept]
        self._emit()
        self._publish(carried, finals, stores)

    # ---- what goes in ----

    def _result(self, place: tuple[int, int]) -> str:
        return self.operations[place[0]].results()[place[1]]

    def _at(self, k: int, place: tuple[int, int]) -> str:
        """Return the name of a result of a round."""
        operation = self.writer.program.operations[
            self.run.start + k * self.run.period + place[0]
        ]
        return operation.results()[place[1]]

    def _carry(self) -> dict[tuple[tuple[int, int], str], _State]:
        found: dict[tuple[tuple[int, int], str], _State] = {}
        for role in (role for roles in self.run.roles for role in roles):
            key = (role.place, role.names[0] if role.names else "")
            if role.kind == "carried" and key not in found:
                kind = self.writer.types[role.names[0]]
                before = self.writer.name(self.writer.main, role.names[0])
                found[key] = self._state(kind, before)
        return found

    def _operand(
        self, role: Role, name: str, carried: dict[tuple[tuple[int, int], str], _State]
    ) -> str:
        if role.kind == "inner":
            return self._result(role.place)
        if role.kind == "carried":
            return carried[role.place, role.names[0]].within
        if role.kind == "each":
            return self._each(role.names)
        if name in self.writer.program.constants:
            return self.writer.name(self.body, name)
        return self._same(name)

    def _same(self, name: str) -> str:
        if name not in self.body.names:
            before = self.writer.name(self.writer.main, name)
            state = self._state(self.writer.types[name], before)
            state.after = self.body.names[name] = state.within
        return self.body.names[name]

    def _each(self, names: tuple[str, ...]) -> str:
        key = " ".join(names)
        if key not in self.body.names:
            column = self.writer.column(self.run, names)
            array = self._array(column.stack)
            at = self._index(column.first, column.step)
            kind = self.writer.types[names[0]]
            self.body.names[key] = self.writer.take(
                self.body, array.within, array.kind, kind, at
            )
        return self.body.names[key]

    def _array(self, stack: str) -> _State:
        if stack not in self.arrays:
            state = self._state(self.writer.types[stack], stack)
            state.after = state.within
            self.arrays[stack] = state
        return self.arrays[stack]

    def _index(self, first: int, step: int) -> str:
        """Return first + step * round."""
        key = f"index {first} {step}"
        if key not in self.body.names:
            at = self.counter.within
            for what, value, neutral in (("multiply", step, 1), ("add", first, 0)):
                if value != neutral:
                    made, other = self.writer.fresh(), self.writer.number(self.body, value)
                    line = f"{made} = stablehlo.{what} {at}, {other} : tensor<i32>"
                    self.body.lines.append(line)
                    at = made
            self.body.names[key] = at
        return self.body.names[key]

    # ---- what comes out ----

    def _kept(self) -> list[tuple[int, int]]:
        """Return the results that others need of rounds before the last."""
        return [
            (j, n)
            for j, operation in enumerate(self.operations)
            for n in range(len(operation.types))
            if any(self._escapes(k, (j, n)) for k in range(self.run.rounds - 1))
        ]

    def _escapes(self, k: int, place: tuple[int, int]) -> bool:
        """Return whether a result of a round is needed outside of it and of the next."""
        begin = self.run.start + k * self.run.period
        end = min(begin + 2 * self.run.period, self.run.end)
        uses = self.writer.used.get(self._at(k, place), ())
        return any(not begin <= use < end for use in uses)

    def _finals(
        self,
        carried: dict[tuple[tuple[int, int], str], _State],
        kept: list[tuple[int, int]],
    ) -> dict[tuple[int, int], _State]:
        """Hand on what is needed of the last round only."""
        known = {place for place, _ in carried} | set(kept)
        found = {}
        for j, operation in enumerate(self.operations):
            for n, kind in enumerate(operation.types):
                if (j, n) not in known and self._escapes(self.run.rounds - 1, (j, n)):
                    found[j, n] = self._state(kind, self.writer.zeros(kind))
                    found[j, n].after = self._result((j, n))
        return found

    def _prepare(self, kept: list[tuple[int, int]]) -> None:
        """Let results that update an array of arguments be written where that was."""
        self.updates: dict[tuple[int, int], _Column] = {}
        taken: set[str] = set()
        for place in kept:
            names = [self._at(k, place) for k in range(self.run.rounds)]
            column = _in_line([self.writer.targets.get(name) for name in names])
            if column is None or column.stack in taken:
                continue
            if self.writer.newest[column.stack] == column.stack:
                taken.add(column.stack)
                self.updates[place] = column

    def _store(self, place: tuple[int, int]) -> tuple[tuple[int, int], _State, int]:
        """Write a result of each round into a row; also return which row the first one gets."""
        layer = self.operations[place[0]].types[place[1]]
        if place in self.updates:
            column = self.updates[place]
            state = self._array(column.stack)
            at, shift = self._index(column.first, column.step), 0
        else:
            shift = len(self._inits(place))
            kind = _stacked_type(layer, self.run.rounds + shift)
            state = self._state(kind, self._room(kind, layer, place))
            state.after = state.within
            at = self._index(shift, 1)
        state.after = self.writer.put(
            self.body, state.after, state.kind, self._result(place), layer, at
        )
        return place, state, shift

    def _inits(self, place: tuple[int, int]) -> list[str]:
        """Return the value that a result has before the first round, if it is handed on."""
        found = {
            role.names[0]
            for roles in self.run.roles
            for role in roles
            if role.kind == "carried" and role.place == place
        }
        return sorted(found) if len(found) == 1 else []

    def _room(self, kind: str, layer: str, place: tuple[int, int]) -> str:
        """Return an array for results; the value before the first is in front of them."""
        writer, made = self.writer, self.writer.zeros(kind)
        for name in self._inits(place):
            value, at = writer.name(writer.main, name), writer.number(writer.main, 0)
            made = writer.put(writer.main, made, kind, value, layer, at)
        return made

    def _emit(self) -> None:
        one = self.writer.number(self.body, 1)
        self.counter.after = self.writer.fresh()
        counter = self.counter.within
        self.body.lines.append(f"{self.counter.after} = stablehlo.add {counter}, {one} : tensor<i32>")
        kinds = ", ".join(state.kind for state in self.states)
        blocks = ", ".join(f"{state.within}: {state.kind}" for state in self.states)
        limit, again = self.writer.fresh(), self.writer.fresh()
        self.name = self.writer.fresh()
        before = ", ".join(state.before for state in self.states)
        self.writer.main.lines += [
            f'{self.name}:{len(self.states)} = "stablehlo.while"({before}) ({{',
            f"^bb0({blocks}):",
            f"{limit} = stablehlo.constant dense<{self.run.rounds}> : tensor<i32>",
            f"{again} = stablehlo.compare LT, {counter}, {limit} : (tensor<i32>, tensor<i32>) -> "
            "tensor<i1>",
            f"stablehlo.return {again} : tensor<i1>",
            "}, {",
            f"^bb0({blocks}):",
            *self.body.lines,
            f"stablehlo.return {', '.join(state.after for state in self.states)} : {kinds}",
            f"}}) : ({kinds}) -> ({kinds})",
        ]

    def _after(self, state: _State) -> str:
        place = next(i for i, other in enumerate(self.states) if other is state)
        return f"{self.name}#{place}"

    def _publish(
        self,
        carried: dict[tuple[tuple[int, int], str], _State],
        finals: dict[tuple[int, int], _State],
        stores: list[tuple[tuple[int, int], _State, int]],
    ) -> None:
        """Tell the rest of the program where it finds the results."""
        writer, last = self.writer, self.run.rounds - 1
        for place, state in (*((p, s) for (p, _), s in carried.items()), *finals.items()):
            writer.main.names[self._at(last, place)] = self._after(state)
        for place, state, shift in stores:
            stack = self._after(state)
            writer.types[stack] = state.kind
            column = self.updates.get(place, _Column(stack, shift, 1))
            if place in self.updates:
                writer.newest[column.stack] = stack
            for k in range(self.run.rounds):
                row = _Row(stack, column.first + column.step * k)
                writer.rows.setdefault(self._at(k, place), []).append(row)
                if place in self.updates:
                    writer.updated[self._at(k, place)] = _Row(column.stack, row.index)
            for name in self._inits(place)[:shift]:
                writer.rows.setdefault(name, []).append(_Row(stack, 0))
                writer.main.names.setdefault(name, name)
