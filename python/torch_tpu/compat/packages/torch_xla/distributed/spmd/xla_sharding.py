# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.distributed.spmd.xla_sharding: over `torch_tpu.training`'s meshes and DTensor."""

from __future__ import annotations

import functools
import math
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor as XLAShardedTensor  # noqa: F401
from torch_tpu import compat, training

_global_mesh: Mesh | None = None


class Mesh:
    """Processes, one device each, as an array with named axes."""

    def __init__(
        self, device_ids: Any, mesh_shape: Sequence[int], axis_names: Sequence[str] | None = None
    ) -> None:
        self.device_ids = np.array(device_ids)
        self.mesh_shape = tuple(mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)
        self.device_mesh = training.make_mesh(self.mesh_shape, self.axis_names)

    def size(self) -> int:
        """Return the number of processes."""
        return math.prod(self.mesh_shape)

    def shape(self) -> OrderedDict[Any, int]:
        """Return the size of each axis."""
        names = self.axis_names or range(len(self.mesh_shape))
        return OrderedDict(zip(names, self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """Return the devices as an array."""
        return self.device_ids.reshape(self.mesh_shape)


class ShardingSpec(training.ShardingSpec):
    """How tensors of one kind are divided."""

    def __init__(self, mesh: Mesh, partition_spec: Any, minibatch: bool = False) -> None:
        del minibatch
        super().__init__(mesh.device_mesh, partition_spec)


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Any) -> torch.Tensor:
    """Return a tensor divided; one whose result is not used stays whole, with equal numbers.

    DTensor cannot take the place of a tensor that a module or a variable holds. The migrated form,
    ``layer.weight = training.shard(layer.weight, mesh, partition)``, divides it.
    """
    if isinstance(t, torch.nn.Parameter):
        training.placements_of(mesh.device_mesh, partition_spec)
        _warn_once()
        return t
    return training.shard(t, mesh.device_mesh, partition_spec)


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "torch_tpu.compat: mark_sharding leaves parameters whole in every process; 'torus "
        "migrate' rewrites the program so that they are divided",
        stacklevel=3,
    )


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Return the mesh of one axis."""
    size = training.world_size()
    return Mesh(np.arange(size), (size,), None if axis_name is None else (axis_name,))


def set_global_mesh(mesh: Mesh) -> None:
    """Keep a mesh for `get_global_mesh`."""
    global _global_mesh
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    """Return what `set_global_mesh` was given."""
    return _global_mesh


def apply_xla_patch_to_nn_linear(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module: its layers need no change."""
    return module


__getattr__ = compat.missing("torch_xla.distributed.spmd.xla_sharding")
