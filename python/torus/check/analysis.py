# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What a StableHLO program asks for: products, bytes, large tensors.

Read from the text that the lowerings print, one operation a line. Products are counted as one would
by hand: two operations for each multiplication and addition that contributes, so that padding and
holes of convolutions count nothing. Elementwise work is not counted as flops.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator

__all__ = ["Analysis", "Tensor", "analyse"]

_BITS = {"i1": 8, "bf16": 16, "i4": 4, "ui4": 4}
_TYPE = re.compile(r"tensor<((?:\d+x)*)([a-zA-Z]\w*(?:<\w+>)?)>")
_RESULT = re.compile(r'^\s*(%\w+)(?::\d+)? = "?((?:stablehlo|chlo)\.\w+)"?')
_LIST = re.compile(r"\[([^\]]*)\]")
_PASSES = {"HIGHEST": 6, "HIGH": 3}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A value of the program.

    Attributes
    ----------
    what : str
        Operator that makes it, or ``"argument"``.
    shape : tuple of int
        Its dimensions.
    dtype : str
        Element type as StableHLO spells it.
    count : int
        How many such values there are.
    """

    what: str
    shape: tuple[int, ...]
    dtype: str
    count: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of one of them."""
        return math.prod(self.shape) * _bits(self.dtype) // 8


@dataclasses.dataclass
class Analysis:
    """Figures of one program, of all devices together.

    Attributes
    ----------
    flops : float
        Of matrix products and convolutions.
    passes : dict of str to float
        The same multiplied by the passes that the matrix unit takes, by element type: a float32
        product of full precision is six of bfloat16.
    argument_bytes, result_bytes : int
        What comes in and goes out.
    largest : list of Tensor
        The largest values, equal ones counted together.
    operations : dict of str to int
        How often each operation occurs.
    uncounted_loops : int
        Loops whose number of rounds is not known: their products count once.
    products : dict of str to float
        Flops by element type of the factors.
    """

    flops: float = 0.0
    passes: dict[str, float] = dataclasses.field(default_factory=dict)
    argument_bytes: int = 0
    result_bytes: int = 0
    largest: list[Tensor] = dataclasses.field(default_factory=list)
    operations: dict[str, int] = dataclasses.field(default_factory=dict)
    uncounted_loops: int = 0
    products: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def least_bytes(self) -> int:
        """The traffic that cannot be avoided: each argument read, each result written once."""
        return self.argument_bytes + self.result_bytes

    @property
    def intensity(self) -> float:
        """Flops for each byte of `least_bytes`."""
        return self.flops / self.least_bytes if self.least_bytes else 0.0


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype.startswith("f8"):
        return 8
    if dtype.startswith("complex"):
        return 2 * _bits(dtype[8:-1])
    digits = re.sub(r"\D", "", dtype)
    return int(digits) if digits else 0


