# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""How arrays lie on a mesh of devices, in the words of the compiler.

A `Mesh` is the devices in a grid with named axes. A *spec* says for each dimension of an array over
which axes it is cut: ``("data", None)`` cuts the first over the axis "data" and leaves the second
whole; over the axes that a spec does not name, the array is repeated. `sharding` writes it as an
``mhlo.sharding``, and `annotate` puts those into a program.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Mesh", "Spec", "annotate", "local_shape", "parse", "sharding", "signature"]

Spec = Sequence["str | tuple[str, ...] | None"]


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices in a grid.

    Attributes
    ----------
    axes : dict of str to int
        Names and sizes, the slowest first. Devices are numbered row by row.
    """

    axes: Mapping[str, int]

    def __post_init__(self) -> None:
        for name, size in self.axes.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"mesh axis {name!r} has size {size!r}; a size is 1 or more")

    @property
    def size(self) -> int:
        """How many devices there are."""
        return math.prod(self.axes.values())

    def coordinates(self, device: int) -> dict[str, int]:
        """Return where a device stands along each axis."""
        places = {}
        for name, size in reversed(self.axes.items()):
            device, places[name] = divmod(device, size)
        return {name: places[name] for name in self.axes}


def _axes_of(mesh: Mesh, spec: Spec, rank: int) -> list[tuple[str, ...]]:
    """Return the axes of each of `rank` dimensions, after checking the spec."""
    if len(spec) > rank:
        raise ValueError(f"the spec {tuple(spec)} has more entries than the array's {rank} dims")
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    entries += [()] * (rank - len(entries))
    used = [name for entry in entries for name in entry]
    for name in used:
        if name not in mesh.axes:
            raise ValueError(f"the mesh has axes {', '.join(mesh.axes)}, but no {name!r}")
        if used.count(name) > 1:
            raise ValueError(f"the spec {tuple(spec)} uses the axis {name!r} twice")
    return entries


def sharding(mesh: Mesh, spec: Spec, rank: int) -> str:
    """Write a spec as an ``mhlo.sharding``.

    Parameters
    ----------
    mesh : Mesh
        The devices.
    spec : sequence of str, tuple of str, or None
        For each dimension its axes; missing entries at the end are None.
    rank : int
        Dimensions of the array.

    Returns
    -------
    str
        Such as ``"{devices=[8,1]<=[8]}"``.

    Raises
    ------
    ValueError
        If the spec names an axis twice or one that the mesh lacks, or is too long.

    Examples
    --------
    >>> sharding(Mesh({"data": 2, "model": 4}), (None, "model"), 2)
    '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
    """
    entries = _axes_of(mesh, spec, rank)
    tiles = [math.prod(mesh.axes[name] for name in entry) for entry in entries]
    used = [name for entry in entries for name in entry]
    rest = [name for name in mesh.axes if name not in used]
    repeats = math.prod(mesh.axes[name] for name in rest)
    if math.prod(tiles) == 1:
        return "{replicated}"
    if repeats > 1:
        tiles.append(repeats)
    end = " last_tile_dim_replicate" if repeats > 1 else ""
    shape = ",".join(map(str, tiles))
    return f"{{devices=[{shape}]<={_device_order(mesh, used + rest)}{end}}}"


def _device_order(mesh: Mesh, order: list[str]) -> str:
    """Write the devices' order when the mesh is transposed to `order`."""
    names = [name for name in mesh.axes if mesh.axes[name] > 1]
    order = [name for name in order if mesh.axes[name] > 1]
    if order == names:
        return f"[{mesh.size}]"
    sizes = ",".join(str(mesh.axes[name]) for name in names)
    places = ",".join(str(names.index(name)) for name in order)
    return f"[{sizes}]T({places})"


