# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Meshes whose inner dimensions are neighbours on the chips' own network (ICI).

A slice of TPU chips is a torus. Exchanges along a dimension of a mesh are fast if its members are
neighbours there, and slowest between slices, which only the data centre's network connects.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_tpu.distributed import pod as pods

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["order_devices", "topology_aware_mesh"]

Place = tuple[int, ...]


def topology_aware_mesh(
    shape: Sequence[int], names: Sequence[str] | None = None
) -> dist.device_mesh.DeviceMesh:
    """Make a mesh of all processes, one for each chip, that follows the chips' network.

    All processes call it. Where they run is what ``torus launch`` found, or what the variables of
    the TPU VM say.

    Parameters
    ----------
    shape : sequence of int
        Sizes of its dimensions. Several slices lie along the first, which their number must divide.
    names : sequence of str, optional
        Of the dimensions.

    Returns
    -------
    torch.distributed.device_mesh.DeviceMesh
        In the order of the ranks where no TPU is known, or a process has not just one chip.

    Raises
    ------
    ValueError
        If the shape does not fit the processes or the slices.

    Examples
    --------
    >>> topology_aware_mesh((2, 8), ("data", "model"))  # doctest: +SKIP
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    size = dist.get_world_size()
    if math.prod(shape) != size:
        raise ValueError(f"a mesh of shape {tuple(shape)} is not for {size} processes")
    places: list[Place | None] = [None] * size
    dist.all_gather_object(places, _own_place())
    known = [place for place in places if place is not None]
    ranks = order_devices(shape, known) if len(known) == size else list(range(size))
    grid = torch.tensor(ranks, dtype=torch.int).reshape(tuple(shape))
    return DeviceMesh("tpu", grid, mesh_dim_names=tuple(names) if names else None)


def _own_place() -> Place | None:
    """Return slice, x, y, z of this process's chip."""
    pod = pods.of_this_process()
    chips = math.prod(pod.chips_per_host) if pod else 0
    if pod is None or os.environ.get("LOCAL_WORLD_SIZE") != str(chips):
        return None
    return pods.coordinates(pod)[pod.node * chips + int(os.environ["LOCAL_RANK"])]


def order_devices(shape: Sequence[int], places: Sequence[Place]) -> list[int]:
    """Order devices for a mesh so that its inner dimensions are neighbours.

    Parameters
    ----------
    shape : sequence of int
        Of the mesh.
    places : sequence of tuple of int
        Of each device: its slice, then its coordinates there.

    Returns
    -------
    list of int
        Indices into `places`, row by row of the mesh.

    Raises
    ------
    ValueError
        If the devices are not whole slices of one size, or the mesh does not fit them.
    """
    slices = sorted({place[0] for place in places})
    grid = _extents(places, slices)
    first, rest = divmod(shape[0], len(slices)) if shape else (0, 0)
    if rest or first * math.prod(shape[1:]) != math.prod(grid):
        raise ValueError(
            f"a mesh of shape {tuple(shape)} does not fit {len(slices)} slices of "
            f"{'x'.join(map(str, grid))} chips: the slices lie along its first dimension, and each "
            "fills the rest"
        )
    within = _walk([first, *shape[1:]], grid)
    index = {place: k for k, place in enumerate(places)}
    return [index[(number, *place)] for number in slices for place in within]


def _extents(places: Sequence[Place], slices: Sequence[int]) -> tuple[int, ...]:
    axes = range(1, len(places[0]))
    grid = tuple(1 + max(place[axis] for place in places) for axis in axes)
    whole = set(itertools.product(slices, *map(range, grid)))
    if set(places) != whole or len(places) != len(whole):
        raise ValueError("the devices are not whole slices of one size")
    return grid


def _walk(shape: Sequence[int], grid: Sequence[int]) -> list[Place]:
    """Return the coordinates of a slice, row by row of a mesh of that shape."""
    boxes: list[tuple[int, ...]] = []
    left = list(grid)
    for size in reversed(shape):
        box = _box(size, left)
        boxes.append(box)
        left = [a // b for a, b in zip(left, box, strict=True)]
    strides = [1] * len(grid)
    steps: list[list[Place]] = []
    for box in boxes:
        steps.append([_scaled(place, strides) for place in _snake(box)])
        strides = [s * b for s, b in zip(strides, box, strict=True)]
    return [_sum(choice) for choice in itertools.product(*reversed(steps))]


def _box(size: int, left: Sequence[int]) -> tuple[int, ...]:
    """Choose the part of the torus that one dimension of the mesh takes.

    Whole axes first, because they close to rings, then few of them.
    """
    options = itertools.product(*([f for f in range(1, n + 1) if n % f == 0] for n in left))
    fitting = [box for box in options if math.prod(box) == size]

    def cost(box: tuple[int, ...]) -> tuple[int, int]:
        used = [(f, n) for f, n in zip(box, left, strict=True) if f > 1]
        return sum(f < n for f, n in used), len(used)

    return min(fitting, key=cost)


def _snake(box: Sequence[int]) -> list[Place]:
    """Walk through a box so that each place is a neighbour of the one before."""
    if not box:
        return [()]
    rest = _snake(box[1:])
    return [
        (first, *place)
        for first in range(box[0])
        for place in (rest if first % 2 == 0 else reversed(rest))
    ]


def _scaled(place: Place, strides: Sequence[int]) -> Place:
    return tuple(a * b for a, b in zip(place, strides, strict=True))


def _sum(places: Sequence[Place]) -> Place:
    return tuple(map(sum, zip(*places, strict=True)))
