# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""StableHLO programs, operation by operation, as the lowerings print them: one on a line.

Names inside the regions of an operation are replaced by numbered ones, so that two operations are
the same exactly if the texts around their operands are.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator

from torch_tpu.aot.sharding import signature

__all__ = ["Operation", "Program", "Unreadable", "bytes_of", "dims_of"]

_NAME = re.compile(r"%[A-Za-z0-9_$.-]+(?:#\d+)?")
_DEFINED = re.compile(r"^\s*(%[\w$.-]+)(?::\d+)? = ", re.MULTILINE)
_BLOCK = re.compile(r"\^\w+\(([^\n]*)\):")
_BLOCK_NAME = re.compile(r"(%[\w$.-]+):")
_HEAD = re.compile(r"\s*(%[\w$.-]+)(?::(\d+))? = ")
_TENSOR = re.compile(r"tensor<(?:[^<>]|<[^<>]*>)*>")
_ARGUMENT = re.compile(r"\s*(%[\w$.-]+)\s*:\s*(tensor<(?:[^<>]|<[^<>]*>)*>)")
_SIZES = {"i1": 1, "bf16": 2, "complex<f32>": 8, "complex<f64>": 16}


class Unreadable(ValueError):  # noqa: N818
    """A text is not of the form that is understood here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes
    ----------
    name : str
        Of its result; of several, ``name#0`` is the first.
    pieces : tuple of str
        The text between the operands; one more than there are of those.
    operands : tuple of str
        Names.
    types : tuple of str
        Of its results.
    """

    name: str
    pieces: tuple[str, ...]
    operands: tuple[str, ...]
    types: tuple[str, ...]

    def results(self) -> list[str]:
        """Return the names by which others know its results."""
        if len(self.types) == 1:
            return [self.name]
        return [f"{self.name}#{i}" for i in range(len(self.types))]

    def write(self, name: str, operands: Iterable[str]) -> str:
        """Write it with other names."""
        parts = [self.pieces[0]]
        for operand, piece in zip(operands, self.pieces[1:], strict=True):
            parts += (operand, piece)
        count = f":{len(self.types)}" if len(self.types) > 1 else ""
        return f"{name}{count} = {''.join(parts)}"

    @property
    def is_constant(self) -> bool:
        """Whether it is a value written down in the program."""
        return self.pieces[0].startswith("stablehlo.constant")

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices or convolves."""
        return self.pieces[0].startswith(("stablehlo.dot_general", "stablehlo.convolution"))


@dataclasses.dataclass
class Program:
    """A program with one function.

    Attributes
    ----------
    head : str
        The text before the first argument.
    arguments : dict of str to str
        Types by name, in order.
    operations : list of Operation
        Without the constants.
    constants : dict of str to Operation
        By name. Equal ones are one.
    returned : list of str
        Names of the results.
    types : dict of str to str
        Of all values by name.
    """

    head: str
    arguments: dict[str, str]
    operations: list[Operation]
    constants: dict[str, Operation]
    returned: list[str]
    types: dict[str, str]


def parse(text: str) -> Program:
    """Read a program.

    Raises
    ------
    Unreadable
        If it has several functions, or operations that are written in another form.
    """
    if text.count("func.func") != 1:
        raise Unreadable("a program with one function is expected")
    start, entries, _, _, end = signature(text)
    arguments = dict(map(_argument, entries))
    types, constants, same = dict(arguments), {}, {}
    operations: list[Operation] = []
    known: dict[str, str] = {}
    for statement in _statements(text[end:]):
        if statement.startswith("return"):
            names = _NAME.findall(statement)
            returned = [same.get(name, name) for name in names]
            return Program(text[:start], arguments, operations, constants, returned, types)
        operation = _operation(statement, same)
        if operation.is_constant:
            first = known.setdefault(operation.pieces[0], operation.name)
            same[operation.name] = first
            constants.setdefault(first, operation)
            types[first] = operation.types[0]
        else:
            operations.append(operation)
            types.update(zip(operation.results(), operation.types, strict=True))
    raise Unreadable("the program returns nothing")


def _argument(entry: str) -> tuple[str, str]:
    match = _ARGUMENT.match(entry)
    if match is None:
        raise Unreadable(f"{entry!r} is no argument of a known form")
    return match[1], match[2]


def _statements(body: str) -> Iterator[str]:
    """Yield the operations, each with its regions."""
    lines: list[str] = []
    depth = 0
    for line in body.lstrip().removeprefix("{").splitlines():
        if not line.strip():
            continue
        lines.append(line)
        depth += line.count("{") - line.count("}")
        if depth < 0:
            return
        if depth == 0:
            yield "\n".join(lines).strip()
            lines = []


def _operation(statement: str, same: dict[str, str]) -> Operation:
    head = _HEAD.match(statement)
    if head is None:
        raise Unreadable(f"{statement[:80]!r} is no operation of a known form")
    count = int(head[2] or 1)
    rest = _with_numbered_regions(statement[head.end() :])
    tail = rest.rpartition("\n")[2]
    written = tail.rpartition("->")[2] if "->" in tail else tail.rpartition(" : ")[2]
    types = tuple(_TENSOR.findall(written)[-count:])
    if len(types) != count:
        raise Unreadable(f"{statement[:80]!r} has results of unknown type")
    names, pieces = _outer(rest)
    return Operation(head[1], tuple(pieces), tuple(same.get(n, n) for n in names), types)


def _outer(text: str) -> tuple[list[str], list[str]]:
    """Split at the names that are not those of regions."""
    names, pieces, place = [], [], 0
    for match in _NAME.finditer(text):
        if match[0].startswith("%local"):
            continue
        names.append(match[0])
        pieces.append(text[place : match.start()])
        place = match.end()
    return names, [*pieces, text[place:]]


def _with_numbered_regions(text: str) -> str:
    """Name what the regions of an operation define by numbers in order."""
    if "\n" not in text:
        return text
    inside = text.partition("\n")[2]
    places = [(m.start(), [m[1]]) for m in _DEFINED.finditer(inside)]
    places += [(m.start(), _BLOCK_NAME.findall(m[1])) for m in _BLOCK.finditer(inside)]
    local: dict[str, str] = {}
    for _, found in sorted(places):
        for name in found:
            local.setdefault(name, f"%local{len(local)}")

    def renamed(match: re.Match[str]) -> str:
        name, mark, number = match[0].partition("#")
        return f"{local.get(name, name)}{mark}{number}"

    return _NAME.sub(renamed, text)


# ---- types ----


def dims_of(kind: str) -> tuple[tuple[int, ...], str]:
    """Return the dimensions and the element type of a tensor type.

    Raises
    ------
    Unreadable
        If a dimension is not known.
    """
    *dims, element = kind[len("tensor<") : -1].split("x") if "x" in kind else [kind[7:-1]]
    if kind.startswith("tensor<") and "complex" in kind:
        head, _, element = kind[7:-1].rpartition("complex")
        dims, element = [d for d in head.split("x") if d], f"complex{element}"
    if not all(d.isdigit() for d in dims):
        raise Unreadable(f"{kind} is no array of known size")
    return tuple(map(int, dims)), element


def bytes_of(kind: str) -> int:
    """Return the bytes of a value of a type."""
    dims, element = dims_of(kind)
    digits = re.sub(r"\D", "", element.partition("E")[0])
    size = _SIZES.get(element) or (1 if element.startswith("f8") else int(digits or 8) / 8)
    return math.ceil(math.prod(dims) * size)