@functools.lru_cache(maxsize=1 << 14)
def _types(text: str) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return the tensor types in `text`, in order."""
    return tuple(
        (tuple(map(int, dims.split("x")[:-1])), dtype) for dims, dtype in _TYPE.findall(text)
    )


def _numbers(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"-?\d+", text)]


def analyse(text: str, largest: int = 8) -> Analysis:
    """Count what a program does.

    Parameters
    ----------
    text : str
        StableHLO with one function ``@main``.
    largest : int
        How many large values to name.

    Returns
    -------
    Analysis
    """
    found = Analysis()
    sizes: collections.Counter[tuple[str, tuple[int, ...], str]] = collections.Counter()
    operations: collections.Counter[str] = collections.Counter()
    rounds = _Rounds(text)
    for line in text.splitlines():
        if line.lstrip().startswith("func.func"):
            _take_signature(found, sizes, line)
            continue
        times = rounds.enter(line)
        match = _RESULT.match(line)
        if match is None:
            continue
        operation = match[2].partition(".")[2]
        operations[operation] += 1
        if operation == "constant":
            continue
        results = line.rpartition("->")[2] if "->" in line else line.rpartition(" : ")[2]
        for shape, dtype in _types(results):
            sizes[operation, shape, dtype] += 1
        if operation in ("dot_general", "convolution"):
            _count_product(found, operation, line, times)
    found.uncounted_loops = rounds.unknown
    found.operations = dict(operations)
    tensors = [Tensor(*key, count) for key, count in sizes.items()]
    found.largest = sorted(tensors, key=lambda t: -t.bytes)[:largest]
    return found


def _take_signature(
    found: Analysis, sizes: collections.Counter[tuple[str, tuple[int, ...], str]], line: str
) -> None:
    arguments, _, results = line.partition(") -> ")
    for shape, dtype in _types(arguments):
        found.argument_bytes += math.prod(shape) * _bits(dtype) // 8
        sizes["argument", shape, dtype] += 1
    found.result_bytes += sum(math.prod(s) * _bits(d) // 8 for s, d in _types(results))


def _count_product(found: Analysis, operation: str, line: str, times: int) -> None:
    count = _dot_flops if operation == "dot_general" else _convolution_flops
    head, _, results = line.rpartition("->")
    (lhs, dtype), (rhs, _) = _types(head)[-2:]
    out = _types(results)[0][0]
    flops = times * count(line, lhs, rhs, out)
    passes = next((n for word, n in _PASSES.items() if word in line), 1) if dtype == "f32" else 1
    found.flops += flops
    found.products[dtype] = found.products.get(dtype, 0.0) + flops
    found.passes[dtype] = found.passes.get(dtype, 0.0) + flops * passes


def _dot_flops(
    line: str, lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...]
) -> float:
    del rhs
    contracted = line.partition("contracting_dims = ")[2]
    match = _LIST.match(contracted)
    sizes = [lhs[i] for i in _numbers(match[1])] if match else []
    return 2.0 * math.prod(out) * math.prod(sizes)


def _convolution_flops(
    line: str, lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...]
) -> float:
    """Count the pairs of input and kernel that meet, dimension by dimension."""
    layouts = [part.strip().split(", ") for part in _LIST.findall(line.partition("=")[2])[:3]]
    places = [{name: i for i, name in enumerate(layout)} for layout in layouts]
    spatial = sorted(name for name in places[0] if name.isdigit())
    window = _window(line, len(spatial))
    pairs = 1
    for k, name in enumerate(spatial):
        pairs *= _meetings(
            lhs[places[0][name]],
            rhs[places[1][name]],
            out[places[2][name]],
            *(values[k] for values in window),
        )
    batch, features = out[places[2]["b"]], out[places[2]["f"]]
    return 2.0 * batch * features * rhs[places[1]["i"]] * pairs


def _window(line: str, rank: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return strides, low padding, dilation of the input, dilation of the kernel."""
    text = line.partition("window = {")[2].partition("}")[0]

    def values(name: str, default: int) -> list[int]:
        match = re.search(rf"{name} = \[([^\[\]]*)\]", text)
        return _numbers(match[1]) if match else [default] * rank

    match = re.search(r"pad = \[(\[.*?\])\]", text)
    low = [pair[0] for pair in map(_numbers, _LIST.findall(match[1]))] if match else [0] * rank
    return values("stride", 1), low, values("lhs_dilate", 1), values("rhs_dilate", 1)


def _meetings(
    size: int, kernel: int, out: int, stride: int, low: int, spread: int, gap: int
) -> int:
    """How many (output, tap) pairs of one dimension fall on an element of the input."""
    extent = (size - 1) * spread + 1
    met = 0
    for tap in range(kernel):
        offset = tap * gap - low
        if spread == 1:
            first = max(0, -(offset // stride)) if offset < 0 else 0
            last = min(out - 1, (extent - 1 - offset) // stride)
            met += max(0, last - first + 1)
        else:
            places = (o * stride + offset for o in range(out))
            met += sum(0 <= at < extent and at % spread == 0 for at in places)
    return met


class _Rounds:
    """Follows a text line by line and knows how often the loops around a line go round.

    Parameters
    ----------
    text : str
        The whole program; constants that bound loops are found in it.
    """

    def __init__(self, text: str) -> None:
        self.unknown = 0
        self._stack: list[tuple[int, int]] = []  # depth of braces where a loop began, rounds
        self._depth = 0
        self._loops = iter(_loops(text)) if "stablehlo.while" in text else iter(())

    def enter(self, line: str) -> int:
        """Take a line and return how often it runs."""
        if '"stablehlo.while"' in line:
            rounds = next(self._loops)
            self.unknown += rounds is None
            self._stack.append((self._depth, rounds or 1))
        self._depth += line.count("{") - line.count("}")
        times = math.prod(rounds for _, rounds in self._stack)
        while self._stack and self._depth <= self._stack[-1][0]:
            self._stack.pop()
        return times


def _loops(text: str) -> Iterator[int | None]:
    """Yield the rounds of each loop, in order: a counter from 0 in steps of 1 up to a constant."""
    constants = dict(
        re.findall(r"(%\w+) = stablehlo\.constant dense<(\d+)> : tensor<u?i\d+>", text)
    )
    for condition in re.findall(r'"stablehlo\.while".*?stablehlo\.return', text, re.DOTALL):
        match = re.search(r"stablehlo\.compare LT, %\w+, (%\w+)", condition)
        limit = constants.get(match[1]) if match else None
        yield int(limit) if limit is not None else None
