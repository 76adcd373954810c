# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Collectives as programs of the devices: what each costs on a TPU, and what it computes.

>>> c = programs.Collective("all_reduce", torch.float32, 1024, 4)     # doctest: +SKIP
>>> programs.compile_for(c, "v6e:2x2").cost["optimal_seconds"]       # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from torch_tpu import _C, aot

__all__ = ["KINDS", "REDUCTIONS", "Collective", "compile_for", "run"]

# In the order of include/torus/collective.h.
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute")
REDUCTIONS = ("sum", "product", "min", "max", "avg")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of a group over rows of elements.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    dtype : torch.dtype
        Of the elements.
    count : int
        Elements that a member gives ("all_gather"), gets ("reduce_scatter"), sends to each other
        member ("all_to_all"), or has (the others).
    size : int
        Members of the group.
    reduction : str
        One of `REDUCTIONS`; for those kinds that reduce.
    root : int
        The member whose elements are broadcast.
    pairs : sequence of (int, int)
        Source and target of each transfer of "permute".
    """

    kind: str
    dtype: torch.dtype
    count: int
    size: int
    reduction: str = "sum"
    root: int = 0
    pairs: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a collective is one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.reduction not in REDUCTIONS:
            raise ValueError(
                f"a reduction is one of {', '.join(REDUCTIONS)}, not {self.reduction!r}"
            )

    def _native(self) -> _C._Collective:
        return _C._Collective(
            KINDS.index(self.kind),
            REDUCTIONS.index(self.reduction),
            self.dtype,
            self.count,
            self.size,
            self.root,
            [source for source, _ in self.pairs],
            [target for _, target in self.pairs],
        )

    @property
    def text(self) -> str:
        """The program of each member, as StableHLO.

        Raises
        ------
        ValueError
            If the type cannot be reduced so, or a member is named that the group does not have.
        """
        return self._native().text()


def run(
    collective: Collective, rows: Sequence[torch.Tensor], devices: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """Run a collective on devices of this process.

    Parameters
    ----------
    collective : Collective
        What to do.
    rows : sequence of torch.Tensor
        For each member its elements, of one dimension, on the host.
    devices : sequence of int, optional
        For each member its device; the first ones by default.

    Returns
    -------
    list of torch.Tensor
        For each member what it gets, on the host.

    Raises
    ------
    ValueError
        If there are too few rows or devices, or rows of another length or type.
    """
    whole = torch.cat(list(rows)).contiguous()
    places = list(range(collective.size)) if devices is None else list(devices)
    return list(collective._native().run(whole, places).chunk(collective.size))


def compile_for(collective: Collective, topology: str) -> aot.Compiled:
    """Compile a collective among the first devices of a TPU topology, without a TPU.

    Returns
    -------
    Compiled
        With the compiler's estimate of its cost; see `torch_tpu.aot.compile_text`.
    """
    return aot.compile_text(
        collective.text, topology, num_replicas=collective.size, serialize=False
    )
