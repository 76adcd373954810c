# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""One process drives several devices: tensors that lie on a mesh, programs that run on all of it.

Computation follows data. A distributed tensor is an ordinary tensor: its shape is that of the
whole, its device the first of the mesh. Whatever is computed with it becomes one program on all
devices of the mesh, in eager mode and in captured graphs alike; the compiler works out which device
computes what and where data must be exchanged. Tensors on a single device take part as if every
device had them.

>>> mesh = spmd.init_mesh((2, 4), ("data", "model"))            # doctest: +SKIP
>>> spmd.parallelize(model, mesh, "2d")                         # doctest: +SKIP
>>> batch = spmd.distribute_tensor(batch, mesh, [Shard(0), Replicate()])  # doctest: +SKIP
>>> loss = model(batch).loss; loss.backward(); optimizer.step()  # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.aot import plans
from torch_tpu.aot import sharding as shardings

__all__ = [
    "Layout",
    "Mesh",
    "distribute_tensor",
    "full_tensor",
    "init_mesh",
    "is_distributed",
    "layout_of",
    "parallelize",
]


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices of this process in a grid.

    Attributes
    ----------
    axes : dict of str to int
        Names and sizes, the slowest first.
    devices : tuple of int
        Indices of devices "tpu", row by row.
    """

    axes: Mapping[str, int]
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        grid = shardings.Mesh(self.axes)
        if grid.size != len(self.devices) or len(set(self.devices)) != len(self.devices):
            raise ValueError(
                f"a mesh of {grid.size} places needs as many different devices, "
                f"got {list(self.devices)}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.axes.values())

    @property
    def size(self) -> int:
        """How many devices there are."""
        return len(self.devices)

    @property
    def device(self) -> torch.device:
        """The device that distributed tensors are on by name: the first."""
        return torch.device("tpu", self.devices[0])


def init_mesh(
    shape: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    *,
    devices: Sequence[int] | None = None,
) -> Mesh:
    """Make a mesh of this process's devices.

    Parameters
    ----------
    shape : sequence of int, optional
        Sizes of its axes; all devices in a row by default.
    names : sequence of str, optional
        Of the axes; ``("data",)`` for one, ``("data", "model")`` for two.
    devices : sequence of int, optional
        Which devices, row by row; the first of them by default.

    Returns
    -------
    Mesh

    Raises
    ------
    ValueError
        If there are too few devices, or the lists do not fit each other.

    Examples
    --------
    >>> init_mesh((2, 4), ("data", "model"))  # doctest: +SKIP
    """
    count = torch.tpu.device_count()
    if shape is None:
        shape = (len(devices) if devices is not None else count,)
    if names is None:
        names = ("data", "model", "other")[: len(shape)]
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ValueError(f"{len(shape)} axes need as many different names, got {list(names)}")
    size = math.prod(shape)
    if devices is None:
        if size > count:
            raise ValueError(
                f"a mesh of {size} devices, but this process has {count}. On the CPU, "
                f"TORUS_CPU_DEVICES={size} gives as many virtual ones."
            )
        devices = range(size)
    return Mesh(dict(zip(names, shape, strict=True)), tuple(devices))


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a tensor lies on several devices.

    Attributes
    ----------
    devices : tuple of int
        Of the mesh.
    parts : tuple of int
        Into how many parts each dimension is cut.
    placement : tuple of int
        For each piece, row by row, the places in `devices` of those that hold it.
    """

    devices: tuple[int, ...]
    parts: tuple[int, ...]
    placement: tuple[int, ...]

    @property
    def is_replicated(self) -> bool:
        """Whether every device has all of the tensor."""
        return math.prod(self.parts) == 1

    def holders(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return for each piece, by its place along each dimension, the devices that hold it."""
        copies = len(self.devices) // math.prod(self.parts)
        found = {}
        for number in range(math.prod(self.parts)):
            place, rest = [], number
            for count in reversed(self.parts):
                rest, along = divmod(rest, count)
                place.append(along)
            held = self.placement[number * copies : (number + 1) * copies]
            found[tuple(reversed(place))] = tuple(sorted(self.devices[k] for k in held))
        return found


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """Return how a tensor lies, or None if it is on a single device. Waits for it.

    Raises
    ------
    TypeError
        If it is not on device "tpu".
    """
    found = _C._layout(tensor)
    return None if found is None else Layout(*map(tuple, found))


def is_distributed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies on several devices. Waits for it."""
    return tensor.device.type == "tpu" and layout_of(tensor) is not None


def _spec(mesh: Mesh, placements: Sequence[Any], rank: int) -> list[tuple[str, ...]]:
    """Return for each dimension the axes over which it is cut."""
    from torch.distributed.tensor import Replicate, Shard

    names = list(mesh.axes)
    if len(placements) != len(names):
        raise ValueError(
            f"a mesh of {len(names)} axes needs as many placements, got {len(placements)}"
        )
    spec: list[tuple[str, ...]] = [()] * rank
    for name, placement in zip(names, placements, strict=True):
        if isinstance(placement, Shard) and -rank <= placement.dim < rank:
            spec[placement.dim] += (name,)
        elif not isinstance(placement, Replicate):
            raise ValueError(
                f"a tensor of {rank} dimensions cannot be placed as {placement} over the axis "
                f"{name!r}; use Shard(dim) or Replicate()"
            )
    return spec


def distribute_tensor(
    tensor: torch.Tensor, mesh: Mesh, placements: Sequence[Any] | None = None
) -> torch.Tensor:
    """Lay a tensor on a mesh.

    Parameters
    ----------
    tensor : torch.Tensor
        On the host, where each piece goes straight to its device, or on device "tpu".
    mesh : Mesh
        Where to.
    placements : sequence of Placement, optional
        One for each axis of the mesh, ``Shard(dim)`` or ``Replicate()`` of
        `torch.distributed.tensor`; replicated by default.

    Returns
    -------
    torch.Tensor
        A leaf with the same shape and `requires_grad`, on the mesh's first device by name. A
        parameter gives a parameter.

    Raises
    ------
    ValueError
        If the placements do not fit.
    """
    from torch.distributed.tensor import Replicate

    if placements is None:
        placements = [Replicate()] * len(mesh.axes)
    return _lay_out(tensor, mesh, _spec(mesh, placements, tensor.dim()))


def _lay_out(tensor: torch.Tensor, mesh: Mesh, spec: shardings.Spec) -> torch.Tensor:
    grid = shardings.Mesh(mesh.axes)
    text = shardings.sharding(grid, spec, tensor.dim())
    parts, placement = shardings.parse(text, tensor.dim())
    laid = _C._distribute(tensor.detach(), (list(mesh.devices), parts, placement))
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(laid, requires_grad=tensor.requires_grad)
    return laid.requires_grad_(tensor.requires_grad)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor on a single device, the one that it names."""
    layout = layout_of(tensor)
    return tensor if layout is None else tensor.detach().cpu().to(tensor.device)


Rule = Callable[[str, torch.Tensor], "Sequence[Any] | None"]


def parallelize(module: torch.nn.Module, mesh: Mesh, plan: str | Rule = "data") -> torch.nn.Module:
    """Lay the parameters and buffers of a module on a mesh, in place.

    Parameters
    ----------
    module : torch.nn.Module
        On the host or on device "tpu". Tied parameters stay tied.
    mesh : Mesh
        For a plan by name, with the axes that it asks for: "data"; "fsdp"; "model"; or, for "2d",
        "fsdp" (or "data") and "model".
    plan : {"data", "fsdp", "tp", "2d"} or callable
        See `torch_tpu.aot.plans`; or a function of a parameter's name and the parameter that
        returns its placements, or None for replicated.

    Returns
    -------
    torch.nn.Module
        The same module.

    Raises
    ------
    ValueError
        If there is no such plan, or the mesh lacks its axes.
    """
    rule = _rule_of(mesh, plan)
    done: dict[int, torch.Tensor] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) not in done:
            done[id(parameter)] = parameter
            with torch.no_grad():
                laid = _lay_out(parameter.detach(), mesh, rule(name, parameter))
                parameter.data = laid
    for owner in module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = _lay_out(buffer, mesh, ())
    return module


_AXES = {"data": ("data",), "fsdp": ("fsdp", "data"), "tp": ("model",), "2d": ("model",)}


def _rule_of(mesh: Mesh, plan: str | Rule) -> Callable[[str, torch.Tensor], shardings.Spec]:
    if callable(plan):

        def from_user(name: str, parameter: torch.Tensor) -> shardings.Spec:
            placements = plan(name, parameter)
            return () if placements is None else _spec(mesh, placements, parameter.dim())

        return from_user
    if plan not in _AXES:
        raise ValueError(f"a plan is one of {', '.join(_AXES)} or a function, not {plan!r}")
    if not any(name in mesh.axes for name in _AXES[plan]):
        raise ValueError(
            f"the plan {plan!r} needs a mesh with an axis {' or '.join(map(repr, _AXES[plan]))}, "
            f"this one has {', '.join(mesh.axes)}"
        )
    if plan == "data":
        return lambda name, parameter: ()
    renamed = {("fsdp" if name == "data" else name): size for name, size in mesh.axes.items()}
    back = {"fsdp": "fsdp" if "fsdp" in mesh.axes else "data"}
    grid = shardings.Mesh(renamed)

    def from_plan(name: str, parameter: torch.Tensor) -> shardings.Spec:
        spec = plans.spec_for(name, parameter.shape, grid)
        return [back.get(axis, axis) if isinstance(axis, str) else axis for axis in spec]

    return from_plan
