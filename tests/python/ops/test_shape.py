# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Joining, turning and cutting tensors, and tensors made from numbers, against the CPU."""

from __future__ import annotations

import pytest
import torch
from against_cpu import check

_X = torch.arange(60.0).reshape(3, 4, 5)

_CASES = {
    "cat": lambda x: torch.cat([x, x[:, :2]], 1),
    "cat negative dim": lambda x: torch.cat([x, x], -1),
    "cat legacy": lambda x: torch.cat([x, x.new_zeros(0)], 0),
    "cat nothing": lambda x: torch.cat([x[:0], x[:0]], 0),
    "stack": lambda x: torch.stack([x, x * 2], 2),
    "hstack": lambda x: torch.hstack([x, x]),
    "block_diag": lambda x: torch.block_diag(x[0], x[1]),
    "flip": lambda x: x.flip(0, -1),
    "flip none": lambda x: x.flip([]),
    "roll": lambda x: x.roll(2, 1),
    "roll both": lambda x: x.roll((-1, 7), (0, 2)),
    "roll flat": lambda x: x.roll(11),
    "rot90": lambda x: x.rot90(1, (0, 1)),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat wider": lambda x: x.repeat(2, 1, 3, 1),
    "repeat none": lambda x: x.repeat(0, 1, 1),
    "tile": lambda x: x.tile((2, 2)),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(2),
    "diag_embed": lambda x: x.diag_embed(1, 0, 2),
    "diag_embed below": lambda x: x.diag_embed(-2),
    "diag": lambda x: x[0, 0].diag(),
    "diagonal": lambda x: x.diagonal(1, 0, 2) * 2,
    "diagonal below": lambda x: x.diagonal(-2, 1, 2) * 2,
    "select": lambda x: x.select(1, -2) * 2,
    "slice": lambda x: x[:, 1:3] * 2,
    "slice step": lambda x: x[..., 1::2] * 2,
    "unfold": lambda x: x.unfold(2, 3, 1) * 2,
    "select_scatter": lambda x: x.select_scatter(x[:, 0] * 3, 1, -1),
    "slice_scatter": lambda x: x.slice_scatter(x[:, :2] * 3, 1, 0, 4, 2),
    "slice_scatter plain": lambda x: x.slice_scatter(x[:, :2] * 3, 1, 1, 3),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[0, :, :3] * 3, 0, 0, 2),
    "as_strided_scatter": lambda x: x.as_strided_scatter(x[0, :2] * 3, (2, 5), (5, 1), 5),
    "complex": lambda x: torch.complex(x, x * 2),
    "polar": lambda x: torch.polar(x, x * 2),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    "chunk": lambda x: x.chunk(2, 1),
    "split": lambda x: x.split([1, 3], 1),
    "pixel_shuffle": lambda x: torch.pixel_shuffle(x.permute(1, 0, 2), 2),
    "pixel_unshuffle": lambda x: torch.pixel_unshuffle(x[:, :, :4], 2),
    "channel_shuffle": lambda x: torch.channel_shuffle(x[None, :, :, 0].transpose(1, 2), 2),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2), value=3.0),
}


@pytest.mark.parametrize("name", _CASES)
def test_shape(name: str) -> None:
    check(_CASES[name], _X, grad=True)


def test_shape_in_modes(mode: str) -> None:
    for name in ("cat", "roll", "repeat", "triu", "slice step"):
        check(_CASES[name], _X, grad=True)


def test_promotion() -> None:
    check(lambda x, i, m: torch.cat([m, i, x]), torch.rand(2), torch.arange(3), torch.ones(1) > 0)
    check(lambda x, i: torch.stack([i, x]), torch.rand(3).bfloat16(), torch.arange(3))
    check(lambda x: x.bool().tril(), _X)
    check(lambda x: torch.cat([x, x], 1), _X[None].to(memory_format=torch.channels_last))


