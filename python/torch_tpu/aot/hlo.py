# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What compilers made of a program: operations, and data sent between devices."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from torch_tpu.aot.protobuf import fields, message, numbers

__all__ = ["Collective", "Instruction", "LoopWork", "Module", "Shape"]

# xla.PrimitiveType: name and bits.
_TYPES = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64), 6: ("u8", 8),
    7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32),
    12: ("f64", 64), 15: ("c64", 64), 16: ("bf16", 16), 17: ("token", 0), 18: ("c128", 128),
    19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 4), 22: ("u4", 4), 23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8), 26: ("s2", 2), 27: ("u2", 2), 28: ("f8e4m3", 8),
    29: ("f8e3m4", 8), 30: ("s1", 1), 31: ("u1", 1), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8),
}  # fmt: skip

_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


_CYCLES = re.compile(rb'"estimated_cycles":"(\d+)"')
_UNKNOWN_CYCLES = 1 << 48  # the compiler writes the largest number that there is

# What reads its operands from memory and writes its result there.
_MOVING = (
    "fusion", "convolution", "dot", "custom-call", "copy", "dynamic-slice",
    "dynamic-update-slice", "gather", "scatter", "sort", "reduce", "transpose", "concatenate",
    "broadcast", "convert", "slice", "pad", "select",
)  # fmt: skip


