# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Lay a tensor out as a non-contiguous view of a larger one, with the same values.

A layout is sizes, strides and an offset into a buffer whose other elements hold what no operator
should ever read: NaN, the largest integer, True.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import torch

_Strides = tuple[list[int], int]


@dataclasses.dataclass(frozen=True)
class Placed:
    """A buffer and where in it the tensor lies.

    Attributes
    ----------
    buffer : torch.Tensor
        One-dimensional, on the CPU.
    size, stride : tuple of int
    offset : int
        In elements.
    """

    buffer: torch.Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, device: str) -> torch.Tensor:
        """Return the view, of a copy of the buffer, on `device`."""
        return self.buffer.to(device, copy=True).as_strided(self.size, self.stride, self.offset)


def whole_storage(tensor: torch.Tensor) -> Placed:
    """Return `tensor` where it lies in its own storage."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = tensor.as_strided((count,), (1,), 0)
    return Placed(flat, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _row_major(size: Sequence[int]) -> list[int]:
    return [math.prod(size[dim + 1 :]) for dim in range(len(size))]


def _transposed(tensor: torch.Tensor) -> _Strides | None:
    if tensor.dim() < 2:
        return None
    return list(reversed(_row_major(list(reversed(tensor.shape))))), 2


def _stepped(tensor: torch.Tensor) -> _Strides:
    return [2 * stride for stride in _row_major(tensor.shape)], 1


def _sliced(tensor: torch.Tensor) -> _Strides:
    strides = _row_major([size + 2 for size in tensor.shape])
    return strides, sum(strides) + 3


def _expanded(tensor: torch.Tensor) -> _Strides | None:
    """Stride 0 along every dimension in which nothing changes."""
    sizes = list(tensor.shape)
    for dim, size in enumerate(tensor.shape):
        first = tensor.narrow(dim, 0, 1)
        if size > 1 and torch.equal(first.expand_as(tensor), tensor):
            sizes[dim] = 1
    if sizes == list(tensor.shape):
        return None
    strides = _row_major(sizes)
    changed = [new != old for new, old in zip(sizes, tensor.shape, strict=True)]
    return [0 if c else s for c, s in zip(changed, strides, strict=True)], 1


def _overlapping(tensor: torch.Tensor) -> _Strides | None:
    """Stride 1 along the last two dimensions, where element (i + 1, j) equals (i, j + 1)."""
    if tensor.dim() < 2 or not torch.equal(tensor[..., 1:, :-1], tensor[..., :-1, 1:]):
        return None
    *outer, rows, columns = tensor.shape
    return [*_row_major([*outer, rows + columns - 1])[:-1], 1, 1], 1


_LAYOUTS: dict[str, Callable[[torch.Tensor], _Strides | None]] = {
    "transposed": _transposed,
    "stepped": _stepped,
    "expanded": _expanded,
    "sliced": _sliced,
    "overlapping": _overlapping,
}
KINDS = tuple(_LAYOUTS)


def _unread(dtype: torch.dtype) -> float | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def place(tensor: torch.Tensor, kind: str) -> Placed | None:
    """Lay `tensor` out as `kind`.

    Parameters
    ----------
    tensor : torch.Tensor
        Strided, on the CPU, any shape and dtype.
    kind : str
        One of `KINDS`.

    Returns
    -------
    Placed or None
        None where the shape or the values do not allow this kind.
    """
    tensor = tensor.detach()
    if tensor.numel() == 0:
        return None
    found = _LAYOUTS[kind](tensor)
    if found is None:
        return None
    strides, offset = found
    where = torch.full(tuple(tensor.shape), offset, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, strides, strict=True)):
        shape = [size if d == dim else 1 for d in range(tensor.dim())]
        where = where + (torch.arange(size) * stride).reshape(shape)
    buffer = torch.full((int(where.max()) + 3,), _unread(tensor.dtype), dtype=tensor.dtype)
    buffer[where.flatten()] = tensor.resolve_conj().resolve_neg().flatten()
    return Placed(buffer, tuple(tensor.shape), tuple(strides), offset)


def placements(first: int = 0) -> Callable[[torch.Tensor], Placed]:
    """Return a function that places tensors, each of the next kind that it allows.

    Parameters
    ----------
    first : int
        Where in `KINDS` to begin.
    """

    def kinds() -> Iterator[str]:
        index = first
        while True:
            yield KINDS[index % len(KINDS)]
            index += 1

    order = kinds()

    def next_place(tensor: torch.Tensor) -> Placed:
        for _ in KINDS:
            placed = place(tensor, next(order))
            if placed is not None:
                return placed
        return whole_storage(tensor.detach())

    return next_place
