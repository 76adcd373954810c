# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Writes one run of equal operations as a loop."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from torch_tpu.aot.repeats import Role, Run
from torch_tpu.aot.roll_values import Column, Row, Scope, in_line, stacked_type

if TYPE_CHECKING:
    from torch_tpu.aot.roll_program import Writer

__all__ = ["LoopWriter"]

_Place = tuple[int, int]
_Carried = dict[tuple[_Place, str], "_State"]


@dataclasses.dataclass
class _State:
    """What a loop hands from round to round: type, value before, in a round, and after it."""

    kind: str
    before: str
    within: str
    after: str = ""


class LoopWriter:
    """Writes one run as a loop."""

    def __init__(self, writer: Writer, run: Run) -> None:
        self.writer, self.run = writer, run
        self.body = Scope([], {})
        self.states: list[_State] = []
        self.counter = self._state("tensor<i32>", writer.number(writer.main, 0))
        self.arrays: dict[str, _State] = {}
        self.places: dict[_Place, str] = {}
        self.operations = writer.program.operations[run.start : run.start + run.period]

    def _state(self, kind: str, before: str) -> _State:
        state = _State(kind, before, self.writer.fresh())
        self.states.append(state)
        return state

    def write(self) -> None:
        """Write the loop, and tell the writer of the program where its results are."""
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

    def _result(self, place: _Place) -> str:
        return self.operations[place[0]].results()[place[1]]

    def _at(self, k: int, place: _Place) -> str:
        """Return the name of a result of a round."""
        operation = self.writer.program.operations[self.run.start + k * self.run.period + place[0]]
        return operation.results()[place[1]]

    def _carry(self) -> _Carried:
        found: _Carried = {}
        for role in (role for roles in self.run.roles for role in roles):
            key = (role.place, role.names[0] if role.names else "")
            if role.kind == "carried" and key not in found:
                kind = self.writer.types[role.names[0]]
                before = self.writer.name(self.writer.main, role.names[0])
                found[key] = self._state(kind, before)
        return found

    def _operand(self, role: Role, name: str, carried: _Carried) -> str:
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
            self.body.names[key] = self.writer.take(self.body, array.within, array.kind, kind, at)
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

    def _kept(self) -> list[_Place]:
        """Return the results that others need of rounds before the last."""
        return [
            (j, n)
            for j, operation in enumerate(self.operations)
            for n in range(len(operation.types))
            if any(self._escapes(k, (j, n)) for k in range(self.run.rounds - 1))
        ]

    def _escapes(self, k: int, place: _Place) -> bool:
        """Return whether a result of a round is needed outside of it and of the next."""
        begin = self.run.start + k * self.run.period
        end = min(begin + 2 * self.run.period, self.run.end)
        uses = self.writer.used.get(self._at(k, place), ())
        return any(not begin <= use < end for use in uses)

    def _finals(
        self,
        carried: _Carried,
        kept: list[_Place],
    ) -> dict[_Place, _State]:
        """Hand on what is needed of the last round only."""
        known = {place for place, _ in carried} | set(kept)
        found = {}
        for j, operation in enumerate(self.operations):
            for n, kind in enumerate(operation.types):
                if (j, n) not in known and self._escapes(self.run.rounds - 1, (j, n)):
                    found[j, n] = self._state(kind, self.writer.zeros(kind))
                    found[j, n].after = self._result((j, n))
        return found

    def _prepare(self, kept: list[_Place]) -> None:
        """Let results that update an array of arguments be written where that was."""
        self.updates: dict[_Place, Column] = {}
        taken: set[str] = set()
        for place in kept:
            names = [self._at(k, place) for k in range(self.run.rounds)]
            column = in_line([self.writer.targets.get(name) for name in names])
            if column is None or column.stack in taken:
                continue
            if self.writer.newest[column.stack] == column.stack:
                taken.add(column.stack)
                self.updates[place] = column

    def _store(self, place: _Place) -> tuple[_Place, _State, int]:
        """Write a result of each round into a row; also return which row the first one gets."""
        layer = self.operations[place[0]].types[place[1]]
        if place in self.updates:
            column = self.updates[place]
            state = self._array(column.stack)
            at, shift = self._index(column.first, column.step), 0
        else:
            shift = len(self._inits(place))
            kind = stacked_type(layer, self.run.rounds + shift)
            state = self._state(kind, self._room(kind, layer, place))
            state.after = state.within
            at = self._index(shift, 1)
        state.after = self.writer.put(
            self.body, state.after, state.kind, self._result(place), layer, at
        )
        return place, state, shift

    def _inits(self, place: _Place) -> list[str]:
        """Return the value that a result has before the first round, if it is handed on."""
        found = {
            role.names[0]
            for roles in self.run.roles
            for role in roles
            if role.kind == "carried" and role.place == place
        }
        return sorted(found) if len(found) == 1 else []

    def _room(self, kind: str, layer: str, place: _Place) -> str:
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
        self.body.lines.append(
            f"{self.counter.after} = stablehlo.add {counter}, {one} : tensor<i32>"
        )
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
        carried: _Carried,
        finals: dict[_Place, _State],
        stores: list[tuple[_Place, _State, int]],
    ) -> None:
        """Tell the rest of the program where it finds the results."""
        writer, last = self.writer, self.run.rounds - 1
        for place, state in (*((p, s) for (p, _), s in carried.items()), *finals.items()):
            writer.main.names[self._at(last, place)] = self._after(state)
        for place, state, shift in stores:
            stack = self._after(state)
            writer.types[stack] = state.kind
            column = self.updates.get(place, Column(stack, shift, 1))
            if place in self.updates:
                writer.newest[column.stack] = stack
            for k in range(self.run.rounds):
                row = Row(stack, column.first + column.step * k)
                writer.rows.setdefault(self._at(k, place), []).append(row)
                if place in self.updates:
                    writer.updated[self._at(k, place)] = Row(column.stack, row.index)
            for name in self._inits(place)[:shift]:
                writer.rows.setdefault(name, []).append(Row(stack, 0))
                writer.main.names.setdefault(name, name)
