# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What would make a model faster or smaller on a TPU, seen from its shapes.

The matrix unit works on tiles of 128 x 128 (256 x 256 from v6e on), the vector unit on 8 x 128:
dimensions that are no multiples are padded in memory and computed all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch_tpu.aot import Lowered

from torus.check.analysis import Analysis
from torus.check.plan import Plan
from torus.check.step import Request

__all__ = ["find"]

_LANES = 128
_SUBLANES = 8


def find(
    config: Any, request: Request, lowered: Lowered, analysis: Analysis, plan: Plan
) -> list[str]:
    """Return advice, one sentence or two each.

    Parameters
    ----------
    config : object
        The model's configuration; None if there is none.
    request : Request
        What was checked.
    lowered : torch_tpu.aot.Lowered
        The step.
    analysis : Analysis
        Of its text.
    plan : Plan
        How it is spread.
    """
    parts = (
        _of_config(config),
        _of_batch(request, plan),
        _of_types(lowered, analysis),
        _of_padding(lowered),
        _of_program(analysis),
    )
    return [hint for part in parts for hint in part]


def _of_config(config: Any) -> Iterator[str]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    hidden, heads = getattr(text, "hidden_size", 0), getattr(text, "num_attention_heads", 0)
    head = getattr(text, "head_dim", 0) or (hidden // heads if heads else 0)
    if head and head % _LANES:
        yield (
            f"head dimension {head}: attention's products and its cache are padded to "
            f"{_round_up(head, _LANES)} lanes, {_round_up(head, _LANES) / head:.2g}x the memory"
        )
    vocabulary = getattr(text, "vocab_size", 0)
    if vocabulary and vocabulary % _LANES:
        yield (
            f"vocabulary {vocabulary} is no multiple of {_LANES}: pad embedding and head to "
            f"{_round_up(vocabulary, _LANES)} "
            f"(model.resize_token_embeddings(pad_to_multiple_of={_LANES}))"
        )


def _of_batch(request: Request, plan: Plan) -> Iterator[str]:
    if plan.kind != "none":
        parts = plan.axis("data")
        if request.batch % parts:
            yield (
                f"batch {request.batch} is no multiple of the {parts} parts of axis data: some "
                "devices compute what others do already"
            )
    rows = request.batch * (1 if request.mode == "decode" else request.seq)
    if request.mode == "decode" and request.batch % _SUBLANES:
        yield (
            f"decoding {request.batch} samples at a time: each weight is read for {request.batch} "
            f"rows, and {_round_up(request.batch, _SUBLANES)} would cost about the same"
        )
    elif rows % _LANES:
        yield (
            f"batch x length = {rows} rows is no multiple of {_LANES}: pad sequences to a multiple"
        )


def _of_types(lowered: Lowered, analysis: Analysis) -> Iterator[str]:
    doubles = [
        s.name for s in lowered.inputs if s.dtype.itemsize == 8 and s.dtype.is_floating_point
    ]
    if doubles or "f64" in analysis.products:
        named = f" ({', '.join(doubles[:3])})" if doubles else ""
        yield f"float64{named}: TPUs emulate it, many times slower; use float32"
    singles = analysis.products.get("f32", 0.0)
    if singles > 0.05 * analysis.flops:
        passes = analysis.passes["f32"] / singles
        cost = f", each in {passes:.0f} bfloat16 passes" if passes > 1 else ""
        remedy = (
            'model.to(torch.bfloat16), or torch.set_float32_matmul_precision("high") for 3'
            if passes > 3
            else "model.to(torch.bfloat16)"
        )
        share = singles / analysis.flops
        yield f"{share:.0%} of the flops are products of float32{cost}: {remedy}"


def _of_padding(lowered: Lowered) -> Iterator[str]:
    """Name the large inputs whose last dimension fills few lanes."""
    wasteful = []
    for slot in lowered.inputs:
        if len(slot.shape) < 2 or slot.bytes < 1 << 20:
            continue
        padded = _round_up(slot.shape[-1], _LANES)
        if padded >= 2 * slot.shape[-1] and math.prod(slot.shape[:-1]) >= _LANES:
            wasteful.append((slot, padded / slot.shape[-1]))
    for slot, times in sorted(wasteful, key=lambda pair: -pair[0].bytes)[:3]:
        yield (
            f"{slot.name} {list(slot.shape)}: a last dimension of {slot.shape[-1]} may take "
            f"{times:.2g}x its size in memory; the compiler can choose another layout inside a "
            "program, but not always"
        )


def _of_program(analysis: Analysis) -> Iterator[str]:
    if analysis.uncounted_loops:
        yield (
            f"{analysis.uncounted_loops} loops have a number of rounds that is not known: their "
            "products count once in the flops"
        )
    for operation, word in (("sort", "sorts"), ("scatter", "scatters")):
        if analysis.operations.get(operation, 0) > 16:
            yield (
                f"{analysis.operations[operation]} {word}: slow on a TPU, where most of them "
                "run on the vector unit one row at a time"
            )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