class Shape(NamedTuple):
    """Type of a value: an array's dtype and dims, or a tuple's parts."""

    dtype: str
    dims: tuple[int, ...]
    parts: tuple[Shape, ...] = ()
    bits: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the value, without padding."""
        return sum(p.bytes for p in self.parts) + (math.prod(self.dims) * self.bits + 7) // 8

    def __str__(self) -> str:
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.parts))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


class Instruction(NamedTuple):
    """One operation.

    `called` are the computations it runs, `group_size` is a collective's, `cycles` the compiler's
    estimate of a fusion, `value` that of an integer constant, or the number of a parameter or of a
    part of a tuple.
    """

    name: str
    opcode: str
    shape: Shape
    identity: int
    operands: tuple[int, ...]
    called: tuple[int, ...]
    group_size: int
    target: str
    cycles: int = 0
    value: int | None = None


class LoopWork(NamedTuple):
    """Work in loops: estimated cycles outside of and in them, bytes of all rounds but the first."""

    cycles_outside: float
    cycles: float
    traffic: float


@dataclasses.dataclass(frozen=True)
class Collective:
    """Data that devices send to each other at one place of a program.

    Attributes
    ----------
    kind : str
        ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"all-to-all"``,
        ``"collective-permute"`` and so on.
    bytes : int
        On each device, of the larger of what goes in and what comes out.
    group_size : int
        How many devices take part in one exchange; 0 if not known.
    times : int
        How often it takes place in a run.
    in_unknown_loop : bool
        Whether it stands in a loop of unknown rounds, of which `times` counts one.
    """

    kind: str
    bytes: int
    group_size: int
    times: int = 1
    in_unknown_loop: bool = False

    @property
    def sent_bytes(self) -> float:
        """Bytes that each device sends if the group passes them around a ring."""
        n = self.group_size
        if n < 2:
            return float(self.bytes)
        if self.kind == "all-reduce":
            return 2 * self.bytes * (n - 1) / n
        if self.kind in ("collective-permute", "collective-broadcast"):
            return float(self.bytes)
        return self.bytes * (n - 1) / n


class Module:
    """A compiled program.

    Parameters
    ----------
    data : bytes
        An ``HloModuleProtoWithConfig``, as `torch_tpu.aot.Compiled.optimized` holds it.

    Raises
    ------
    ValueError
        If it is none.
    """

    def __init__(self, data: bytes) -> None:
        self.name = ""
        self.entry = 0
        self.computations: dict[int, list[Instruction]] = {}
        self.computation_names: dict[int, str] = {}
        self.output_sharding = b""
        module = next((message(v) for number, v in fields(data) if number == 1), b"")
        for number, value in fields(module):
            if number == 1:
                self.name = message(value).decode()
            elif number == 6 and isinstance(value, int):
                self.entry = value
            elif number == 3:
                self._add_computation(message(value))
            elif number == 12:
                self.output_sharding = message(value)

    def _add_computation(self, data: bytes) -> None:
        name, identity, instructions = "", 0, []
        for number, value in fields(data):
            if number == 1:
                name = message(value).decode()
            elif number == 2:
                instructions.append(_instruction(message(value)))
            elif number == 5 and isinstance(value, int):
                identity = value
        self.computations[identity] = instructions
        self.computation_names[identity] = name

    def instructions(self) -> Iterator[Instruction]:
        """Yield every instruction of every computation."""
        for instructions in self.computations.values():
            yield from instructions

    def opcodes(self) -> collections.Counter[str]:
        """Count the instructions by what they do."""
        return collections.Counter(i.opcode for i in self.instructions())

    @functools.cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """Every place where devices exchange data."""
        found = []
        for identity, instructions in self.computations.items():
            sizes = {i.identity: i.shape.bytes for i in instructions}
            for i in instructions:
                kind = i.opcode.removesuffix("-start")
                if kind not in _COLLECTIVES:
                    continue
                going_in = sum(sizes[operand] for operand in i.operands)
                # What a start gives is its operands beside its results.
                out = i.shape.bytes - going_in if _is_pair(i) else i.shape.bytes
                size = max(going_in, out)
                times, is_unknown = self.times.get(identity, (1, False))
                found.append(Collective(kind, size, i.group_size, times, is_unknown))
        return tuple(found)

    def collective_counts(self) -> dict[str, int]:
        """Count the collectives by kind."""
        return dict(collections.Counter(c.kind for c in self.collectives))

    @functools.cached_property
    def times(self) -> dict[int, tuple[int, bool]]:
        """How often each computation runs, and whether rounds of unknown number count as one."""
        found: dict[int, tuple[int, bool]] = {self.entry: (1, False)}
        for identity in self._callers_first():
            times, is_unknown = found.get(identity, (1, False))
            for i in self.computations[identity]:
                rounds = self._rounds(i, identity) if i.opcode == "while" else 1
                for called in i.called:
                    before, unknown = found.get(called, (0, False))
                    unknown = unknown or is_unknown or rounds is None
                    found[called] = (before + times * (rounds or 1), unknown)
        return found

    def _callers_first(self) -> list[int]:
        """Return the computations that the entry reaches, each after those that call it."""
        order: list[int] = []
        seen: set[int] = set()

        def visit(identity: int) -> None:
            if identity in seen or identity not in self.computations:
                return
            seen.add(identity)
            for i in self.computations[identity]:
                for called in i.called:
                    visit(called)
            order.append(identity)

        visit(self.entry)
        return order[::-1]

    def _rounds(self, loop: Instruction, caller: int) -> int | None:
        """Return how often a loop goes round: a counter in steps of 1 up to a constant."""
        condition = self.computations.get(loop.called[1] if len(loop.called) > 1 else -1, [])
        compared = [i for i in condition if i.opcode == "compare"]
        if len(compared) != 1 or len(compared[0].operands) != 2:
            return None
        inside = {i.identity: i for i in condition}
        around = {i.identity: i for i in self.computations[caller]}
        first, limit = (
            _constant(inside.get(operand), around, loop) for operand in compared[0].operands
        )
        return None if limit is None else limit - (first or 0)

    def loops_add(self) -> LoopWork:
        """Return what loops take, which the compiler's cost model leaves out."""
        outside = inside = traffic = 0.0
        fused = {c for i in self.instructions() if i.opcode == "fusion" for c in i.called}
        for identity, (times, _) in self.times.items():
            if identity in fused or identity not in self.computations:
                continue
            cycles = sum(i.cycles for i in self.computations[identity])
            if times == 1:
                outside += cycles
            else:
                inside += cycles * times
                traffic += self._traffic(identity) * (times - 1)
        return LoopWork(outside, inside, traffic)

    def copied_arguments(self) -> int:
        """Return the bytes of arguments that the program first copies into another layout."""
        shapes = collections.Counter(
            i.shape for i in self.computations.get(self.entry, []) if i.opcode == "parameter"
        )
        total = 0
        for identity, (times, _) in self.times.items():
            for i in self.computations.get(identity, []):
                if times == 1 and i.opcode == "copy" and shapes[i.shape] > 0:
                    shapes[i.shape] -= 1
                    total += i.shape.bytes
        return total

    def _traffic(self, identity: int) -> float:
        """Return the bytes that a computation reads and writes."""
        instructions = self.computations[identity]
        sizes = {i.identity: i.shape.bytes for i in instructions}
        total = 0
        for i in instructions:
            if i.opcode == "fusion" and i.called:
                total += self._traffic_of_fusion(i, sizes)
            elif i.opcode in _MOVING:
                total += i.shape.bytes + sum(sizes[o] for o in i.operands)
        return float(total)

    def _traffic_of_fusion(self, fusion: Instruction, sizes: dict[int, int]) -> int:
        """Return the bytes of operands and result; of arrays that it slices, of the slices."""
        inside = self.computations.get(fusion.called[0], [])
        size = {i.identity: i.shape.bytes for i in inside}
        written = fusion.shape.bytes
        for i in inside:
            if i.opcode == "dynamic-update-slice" and i.shape.bytes == written:
                written = size[i.operands[1]]
        read = (
            min(self._read(inside, i), sizes[fusion.operands[i.value]])
            for i in inside
            if i.opcode == "parameter" and i.value is not None
        )
        return written + sum(read)

    def _read(self, inside: list[Instruction], value: Instruction) -> int:
        """Return how many bytes of a value the operations of a fusion look at."""
        total = 0
        for user in (i for i in inside if value.identity in i.operands):
            if user.opcode in ("dynamic-slice", "slice"):
                total += user.shape.bytes
            elif user.opcode == "bitcast":
                total += self._read(inside, user)
            elif user.opcode == "fusion":
                called = self.computations.get(user.called[0], [])
                places = [k for k, o in enumerate(user.operands) if o == value.identity]
                parameters = [i for i in called if i.opcode == "parameter" and i.value in places]
                total += sum(self._read(called, parameter) for parameter in parameters)
            elif user.opcode != "dynamic-update-slice" or user.operands[0] != value.identity:
                total += value.shape.bytes
        return total

    def text(self) -> str:
        """Write the program down for people."""
        return "\n\n".join(map(self._computation_text, self.computations))

    def _computation_text(self, identity: int) -> str:
        instructions = self.computations[identity]
        names = {i.identity: i.name for i in instructions}
        lines = []
        for i in instructions:
            parts = [f"%{names[operand]}" for operand in i.operands]
            notes = [f"calls=%{self.computation_names[c]}" for c in i.called]
            notes += [f"target={i.target!r}"] if i.target else []
            notes += [f"group_size={i.group_size}"] if i.group_size else []
            line = f"  %{i.name} = {i.shape} {i.opcode}({', '.join(parts)})"
            lines.append(", ".join([line, *notes]))
        entry = "ENTRY " if identity == self.entry else ""
        return "\n".join([f"{entry}%{self.computation_names[identity]} {{", *lines, "}"])


