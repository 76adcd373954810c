# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Indexing with tensors and masks, gather, scatter and the index operators against the CPU."""

from __future__ import annotations

import pytest
import torch
from against_cpu import check

L = torch.tensor
_X = torch.arange(60.0).reshape(3, 4, 5)
_MASK = _X % 3 == 1

_GETS = {
    "one": lambda x, i, m: x[i],
    "middle": lambda x, i, m: x[:, i],
    "last": lambda x, i, m: x[..., i],
    "negative": lambda x, i, m: x[:, -i - 1],
    "adjacent": lambda x, i, m: x[:, i, i],
    "apart": lambda x, i, m: x[i, :, i],
    "broadcast": lambda x, i, m: x[i[:, None], i],
    "int32": lambda x, i, m: x[i.int()],
    "mask": lambda x, i, m: x[m],
    "row mask": lambda x, i, m: x[m[:, 0, 0]],
    "plane mask": lambda x, i, m: x[m[:, :, 0]],
    "mask behind": lambda x, i, m: x[:, m[0]],
    "mask and index": lambda x, i, m: x[m[:, 0, 0], i[:1]],
    "bytes": lambda x, i, m: x[m.to(torch.uint8)],
    "nothing": lambda x, i, m: x[i[:0]],
    "empty mask": lambda x, i, m: x[m & False],
    "strided": lambda x, i, m: x.transpose(0, 2)[i],
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", _GETS)
def test_index(name: str) -> None:
    check(_GETS[name], _X, L([0, 2, 1, 2]), _MASK)


def test_index_gradient(mode: str) -> None:
    check(lambda x, i: x[i, :, i], _X, L([0, 2, 1, 2]), grad=True)
    check(lambda x, m: x[m] * 2, _X, _MASK, grad=True)


def _put(where: object, accumulate: bool = False):
    def put(x: torch.Tensor, v: torch.Tensor, *at: torch.Tensor) -> torch.Tensor:
        return x.index_put_(at, v, accumulate=accumulate)

    return put


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shape", [(), (4, 1), (1, 5), (4, 5)])
def test_index_put(accumulate: bool, shape: tuple[int, ...]) -> None:
    index = L([0, 2, 1, 2 if accumulate else -3])
    values = torch.rand(shape)
    if not accumulate:
        index = L([0, 2, 1])
        values = torch.rand([min(n, 3) if d == 0 else n for d, n in enumerate(shape)])
    check(_put(None, accumulate), _X, values, index, index)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (20,)])
def test_index_put_by_mask(mode: str, accumulate: bool, shape: tuple[int, ...]) -> None:
    check(_put(None, accumulate), _X, torch.rand(shape), _MASK)


@pytest.mark.parametrize("shape", [(), (5,), (7, 5), (7, 1), (1, 5)])
def test_index_put_by_plane_mask(shape: tuple[int, ...]) -> None:
    mask = _MASK[:, :, 0].clone()
    values = torch.rand([int(mask.sum()) if n == 7 else n for n in shape])
    check(_put(None), _X, values, mask)


def test_setitem(mode: str) -> None:
    def assign(x: torch.Tensor, i: torch.Tensor, m: torch.Tensor) -> None:
        x[i] = 7.0
        x[:, i] += 1
        x[m] = -1.0
        x[m] *= 2
        x[:, m[0]] = 3.0
        x[i, 1:3, 0] = x[i, 1:3, 1]

    check(assign, _X, L([0, 2]), _MASK)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_index_dtypes(dtype: torch.dtype) -> None:
    x = (_X % 7).to(dtype)
    check(lambda x, i: x[i], x, L([2, 0, -1]))
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), x, L([2, 0, -1]), x[:, :1])


_ALONG = L([[0, 2, 1, 0], [2, 2, 0, 1]])
_M = torch.rand(3, 4)
_S = torch.rand(2, 4)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    check(
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self),
        *(_M, _ALONG, _S),
        grad=True,
    )
    integers = (torch.arange(12).reshape(3, 4) - 6, _ALONG, torch.arange(8).reshape(2, 4) - 5)
    check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self), *integers)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce(reduce: str, include_self: bool) -> None:
    check(
        lambda x, i, s: x.index_reduce(1, i, s, reduce, include_self=include_self),
        *(_M, L([3, 0, 3]), torch.rand(3, 3)),
    )