def test_inplace_and_out() -> None:
    check(lambda x: x.tril_(), _X)
    check(lambda x: torch.cat([x, x], out=x.new_empty(0)), _X)
    check(lambda x: torch.stack([x, x], out=x.new_empty(2, 3, 4, 5, dtype=torch.float64)), _X)


def test_many_tensors() -> None:
    check(lambda x: torch.cat([x] * 300), torch.arange(3))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.cat([x, x[0]]),
        lambda x: torch.cat([x, x[:, :2]]),
        lambda x: torch.cat([]),
        lambda x: torch.stack([x, x[0]]),
        lambda x: x.flip(0, 0),
        lambda x: x.roll((1, 2), 0),
        lambda x: x.repeat(2),
        lambda x: x[0, 0].tril(),
        lambda x: x.diag_embed(0, 1, 1),
        lambda x: torch.complex(x, x.double()),
    ],
)
def test_bad_arguments(call) -> None:
    with pytest.raises((IndexError, RuntimeError, ValueError)) as wanted:
        call(_X)
    with pytest.raises(wanted.type):
        call(_X.to("tpu"))


_MADE = {
    "arange": lambda **k: torch.arange(7, **k),
    "arange start": lambda **k: torch.arange(-3, 9, 2, **k),
    "arange down": lambda **k: torch.arange(5, 0, -2, **k),
    "arange none": lambda **k: torch.arange(3, 3, **k),
    "arange float": lambda **k: torch.arange(0.0, 1.0, 0.1, **k),
    "arange long float": lambda **k: torch.arange(0.1, 100.0, 0.3, **k),
    "arange half": lambda **k: torch.arange(9, dtype=torch.bfloat16, **k),
    "arange large": lambda **k: torch.arange(2**62, 2**62 + 3, **k),
    "range": lambda **k: torch.range(1, 4, 0.5, **k),
    "linspace": lambda **k: torch.linspace(-1, 2, 7, **k),
    "linspace one": lambda **k: torch.linspace(3, 5, 1, **k),
    "linspace none": lambda **k: torch.linspace(3, 5, 0, **k),
    "linspace ints": lambda **k: torch.linspace(0, 10, 4, dtype=torch.int32, **k),
    "linspace half": lambda **k: torch.linspace(0, 1, 9, dtype=torch.float16, **k),
    "linspace complex": lambda **k: torch.linspace(0, 1 + 2j, 5, dtype=torch.complex64, **k),
    "logspace": lambda **k: torch.logspace(-2, 2, 5, **k),
    "logspace base": lambda **k: torch.logspace(0, 8, 9, base=2.0, **k),
    "logspace ints": lambda **k: torch.logspace(0, 3, 5, dtype=torch.int32, **k),
    "eye": lambda **k: torch.eye(3, **k),
    "eye wide": lambda **k: torch.eye(2, 4, dtype=torch.int64, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 4, -1, **k),
    "triu_indices": lambda **k: torch.triu_indices(4, 3, 1, **k),
    "triu_indices none": lambda **k: torch.triu_indices(2, 2, 5, **k),
    "full": lambda **k: torch.full((2, 3), 7, **k),
    "ones": lambda **k: torch.ones(2, dtype=torch.bool, **k),
    "empty": lambda **k: torch.empty((0, 3), **k),
}


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("name", _MADE)
def test_made_from_numbers(name: str) -> None:
    expected, actual = _MADE[name](), _MADE[name](device="tpu")
    torch.testing.assert_close(actual.cpu(), expected)


def test_made_in_modes(mode: str) -> None:
    for name in ("arange", "linspace", "eye"):
        torch.testing.assert_close(_MADE[name](device="tpu").cpu(), _MADE[name]())


def test_out_argument_is_resized() -> None:
    out = torch.empty(0, device="tpu", dtype=torch.int32)
    assert torch.arange(5, out=out) is out
    assert out.cpu().tolist() == [0, 1, 2, 3, 4]
