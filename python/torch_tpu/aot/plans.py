# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Plans: which array of a model lies where on a mesh, going by names and shapes.

``data``  every device has the whole model and its part of the batch
``fsdp``  parameters, their gradients and optimizer states are cut over all devices, which share the
          batch; the compiler gathers each layer's before it is used
``tp``    every layer is cut: projections into heads and hidden units by their results, projections
          back by what they sum over; embeddings by the vocabulary, experts by their number
``2d``    both, over the two axes of a mesh
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from torch_tpu.aot.sharding import Mesh, Spec, sharding

__all__ = ["STYLES", "mesh_for", "plan", "spec_for"]

STYLES = ("data", "fsdp", "tp", "2d")

# A parameter with fewer elements is not worth a collective.
_SMALL = 1 << 13


class Input(Protocol):
    """An argument of a lowered program."""

    name: str
    shape: tuple[int, ...]
    kind: str


def _words(*names: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|\.)(?:{'|'.join(names)})(?:\.|$)")


# Weights of nn.Linear are (results, summed over); those of transformers' Conv1D the other way.
_COLUMN = _words(
    "[qkv]_proj", "qkv(?:_proj)?", "query_key_value", "query", "key", "value", "to_[qkv]",
    "[qkv]_lin", "W_?pack", "Wqkv", "in_proj(?:_weight|_bias)?", "gate_proj", "up_proj",
    "gate_up_proj",
    "fc_?1", "lin1", "dense_h_to_4h", "wi(?:_[01])?", "w[13]", "linear_?1", "intermediate.dense",
    "add_[qkv]_proj", "net.0.proj", "proj_mlp", "[qkv]", "mlp.0",
)  # fmt: skip
_ROW = _words(
    "o_proj", "out_proj", "to_out(?:.0)?", "to_add_out", "out_lin", "down_proj", "fc_?2", "lin2",
    "dense_4h_to_h", "wo", "w2", "linear_?2", "output.dense", "attention.dense", "self_attention",
    "net.2", "proj_out", "o", "mlp.2",
)  # fmt: skip
_COLUMN_TRANSPOSED = _words("c_attn", "c_fc", "q_attn")
_ROW_TRANSPOSED = _words("c_proj")
_VOCABULARY = _words(
    "embed_tokens", "lm_head", "word_embeddings", "wte", "shared", "embed_in", "embed_out",
    "tok_embeddings", "decoder.weight",
)  # fmt: skip
_EXPERTS = _words("experts")
_CACHE = re.compile(r"key|value|cache|past", re.IGNORECASE)


def mesh_for(style: str, count: int) -> Mesh:
    """Return the mesh that a style is laid on by default.

    Parameters
    ----------
    style : {"data", "fsdp", "tp", "2d"}
        The plan.
    count : int
        How many devices.

    Returns
    -------
    Mesh
        For ``"2d"``, the axis "model" is as near below the root of `count` as a power of two gets,
        and at most 8: it carries the collectives that cannot be hidden.
    """
    if style == "2d":
        model = 1
        while 4 * model * model <= count and model < 8 and count % (2 * model) == 0:
            model *= 2
        return Mesh({"fsdp": count // model, "model": model})
    axes = {"data": "data", "fsdp": "fsdp", "tp": "model"}
    if style not in axes:
        raise ValueError(f"a plan is one of {', '.join(STYLES)}, not {style!r}")
    return Mesh({axes[style]: count})


def plan(
    inputs: Iterable[Input], mesh: Mesh, *, batch_dims: dict[str, int] | None = None
) -> dict[int, str]:
    """Lay a program's arguments on a mesh.

    Parameters
    ----------
    inputs : iterable of Input
        With ``name``, ``shape`` and ``kind``, as `torch_tpu.aot.Lowered.inputs` are.
    mesh : Mesh
        With any of the axes "data", "fsdp" and "model".
    batch_dims : dict of str to int, optional
        For arguments whose batch is not their first dimension.

    Returns
    -------
    dict of int to str
        An ``mhlo.sharding`` for each argument by its number.
    """
    listed = list(inputs)
    parameters = {i.name: tuple(i.shape) for i in listed if i.kind == "parameter"}
    return {
        number: sharding(mesh, _spec(item, mesh, parameters, batch_dims or {}), len(item.shape))
        for number, item in enumerate(listed)
    }


def _spec(
    item: Input, mesh: Mesh, parameters: dict[str, tuple[int, ...]], batch_dims: dict[str, int]
) -> Spec:
    shape = tuple(item.shape)
    if item.kind == "parameter":
        return spec_for(item.name, shape, mesh)
    owner = _owner(item.name, shape, parameters)
    if owner:
        return spec_for(owner, shape, mesh)
    if item.kind in ("random", "constant") or not shape:
        return ()
    is_cache = len(shape) == 4 and _CACHE.search(item.name) is not None
    if item.kind == "buffer" and not is_cache:
        return ()
    return _activation(shape, mesh, batch_dims.get(item.name, 0), is_cache)


def _owner(name: str, shape: tuple[int, ...], parameters: dict[str, tuple[int, ...]]) -> str:
    """Return the parameter that an optimizer's state or a gradient belongs to, or nothing."""
    owner = name.rpartition(".")[0]
    return owner if parameters.get(owner) == shape else ""


def _activation(shape: tuple[int, ...], mesh: Mesh, dim: int, is_cache: bool) -> Spec:
    axes = tuple(name for name in ("data", "fsdp") if mesh.axes.get(name, 1) > 1)
    spec: list[str | tuple[str, ...] | None] = [None] * len(shape)
    if axes and dim < len(shape) and shape[dim] % math.prod(mesh.axes[a] for a in axes) == 0:
        spec[dim] = axes
    if is_cache and _divides(mesh, "model", shape[1]):
        spec[1] = "model"
    return spec


def _divides(mesh: Mesh, axis: str, size: int) -> bool:
    count = mesh.axes.get(axis, 1)
    return count > 1 and size % count == 0


def spec_for(name: str, shape: Sequence[int], mesh: Mesh) -> Spec:
    """Return how a parameter lies on a mesh.

    Parameters
    ----------
    name : str
        Qualified, such as ``"model.layers.0.mlp.up_proj.weight"``.
    shape : sequence of int
        Of the whole parameter.
    mesh : Mesh
        An axis "model" cuts layers, an axis "fsdp" what is left.

    Returns
    -------
    Spec
        Dimensions that do not divide evenly stay whole.
    """
    spec: list[str | tuple[str, ...] | None] = [None] * len(shape)
    dim = _model_dim(name, len(shape))
    if dim is not None and _divides(mesh, "model", shape[dim]):
        spec[dim] = "model"
    if math.prod(shape) >= _SMALL:
        whole = [d for d in range(len(shape)) if spec[d] is None]
        free = [d for d in whole if _divides(mesh, "fsdp", shape[d])]
        if free:
            spec[max(free, key=lambda d: shape[d])] = "fsdp"
    return spec


def _model_dim(name: str, rank: int) -> int | None:
    """Return the dimension of a parameter that tensor parallelism cuts."""
    is_bias = rank == 1
    if _EXPERTS.search(name) and rank == 3:
        return 0
    if _ROW.search(name):
        return None if is_bias else 1
    if _ROW_TRANSPOSED.search(name):
        return None if is_bias else 0
    if _COLUMN_TRANSPOSED.search(name):
        return rank - 1
    if _COLUMN.search(name) or _VOCABULARY.search(name):
        return 0 if rank in (1, 2) else None
    return None