_CASES = {
    "gather": lambda x, i, s: x.gather(0, i),
    "scatter": lambda x, i, s: x.scatter(1, i, s),
    "scatter value": lambda x, i, s: x.scatter(1, i[:, :1], 2.5),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i, s),
    "index_select": lambda x, i, s: x.index_select(1, i[0]),
    "index_add": lambda x, i, s: x.index_add(0, i[1, 1:3], s, alpha=2),
    "index_copy": lambda x, i, s: x.index_copy(0, i[1, 1:3] * L([1, 0], device=i.device), s),
    "index_fill": lambda x, i, s: x.index_fill(0, i[0, :2] - 3, 9.0),
    "index_fill tensor": lambda x, i, s: x.index_fill(1, i[0, :2], s[0, 0]),
    "take": lambda x, i, s: x.take(i * 3 - 2),
    "put": lambda x, i, s: x.put(i * 4 - 1, s, accumulate=True),
    "take_along_dim": lambda x, i, s: x.take_along_dim(i[:1], 0),
    "masked_select": lambda x, i, s: x.masked_select(x > 0.5),
    "masked_scatter": lambda x, i, s: x.masked_scatter(x > 0.7, x * 2),
    "repeat_interleave": lambda x, i, s: x.repeat_interleave(i[0], dim=1),
}


@pytest.mark.parametrize("name", _CASES)
def test_along(name: str) -> None:
    check(_CASES[name], _M, _ALONG, _S, grad=True)


_PLAIN = {
    "scatter add": lambda x, i, s: x.scatter(0, i, s, reduce="add"),
    "scatter multiply": lambda x, i, s: x.scatter(0, i, 3.0, reduce="multiply"),
    "scatter_add_": lambda x, i, s: x.scatter_add_(0, i, s),
    "scatter_ transposed": lambda x, i, s: x.t().scatter_(1, i.t(), s.t()),
    "index_select scalar": lambda x, i, s: x[0, 0].index_select(0, i[0, :1]),
    "gather scalar": lambda x, i, s: x[0, 0].gather(0, i[0, 0]),
    "gather nothing": lambda x, i, s: x.gather(0, i[:0]),
    "scatter nothing": lambda x, i, s: x.scatter(0, i[:0], s),
    "int32": lambda x, i, s: x.index_select(0, i[0].int()),
    "nonzero": lambda x, i, s: (x > 0.5).nonzero(),
    "nonzero ints": lambda x, i, s: i.nonzero(as_tuple=True),
    "nonzero scalar": lambda x, i, s: x[0, 0].nonzero(),
    "nonzero none": lambda x, i, s: (x > 2).nonzero(),
    "nonzero_static": lambda x, i, s: torch.nonzero_static(i, size=7, fill_value=-3),
    "argwhere": lambda x, i, s: torch.argwhere(i > 0),
    "where": lambda x, i, s: torch.where(x > 0.5),
    "repeat_interleave": lambda x, i, s: torch.repeat_interleave(i[0], output_size=3),
}


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("name", _PLAIN)
def test_along_without_gradient(name: str) -> None:
    check(_PLAIN[name], _M, _ALONG, _S)


_OUTSIDE = {
    "index": lambda x, i: x[i],
    "negative index": lambda x, i: x[-i],
    "index_put": lambda x, i: x.index_put_((i,), x[0]),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "take": lambda x, i: x.take(i * 10),
    "put": lambda x, i: x.put(i * 10, x[0, :1]),
}


@pytest.mark.parametrize("name", _OUTSIDE)
def test_out_of_range(name: str) -> None:
    x, index = torch.zeros(3, 4, device="tpu"), L([5], device="tpu")
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        _OUTSIDE[name](x, index).cpu()
    assert torch.equal((x + 1).cpu(), torch.ones(3, 4))


def test_index_into_nothing() -> None:
    with pytest.raises(IndexError):
        torch.zeros(0, 3, device="tpu")[L([0], device="tpu")].cpu()
    check(lambda x, i: x[i], torch.zeros(0, 3), L([], dtype=torch.int64))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, m: x.masked_scatter(m, x[0, :1]),
        lambda x, m: x.index_put_((m,), x[0, :2]),
        lambda x, m: x.scatter(0, m, x),
        lambda x, m: x.gather(0, x),
        lambda x, m: x.index_put_((m,), m[0, 0]),
    ],
)
def test_bad_arguments(call) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        call(
            torch.zeros(3, 4, device="tpu"), torch.ones(3, 4, dtype=torch.bool, device="tpu")
        ).cpu()


def test_mask_sizes_share_programs() -> None:
    x = torch.rand(64, device="tpu")
    for size in range(40, 48):
        mask = torch.arange(64, device="tpu") < size
        assert x[mask].shape == (size,)
        torch.testing.assert_close(x[mask].cpu(), x.cpu()[:size])
