# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Every operator gives the same on views inside larger buffers: one sample of each, in shards.

All run forward in float32; of gradients and of integers, which take other programs, a part is
enough, since the views come before the operators.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torus.opinfo import judge, views

# The operator database calls what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# Enough that the workers of pytest-xdist finish together.
SHARDS = 40
PLAN = judge.Plan("float32", samples=1, views=True)
# Every so many operators.
PARTS = {
    "gradients": (judge.Plan("float32", samples=1, views=True, backward=True), 3),
    "int64": (judge.Plan("int64", samples=1, views=True), 2),
}
PART_SHARDS = 16

# Operators that fail whatever the layout, and why.
KNOWN = {
    "chalf": "the device has no complex numbers of half parts",
}

PLACED = {
    "transposed": torch.arange(6.0).reshape(2, 3),
    "stepped": torch.arange(5, dtype=torch.uint8),
    "sliced": torch.arange(24.0).to(torch.complex64).reshape(2, 3, 4),
    "expanded": torch.tensor([[True], [False]]).expand(2, 3),
    "overlapping": torch.arange(9).unfold(0, 3, 1),
}


@functools.cache
def entries(dtype: str = PLAN.dtype) -> list[tuple[int, Any]]:
    return [
        (number, op)
        for number, op in enumerate(judge.entries(dtype))
        if judge.op_name(op) not in KNOWN
    ]


def assert_pass(chosen: list[tuple[int, Any]], plan: judge.Plan) -> None:
    previous = torch.tpu.get_fallback()
    torch.tpu.set_fallback("silent")
    try:
        found = [judge.judge(op, plan, number) for number, op in chosen]
    finally:
        torch.tpu.set_fallback(previous)
    wrong = [v for v in found if v.verdict not in ("pass", "skipped", "nosample")]
    assert not wrong, "\n".join(f"{v.op}: {v.verdict}: {v.note}" for v in wrong)


@pytest.mark.parametrize("kind", views.KINDS)
@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_placing_keeps_the_values(kind: str, device: str) -> None:
    tensor = PLACED[kind]
    placed = views.place(tensor, kind)
    assert placed is not None
    view = placed.on(device)
    assert not view.is_contiguous()
    assert view.untyped_storage().nbytes() == placed.buffer.untyped_storage().nbytes()
    assert torch.equal(view.cpu(), tensor)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_operators_on_views(shard: int) -> None:
    assert_pass(entries()[shard::SHARDS], PLAN)


@pytest.mark.parametrize("shard", range(PART_SHARDS))
@pytest.mark.parametrize("part", PARTS)
def test_part_of_the_operators_on_views(part: str, shard: int) -> None:
    plan, step = PARTS[part]
    assert_pass(entries(plan.dtype)[::step][shard::PART_SHARDS], plan)