def _constant(
    value: Instruction | None, around: dict[int, Instruction], loop: Instruction
) -> int | None:
    """Return a value in a loop's condition, written there or handed to the loop."""
    if value is not None and value.opcode == "get-tuple-element" and value.value is not None:
        given = around.get(loop.operands[0])
        if given is None or given.opcode != "tuple":
            return None
        value = around.get(given.operands[value.value])
        while value is not None and value.opcode == "copy":
            value = around.get(value.operands[0])
    return value.value if value is not None and value.opcode == "constant" else None


def _is_pair(instruction: Instruction) -> bool:
    starts = ("all-gather-start", "collective-permute-start")
    return instruction.opcode in starts and len(instruction.shape.parts) >= 2


def _shape(data: bytes) -> Shape:
    kind, dims, parts = 0, [], []
    for number, value in fields(data):
        if number == 2 and isinstance(value, int):
            kind = value
        elif number == 3:
            dims += numbers(value)
        elif number == 4:
            parts.append(_shape(message(value)))
    if kind == 13:
        return Shape("tuple", (), tuple(parts))
    name, bits = _TYPES.get(kind, (f"type{kind}", 0))
    return Shape(name, tuple(dims), (), bits)


def _instruction(data: bytes) -> Instruction:
    texts = {1: "", 2: "", 28: ""}
    cycles, literal = 0, None
    lists: dict[int, list[int]] = {36: [], 38: []}
    shape, identity, group_size = Shape("token", ()), 0, 0
    for number, value in fields(data):
        if number in texts:
            texts[number] = message(value).decode()
        elif number in lists:
            lists[number] += numbers(value)
        elif number == 3:
            shape = _shape(message(value))
        elif number == 35 and isinstance(value, int):
            identity = value
        elif number in (9, 13) and isinstance(value, int):
            literal = value
        elif number == 8:
            literal = _integer(message(value))
        elif number == 43:
            cycles = _estimated(message(value))
        elif number in _GROUP_SIZES:
            group_size = max(group_size, _GROUP_SIZES[number](message(value)))
    operands, called = tuple(lists[36]), tuple(lists[38])
    words = (texts[1], texts[2], shape, identity, operands, called, group_size, texts[28])
    if texts[2] in ("parameter", "get-tuple-element"):
        literal = literal or 0
    return Instruction(*words, cycles, literal)


