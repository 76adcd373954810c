# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Every operator gives the same on views inside larger buffers: one sample of each, in shards."""

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
def entries() -> list[tuple[int, Any]]:
    return [
        (number, op)
        for number, op in enumerate(judge.entries(PLAN.dtype))
        if judge.op_name(op) not in KNOWN
    ]


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
    previous = torch.tpu.get_fallback()
    torch.tpu.set_fallback("silent")
    try:
        found = [judge.judge(op, PLAN, number) for number, op in entries()[shard::SHARDS]]
    finally:
        torch.tpu.set_fallback(previous)
    wrong = [v for v in found if v.verdict not in ("pass", "skipped", "nosample")]
    assert not wrong, "\n".join(f"{v.op}: {v.verdict}: {v.note}" for v in wrong)
