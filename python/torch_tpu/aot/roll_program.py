# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Writes a program anew, with its runs of equal operations as loops."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch_tpu.aot.capture import Slot
from torch_tpu.aot.program import Program, bytes_of, dims_of
from torch_tpu.aot.repeats import Run
from torch_tpu.aot.roll_loop import LoopWriter
from torch_tpu.aot.roll_values import (
    Column,
    OutOfLineError,
    Row,
    Scope,
    Stacked,
    families_of,
    in_line,
    stacked_type,
)
from torch_tpu.aot.sharding import signature

__all__ = ["Writer", "Written"]

# Values of a column that lie nowhere in one array are copied into one, if they are this small.
_COPIED = 1 << 24
_ALIAS = re.compile(r"tf\.aliasing_output\s*=\s*\d+")


class Written(NamedTuple):
    """A program's text, arguments and results."""

    text: str
    inputs: list[Slot]
    outputs: list[Slot]


class Writer:
    """Knows where each value of a program lies, and writes what is not in a loop.

    Parameters
    ----------
    program : Program
        What is written; its operations in the order of `runs`.
    runs : sequence of Run
        What becomes loops.
    inputs, outputs : sequence of Slot
        Of the program.
    text : str
        Of the program.
    """

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
        self.main = Scope([], {})
        self.rows: dict[str, list[Row]] = {}
        self.inside = self._round_of_operations()
        self.used = self._uses()
        self.families = families_of(self.runs, program.arguments)
        self.newest: dict[str, str] = {}  # an array of arguments: its value with updates
        self.updated: dict[str, Row] = {}  # a value that is such an update: its place there
        self._add_families()

    def _add_families(self) -> None:
        for number, members in enumerate(self.families):
            stack = f"%stack{number}"
            self.types[stack] = stacked_type(self.types[members[0]], len(members))
            self.newest[stack] = stack
            for i, name in enumerate(members):
                self.rows[name] = [Row(stack, i)]
        arguments = list(self.program.arguments)
        self.targets: dict[str, Row] = {}
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
        """Return a name that is not taken."""
        self.count += 1
        return f"%v{self.count}"

    def write(self) -> Written:
        """Write the program.

        Raises
        ------
        OutOfLineError
            If a run has to be shorter.
        """
        place = 0
        for run in [*self.runs, None]:
            end = run.start if run else len(self.program.operations)
            for operation in self.program.operations[place:end]:
                names = [self.name(self.main, n) for n in operation.operands]
                self.main.lines.append(operation.write(operation.name, names))
            if run is not None:
                LoopWriter(self, run).write()
                place = run.end
        return self._finish()

    # ---- values ----

    def name(self, scope: Scope, name: str) -> str:
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

    def _row(self, row: Row, kind: str) -> str:
        dims, _ = dims_of(kind)
        sizes = ", ".join([f"{row.index}:{row.index + 1}", *(f"0:{d}" for d in dims)])
        cut, made, one = self.fresh(), self.fresh(), stacked_type(kind, 1)
        self.main.lines += [
            f"{cut} = stablehlo.slice {row.stack} [{sizes}] : ({self.types[row.stack]}) -> {one}",
            f"{made} = stablehlo.reshape {cut} : ({one}) -> {kind}",
        ]
        return made

    def number(self, scope: Scope, value: int) -> str:
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

    def put(self, scope: Scope, stack: str, kind: str, value: str, layer: str, at: str) -> str:
        """Write a value into a row of an array and return the array."""
        one, up, made = stacked_type(layer, 1), self.fresh(), self.fresh()
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

    def take(self, scope: Scope, stack: str, kind: str, layer: str, at: str) -> str:
        """Return a row of an array."""
        one, cut, made = stacked_type(layer, 1), self.fresh(), self.fresh()
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

    def column(self, run: Run, names: tuple[str, ...]) -> Column:
        """Return where a loop finds what one of its operands is in each round."""
        options = [self.rows.get(name, []) for name in names]
        for stack in {row.stack for row in options[len(names) // 2]}:
            rows = [next((r for r in of if r.stack == stack), None) for of in options]
            found = in_line(rows)
            if found is not None:
                return found
            self._blame(run, rows)
        if sum(bytes_of(self.types[name]) for name in names) > _COPIED:
            raise OutOfLineError(run, 0, 0)
        return self._copied(names)

    def _blame(self, run: Run, rows: list[Row | None]) -> None:
        """Ask for a shorter run if only rounds at its ends are elsewhere."""
        count = len(rows)
        for front, back in ((1, 0), (0, 1), (1, 1), (2, 0), (0, 2)):
            rest = rows[front : count - back]
            if len(rest) > 1 and in_line(rest) is not None:
                raise OutOfLineError(run, front, back)

    def _copied(self, names: tuple[str, ...]) -> Column:
        kind = self.types[names[0]]
        one, whole = stacked_type(kind, 1), stacked_type(kind, len(names))
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
        return Column(made, 0, 1)

    # ---- the end ----

    def _finish(self) -> Written:
        inputs, entries, numbers = self._arguments()
        outputs, returned = self._results(numbers)
        kinds = [self.types[name] for name in returned]
        values = [self.main.names.get(name, name) for name in returned]
        aliases = {slot.alias: i for i, slot in enumerate(outputs) if slot.alias is not None}
        entries = [_with_alias(entry, aliases.get(i)) for i, entry in enumerate(entries)]
        slots = [dataclasses.replace(slot, alias=aliases.get(i)) for i, slot in enumerate(inputs)]
        text = (
            f"{self.program.head}{', '.join(entries)}) -> ({', '.join(kinds)}) {{\n"
            + "\n".join(self.main.lines)
            + f"\nreturn {', '.join(values)} : {', '.join(kinds)}\n}}\n}}\n"
        )
        return Written(text, slots, outputs)

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
        rows = [self._place(name) for name in self.program.returned]
        together = _by_stack(rows)
        for name, slot, row in zip(self.program.returned, self.outputs, rows, strict=True):
            aliased = None if slot.alias is None else numbers[slot.alias]
            if row is None or not (name in self.targets or self._is_filled(row.stack, together)):
                slots.append(dataclasses.replace(slot, alias=aliased))
                names.append(self.name(self.main, name))
                self.types[names[-1]] = self.types[name]
            elif row.stack not in done:
                done.add(row.stack)
                same = together[row.stack]
                made = self._slot([self.outputs[i] for i in same], tuple(same))
                shape = dims_of(self.types[row.stack])[0]
                slots.append(dataclasses.replace(made, shape=shape, alias=aliased))
                value = self.newest.get(row.stack, row.stack)
                self.types[value] = self.types[row.stack]
                names.append(value)
        return slots, names

    def _place(self, name: str) -> Row | None:
        """Return the row in which a result lies, if it lies in one."""
        return self.targets.get(name) or next(iter(self.rows.get(name, [])), None)

    def _is_filled(self, stack: str, together: Mapping[str, list[int]]) -> bool:
        """Return whether an array holds results of the program and nothing else."""
        return len(together[stack]) == dims_of(self.types[stack])[0][0]

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


def _by_stack(rows: Sequence[Row | None]) -> dict[str, list[int]]:
    """Return for each array the numbers of the results that are its rows, in its order."""
    found = collections.defaultdict(list)
    for _, i, stack in sorted((row.index, i, row.stack) for i, row in enumerate(rows) if row):
        found[stack].append(i)
    return found


def _with_alias(entry: str, output: int | None) -> str:
    """Return an argument's text with the number of the result that takes its memory."""
    if output is None:
        return entry
    if _ALIAS.search(entry):
        return _ALIAS.sub(f"tf.aliasing_output = {output}", entry)
    return f"{entry} {{tf.aliasing_output = {output} : i32}}"


def _pattern(names: Sequence[str]) -> str:
    """Return one name for several: layers.0.weight, layers.1.weight are layers.*.weight."""
    parts = [name.split(".") for name in names]
    if any(len(p) != len(parts[0]) for p in parts):
        return names[0]
    return ".".join(words[0] if len(set(words)) == 1 else "*" for words in zip(*parts, strict=True))