def _integer(data: bytes) -> int | None:
    """Of a LiteralProto: the value of a single s32 or s64."""
    found = [n for number, value in fields(data) if number in (4, 5) for n in numbers(value)]
    return found[0] if len(found) == 1 else None


def _estimated(data: bytes) -> int:
    """Of a fusion's configuration: the cycles that the compiler expects."""
    match = _CYCLES.search(data)
    found = int(match[1]) if match else 0
    return found if found < _UNKNOWN_CYCLES else 0


def _group_size(data: bytes) -> int:
    """Of a ReplicaGroup: how many ids it lists."""
    return sum(len(numbers(value)) for number, value in fields(data) if number == 1)


def _device_list_size(data: bytes) -> int:
    """Of a CollectiveDeviceListProto: the size of its largest group, listed or counted."""
    sizes = [0]
    for number, value in fields(data):
        if number == 1:
            sizes.append(_group_size(message(value)))
        elif number == 2:
            sizes.append(_iota_size(message(value)))
    return max(sizes)


def _iota_size(data: bytes) -> int:
    """Of an IotaReplicaGroupListProto: devices in each group."""
    return next((v for number, v in fields(data) if number == 2 and isinstance(v, int)), 0)


def _mesh_axes_size(data: bytes) -> int:
    """Of a MeshAxesReplicaGroupListProto: the product of the axes that a group spans."""
    sizes: list[int] = []
    spanned: list[int] = []
    for number, value in fields(data):
        if number == 1:
            axes = (message(v) for n, v in fields(message(value)) if n == 1)
            sizes += [_iota_size(axis) for axis in axes]
        elif number == 2:
            reference = dict(fields(message(value)))
            part = reference.get(2)
            index = reference.get(1, 0)
            assert isinstance(index, int)
            spanned.append(sizes[index] if part is None else _iota_size(message(part)))
    return math.prod(spanned)


# replica_groups and its three successors; in each of the shorter ones field 2 is a size.
_GROUP_SIZES = {49: _group_size, 87: _device_list_size, 92: _iota_size, 93: _mesh_axes_size}
