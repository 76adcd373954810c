# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What processes say to each other. In a single process each function returns at once.

`groups`, where a function takes it, lists the ranks of each of several groups, such as
``[[0, 1], [2, 3]]``: every process works with those of its own group. By default all processes
are one group.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from torch_tpu.training.workers import init, rank, world_size

Groups = Sequence[Sequence[int]] | None

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
}


def _op(kind: str) -> Any:
    if kind not in _OPS:
        raise ValueError(f"reduction {kind!r} is none of {', '.join(_OPS)}")
    return _OPS[kind]


def _group(groups: Groups) -> Any:
    """Return the group of this process, None for all of them."""
    init()
    if not groups or len(groups[0]) == world_size():
        return None
    return _subgroup(tuple(tuple(members) for members in groups))


@functools.cache
def _subgroup(groups: tuple[tuple[int, ...], ...]) -> Any:
    own, _ = dist.new_subgroups_by_enumeration([list(members) for members in groups])
    return own


def _size(groups: Groups) -> int:
    return len(groups[0]) if groups else world_size()


def all_reduce(
    kind: str,
    value: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Combine tensors over the processes.

    Parameters
    ----------
    kind : {"sum", "mul", "min", "max", "and", "or"}
        The reduction.
    value : Tensor or list of Tensor
        What this process brings. The tensors of a list are overwritten.
    scale : float
        Factor applied to the result.
    groups : sequence of sequences of int, optional
        See the module.

    Returns
    -------
    Tensor or list of Tensor
        A new tensor for a tensor, the list itself for a list.
    """
    op = _op(kind)
    alone = world_size() == 1
    if isinstance(value, torch.Tensor):
        result = value.detach().clone()
        return _reduce(result, op, 1.0 if alone else scale, groups)
    if not alone:
        for tensor in value:
            _reduce(tensor, op, scale, groups)
    return value


def _reduce(tensor: torch.Tensor, op: Any, scale: float, groups: Groups) -> torch.Tensor:
    if world_size() > 1:
        dist.all_reduce(tensor, op, group=_group(groups))
    return tensor.mul_(scale) if scale != 1.0 else tensor


def all_gather(value: torch.Tensor, dim: int = 0, groups: Groups = None) -> torch.Tensor:
    """Concatenate the tensors of all processes, equal in shape, along `dim`."""
    size = _size(groups)
    if size == 1:
        return value.detach().clone()
    parts = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(parts, value.detach().contiguous(), group=_group(groups))
    return torch.cat(parts, dim)


def reduce_scatter(
    kind: str, value: torch.Tensor, scale: float = 1.0, dim: int = 0, groups: Groups = None
) -> torch.Tensor:
    """Combine the tensors of all processes and keep this process's part along `dim`.

    Raises
    ------
    ValueError
        If the processes do not divide that dimension.
    """
    size = _size(groups)
    if value.shape[dim] % size:
        raise ValueError(
            f"reduce_scatter: dimension {dim} of shape {tuple(value.shape)} is not divisible by "
            f"{size} processes"
        )
    if size == 1:
        return value.detach() * scale
    parts = [part.contiguous() for part in value.detach().chunk(size, dim)]
    result = torch.empty_like(parts[0])
    dist.reduce_scatter(result, parts, _op(kind), group=_group(groups))
    return result.mul_(scale) if scale != 1.0 else result


def all_to_all(
    value: torch.Tensor, split_dim: int, concat_dim: int, groups: Groups = None
) -> torch.Tensor:
    """Split a tensor along one dimension, send part i to process i, join what comes along another.

    Raises
    ------
    ValueError
        If the processes do not divide the dimension that is split.
    """
    size = _size(groups)
    if value.shape[split_dim] % size:
        raise ValueError(
            f"all_to_all: dimension {split_dim} of shape {tuple(value.shape)} is not divisible by "
            f"{size} processes"
        )
    parts = [part.contiguous() for part in value.detach().chunk(size, split_dim)]
    if size == 1:
        return parts[0].clone()
    received = [torch.empty_like(part) for part in parts]
    dist.all_to_all(received, parts, group=_group(groups))
    return torch.cat(received, concat_dim)


def broadcast(tensors: Iterable[torch.Tensor], source: int = 0) -> None:
    """Overwrite tensors in every process with those of process `source`."""
    if world_size() == 1:
        return
    init()
    with torch.no_grad():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), source)


def broadcast_parameters(module: torch.nn.Module, source: int = 0) -> None:
    """Give every process the parameters and buffers of process `source`."""
    broadcast([*module.parameters(), *module.buffers()], source)


def gather(data: Any) -> list[Any]:
    """Return what each process brings, in the order of ranks, in every process.

    Parameters
    ----------
    data : object
        Anything that can be pickled. Its tensors come back on the CPU.
    """
    own = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), data)
    if world_size() == 1:
        return [own]
    init()
    everything: list[Any] = [None] * world_size()
    dist.all_gather_object(everything, own)
    everything[rank()] = own
    return everything


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None) -> None:
    """Average the gradients of an optimizer's parameters over the processes.

    Gradients of one dtype travel as one tensor. Those of sharded parameters (`DTensor`) are
    averaged by their own placement and left alone.
    """
    size = _size(groups)
    if size == 1:
        return
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and not isinstance(gradient, DTensor):
                by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for gradients in by_dtype.values():
        _average(gradients, size, groups)


@torch.no_grad()
def _average(gradients: list[torch.Tensor], size: int, groups: Groups) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=_group(groups))
    parts = flat.div_(size).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def optimizer_step(optimizer: torch.optim.Optimizer, groups: Groups = None, **kwargs: Any) -> Any:
    """Average the gradients over the processes, then step.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its ``step`` is called with `kwargs`.

    Returns
    -------
    object
        What ``step`` returned.
    """
    reduce_gradients(optimizer, groups)
    return optimizer.step(**kwargs)
