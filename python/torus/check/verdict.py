# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What the TPU compiler says of a program, in words that help."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

__all__ = ["Allocation", "Verdict", "accepted", "of_error"]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
# "Used 40.5G of 31.2G hbm", and "... on HBM, the total memory required for HLO temporaries (64.0G)
# exceeds available HBM (31.2G)", where arguments and results are part of the total.
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} (?P<space>\w+)")
_EXCEEDS = re.compile(
    rf"total memory required[^(]*\({_SIZE}\) exceeds available (?P<space>\w+) \({_SIZE}\)"
)
_ALLOCATION = re.compile(
    rf"Size: {_SIZE}.*?(?:Operator: .*?)?Shape: (\S+)(?:.*?Unpadded size: {_SIZE})?", re.DOTALL
)
_ELEMENT = re.compile(r"\b(f64|c128|c64|f8\w+|s4|u4|s64|u64)\b")


@dataclasses.dataclass(frozen=True)
class Allocation:
    """A large temporary that the compiler names.

    Attributes
    ----------
    bytes : int
        What it takes in memory, padding included.
    shape : str
        Its shape and layout as the compiler spells them.
    unpadded_bytes : int
        What its elements take; 0 if the compiler does not tell.
    """

    bytes: int
    shape: str
    unpadded_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether the compiler takes a program, and why not.

    Attributes
    ----------
    kind : str
        ``"fits"``, ``"too large"``, ``"refused"``, ``"crashed"``, ``"timeout"``,
        ``"not lowered"``.
    summary : str
        One sentence.
    remedy : str
        What can be done; empty if all is well.
    needed_bytes, available_bytes : int
        Of a program that does not fit: what it needs and what there is, on one device.
    allocations : tuple of Allocation
        The largest ones, where the compiler names them.
    detail : str
        The compiler's own words.
    """

    kind: str
    summary: str
    remedy: str = ""
    needed_bytes: int = 0
    available_bytes: int = 0
    allocations: tuple[Allocation, ...] = ()
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program would run."""
        return self.kind == "fits"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)


def accepted() -> Verdict:
    """Return the verdict for a program that compiles and fits."""
    return Verdict("fits", "compiles and fits")


def of_error(code: str, detail: str) -> Verdict:
    """Explain a refusal.

    Parameters
    ----------
    code : str
        ``"RESOURCE_EXHAUSTED"``, ``"UNIMPLEMENTED"``, ``"INVALID_ARGUMENT"``, ``"ABORTED"`` ...
    detail : str
        All that the compiler said.

    Returns
    -------
    Verdict
    """
    said = detail.partition("=== Source Location Trace")[0].strip()
    if code == "ABORTED":
        return Verdict(
            "crashed",
            "the compiler ended in the middle of the compilation",
            "another version of libtpu may do better; the program itself can be written out with "
            "--save-text",
            detail=said,
        )
    used = _USED.search(said)
    if used is not None:
        return _too_large(used["space"], _bytes(used[1], used[2]), _bytes(used[3], used[4]), said)
    used = _EXCEEDS.search(said)
    if used is not None:
        return _too_large(used["space"], _bytes(used[1], used[2]), _bytes(used[4], used[5]), said)
    return _refused(code, said)


def _too_large(space: str, needed: int, available: int, said: str) -> Verdict:
    if space.lower() != "hbm":
        return Verdict(
            "too large",
            f"one operation needs {_gib(needed)} of the {_gib(available)} of on-chip memory "
            f"({space})",
            "smaller tiles: split the dimension that the operation works on, or raise the limit "
            "xla_tpu_scoped_vmem_limit_kib",
            needed,
            available,
            detail=said,
        )
    return Verdict(
        "too large",
        f"needs {_gib(needed)} of a device's {_gib(available)} of HBM",
        "a smaller batch or sequence, a smaller dtype, more chips with --shard fsdp, tp or 2d, or "
        "in training --remat",
        needed,
        available,
        _allocations(said),
        said,
    )


def _allocations(said: str) -> tuple[Allocation, ...]:
    """Return the entries of "Largest program allocations"."""
    found = []
    for entry in re.split(r"\n\s*\d+\. ", said)[1:]:
        match = _ALLOCATION.search(entry)
        if match is not None:
            unpadded = _bytes(match[4], match[5]) if match[4] else 0
            found.append(Allocation(_bytes(match[1], match[2]), match[3], unpadded))
    return tuple(found[:8])


# Fragments of messages, what they mean, what helps.
_MEANINGS = (
    (
        "Failed to parse using StableHLO",
        "the compiler does not read the program: libtpu is older than the operations in it",
        "pip install -U libtpu",
    ),
    (
        "custom emitter",
        "the program calls a routine that this compiler does not have",
        "keep the operator named in the message out of the program",
    ),
    (
        "custom call",
        "the program calls a routine that this compiler does not have",
        "keep the operator named in the message out of the program",
    ),
    (
        "Attempting to allocate",
        "a tensor is larger than the compiler can address",
        "shard the tensor over more devices",
    ),
    (
        "does not support dynamic",
        "the compiler does not take this operation with a dynamic size",
        "give the dimension a fixed size",
    ),
    (
        "sharding",
        "the sharding does not fit the program",
        "choose sizes that the mesh divides, or --shard none",
    ),
)


def _refused(code: str, said: str) -> Verdict:
    for fragment, meaning, remedy in _MEANINGS:
        if fragment.lower() in said.lower():
            return Verdict("refused", meaning, remedy, detail=said)
    element = _ELEMENT.search(said)
    if element is not None:
        return Verdict(
            "refused",
            f"TPUs have no {element[1]} for this operation",
            "convert to float32, bfloat16 or a 32-bit integer before it",
            detail=said,
        )
    if code == "UNIMPLEMENTED":
        return Verdict("refused", "the compiler lacks an operation of the program", detail=said)
    return Verdict("refused", f"the compiler refuses the program ({code})", detail=said)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
