# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Tensors divided over a mesh, named by one mesh axis per dimension of the tensor.

A *partition* has an entry for each dimension of a tensor: the axis (name or number) over which
the dimension is divided, several of them, or None. ``("data", None)`` divides the rows over axis
"data" and keeps rows whole. Underneath are PyTorch's `DTensor` and its placements, one for each
axis of the mesh.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from torch_tpu.training.workers import init, world_size

Partition = Sequence[Any]

_for_the_process = contextlib.ExitStack()


def make_mesh(shape: Sequence[int], names: Sequence[str] | None = None) -> DeviceMesh:
    """Arrange the job's processes, one device each, as an array.

    Parameters
    ----------
    shape : sequence of int
        Their product is the number of processes.
    names : sequence of str, optional
        One for each axis.

    Raises
    ------
    ValueError
        If the shape does not hold all processes.
    """
    init()
    size = torch.Size(shape).numel()
    if size != world_size():
        raise ValueError(
            f"make_mesh: a mesh of shape {tuple(shape)} holds {size} processes, there are "
            f"{world_size()}"
        )
    # The mesh would otherwise guess this process's device, with a warning.
    torch.tpu.init()
    return init_device_mesh(
        "tpu", tuple(shape), mesh_dim_names=tuple(names) if names is not None else None
    )


def placements_of(mesh: DeviceMesh, partition: Partition) -> list[Placement]:
    """Translate a partition into DTensor placements, one for each axis of the mesh.

    Raises
    ------
    ValueError
        If the partition names an axis that the mesh does not have, or one twice.
    """
    placements: list[Placement] = [Replicate()] * mesh.ndim
    for dim, entry in enumerate(partition):
        axes = entry if isinstance(entry, (tuple, list)) else (entry,)
        for axis in axes:
            if axis is None:
                continue
            index = _axis(mesh, axis)
            if not isinstance(placements[index], Replicate):
                raise ValueError(f"partition {tuple(partition)} names axis {axis!r} twice")
            placements[index] = Shard(dim)
    return placements


def _axis(mesh: DeviceMesh, axis: Any) -> int:
    names = mesh.mesh_dim_names or ()
    if isinstance(axis, str) and axis in names:
        return names.index(axis)
    if isinstance(axis, int) and 0 <= axis < mesh.ndim:
        return axis
    raise ValueError(f"the mesh has no axis {axis!r}; its axes are {names or mesh.ndim}")


def shard(tensor: torch.Tensor, mesh: DeviceMesh, partition: Partition) -> torch.Tensor:
    """Return a tensor divided over a mesh.

    Parameters
    ----------
    tensor : Tensor
        The whole tensor, the same in every process, or one that is divided already. A parameter
        gives a new parameter: assign it to its module, ``layer.weight = shard(layer.weight,
        ...)``, before the optimizer is made.
    mesh : DeviceMesh
        From `make_mesh`.
    partition : sequence
        See the module; an entry for each dimension of the tensor.

    Raises
    ------
    ValueError
        If the partition does not fit the tensor or the mesh.
    """
    if len(partition) != tensor.dim():
        raise ValueError(
            f"shard: partition {tuple(partition)} has {len(partition)} entries, the tensor of "
            f"shape {tuple(tensor.shape)} has {tensor.dim()} dimensions"
        )
    placements = placements_of(mesh, partition)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(_divide(tensor.detach(), mesh, placements), tensor.requires_grad)
    return _divide(tensor, mesh, placements)


def _divide(tensor: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return tensor.redistribute(mesh, placements)
    if tensor.is_leaf:
        return distribute_tensor(tensor, mesh, placements)
    return DTensor.from_local(tensor, mesh).redistribute(mesh, placements)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a divided tensor as a plain one, the same in every process; a plain one as it is.

    Read values through this: ``item()`` of a divided tensor gives this process's part, and of a
    sum that is still spread over the processes only its own share. All processes must call it.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_parameters(
    module: torch.nn.Module, mesh: DeviceMesh, partitions: Mapping[str, Partition]
) -> None:
    """Divide parameters of a module where they are.

    Parameters
    ----------
    module : Module
        Its parameters are replaced: make the optimizer afterwards.
    mesh : DeviceMesh
        From `make_mesh`.
    partitions : mapping from str to sequence
        By the names that ``named_parameters()`` gives.

    Raises
    ------
    AttributeError
        If there is no parameter of a name.
    """
    for name, partition in partitions.items():
        owner, _, own_name = name.rpartition(".")
        holder = module.get_submodule(owner)
        setattr(holder, own_name, shard(module.get_parameter(name), mesh, partition))


def replicate_unmarked() -> None:
    """Let tensors that are not divided meet divided ones, as whole copies in every process.

    Holds until the process ends. Without it an operator that gets both kinds raises.
    """
    from torch.distributed.tensor.experimental import implicit_replication

    init()
    _for_the_process.enter_context(implicit_replication())


@dataclasses.dataclass(frozen=True)
class ShardingSpec:
    """How tensors of one kind are divided.

    Attributes
    ----------
    mesh : DeviceMesh
        From `make_mesh`.
    partition : sequence
        See the module.
    """

    mesh: DeviceMesh
    partition: Partition

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor divided; unchanged if it has another number of dimensions."""
        if tensor.dim() != len(self.partition):
            return tensor
        return distribute_tensor(tensor, self.mesh, placements_of(self.mesh, self.partition))