def local_shape(mesh: Mesh, spec: Spec, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of what each device holds.

    Raises
    ------
    ValueError
        If a dimension cannot be cut into equal parts.
    """
    entries = _axes_of(mesh, spec, len(shape))
    parts = [math.prod(mesh.axes[name] for name in entry) for entry in entries]
    for dim, (size, count) in enumerate(zip(shape, parts, strict=True)):
        if size % count:
            raise ValueError(
                f"dimension {dim} of an array of shape {tuple(shape)} cannot be cut into {count} "
                f"equal parts over {', '.join(entries[dim])}"
            )
    return tuple(size // count for size, count in zip(shape, parts, strict=True))


_SHARDING = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
    r"(?P<repeat> last_tile_dim_replicate)?\}"
)


def parse(text: str, rank: int) -> tuple[list[int], list[int]]:
    """Read an ``mhlo.sharding``.

    Parameters
    ----------
    text : str
        As `sharding` writes it.
    rank : int
        Dimensions of the array.

    Returns
    -------
    parts : list of int
        Into how many parts each dimension is cut.
    devices : list of int
        Which devices hold the parts, row by row; each part as often as it is repeated.

    Raises
    ------
    ValueError
        If it is not such a text.
    """
    if text == "{replicated}":
        return [1] * rank, []
    found = _SHARDING.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a sharding that is understood here")
    tiles = [int(n) for n in found["tiles"].split(",")]
    dims = [int(n) for n in found["dims"].split(",")]
    order = [int(n) for n in found["order"].split(",")] if found["order"] else range(len(dims))
    if len(tiles) - bool(found["repeat"]) != rank or math.prod(tiles) != math.prod(dims):
        raise ValueError(f"{text!r} does not fit an array of {rank} dimensions")
    return tiles[:rank], _transposed(dims, list(order))


def _transposed(dims: list[int], order: list[int]) -> list[int]:
    """Return the numbers 0, 1, ... laid out in `dims`, read in another order of the axes."""
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    numbers = [0]
    for axis in order:
        numbers = [n + i * strides[axis] for n in numbers for i in range(dims[axis])]
    return numbers


# ---- programs ----

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<({\[]|[>)}\]]|,')
_NAMED = re.compile(r"\s*(?:%[\w$.-]+\s*:\s*)?")
_ALIAS = re.compile(r"tf\.aliasing_output\s*=\s*(\d+)")
_OLD = re.compile(r'mhlo\.sharding\s*=\s*"[^"]*"\s*,?\s*')


def annotate(
    text: str,
    shardings: Mapping[int, str],
    num_partitions: int,
    outputs: Mapping[int, str] | None = None,
) -> str:
    """Put shardings into a program.

    A result that takes the memory of an argument (``tf.aliasing_output``) has to lie as it does,
    and gets its sharding. Results that are not named otherwise are left to the compiler.

    Parameters
    ----------
    text : str
        StableHLO with one ``func.func public @main``.
    shardings : mapping of int to str
        By the number of the argument.
    num_partitions : int
        How many devices there are.
    outputs : mapping of int to str, optional
        By the number of the result.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If there is no ``@main``, or it has no such argument or result.
    """
    start, arguments, between, results, end = signature(text)
    wanted = dict(outputs or {})
    for number, argument in enumerate(arguments):
        alias = _ALIAS.search(argument)
        if alias and number in shardings:
            wanted.setdefault(int(alias[1]), shardings[number])
    for kind, numbers, entries in (
        ("argument", shardings, arguments),
        ("result", wanted, results),
    ):
        for number in numbers:
            if not 0 <= number < len(entries):
                raise ValueError(f"@main has {len(entries)} {kind}s, but no {kind} {number}")
    new_arguments = [_with(a, shardings.get(i)) for i, a in enumerate(arguments)]
    new_results = [_with(r, wanted.get(i)) for i, r in enumerate(results)]
    head = _with_counts(text[:start], num_partitions)
    line = f"{', '.join(new_arguments)}{between}({', '.join(new_results)})"
    return f"{head}{line}{text[end:]}"


def _with_counts(head: str, num_partitions: int) -> str:
    """Write the number of devices into the module's line, if there is one."""
    counts = (
        f"attributes {{mhlo.num_partitions = {num_partitions} : i32, mhlo.num_replicas = 1 : i32}}"
    )
    return re.sub(r"(module\s+@[\w$.-]+)\s*\{", rf"\1 {counts} {{", head, count=1)


def signature(text: str) -> tuple[int, list[str], str, list[str], int]:
    """Split ``@main``: where its arguments start, they, what follows, results, where those end."""
    found = re.search(r"func\.func\s+(?:public\s+)?@main\s*\(", text)
    if found is None:
        raise ValueError("the program has no func.func public @main")
    arguments, place = _entries(text, found.end())
    arrow = re.compile(r"\)\s*->\s*").match(text, place)
    if arrow is None:
        return found.end(), arguments, ") -> ", [], place + 1
    if text[arrow.end()] == "(":
        results, end = _entries(text, arrow.end() + 1)
        return found.end(), arguments, ") -> ", results, end + 1
    results, end = _entries(text, arrow.end())
    return found.end(), arguments, ") -> ", results, end


def _entries(text: str, start: int) -> tuple[list[str], int]:
    """Split a list at its commas; also return where the bracket is that closes it.

    A list without brackets, a single result type, ends where the body begins.
    """
    entries, depth, begin = [], 0, start
    for token in _BRACKETS.finditer(text, start):
        kind = token[0][0]
        if kind in '"-':
            continue
        if kind == "," and depth == 0:
            entries.append(text[begin : token.start()].strip())
            begin = token.end()
        elif kind == "{" and depth == 0 and _is_body(text, begin, token.start()):
            end = begin + len(text[begin : token.start()].rstrip())
            return [*entries, text[begin:end].strip()], end
        elif kind in "<({[":
            depth += 1
        elif kind in ">)}]":
            depth -= 1
            if depth < 0:
                last = text[begin : token.start()].strip()
                return [*entries, last] if last else entries, token.start()
    raise ValueError("the signature of @main has no end")


def _is_body(text: str, begin: int, brace: int) -> bool:
    """Tell the body's brace, which ends its line, from that of attributes."""
    is_typed = ">" in text[begin:brace] and "%" not in text[begin:brace]
    return is_typed and text[brace + 1 : brace + 2] in ("\n", "\r")


def _with(entry: str, sharding_text: str | None) -> str:
    """Return an argument or result with its sharding, in place of what it had."""
    if sharding_text is None:
        return entry
    attribute = f'mhlo.sharding = "{sharding_text}"'
    end = _type_end(entry)
    rest = entry[end:].strip()
    others = _OLD.sub("", rest[1:-1]).strip().rstrip(",") if rest else ""
    inside = f"{attribute}, {others}" if others else attribute
    return f"{entry[:end]} {{{inside}}}"


def _type_end(entry: str) -> int:
    """Return where the type of an argument or result ends and its attributes begin."""
    depth = 0
    named = _NAMED.match(entry)
    for token in _BRACKETS.finditer(entry, named.end() if named else 0):
        if token[0] == "<":
            depth += 1
        elif token[0] == ">":
            depth -= 1
            if depth == 0:
                return token.end()
    raise ValueError(f"{entry!r} is not an array")


def free_results(text: str) -> list[bool]:
    """Return for each result of ``@main`` whether it has no sharding."""
    return ["mhlo.sharding" not in r and "sdy.sharding" not in r for r in signature(text)[3]]


def shardings_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and sharding of each argument of ``@main`` that has one."""
    for number, argument in enumerate(signature(text)[1]):
        found = re.search(r'mhlo\.sharding\s*=\s*"([^"]*)"', argument)
        if found:
            yield number, found[1]
