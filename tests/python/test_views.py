# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Views and in-place writes: every alias sees what it would see on the CPU."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Random each time when a number of examples is asked for; the same examples otherwise.
EXAMPLES = int(os.environ.get("TORUS_TEST_EXAMPLES", "0"))

SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=EXAMPLES == 0,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
MODES = ["fused", "fused", "strict", "debug"]

View = Callable[[torch.Tensor], torch.Tensor]


def examples(count: int) -> settings:
    return settings(SETTINGS, max_examples=EXAMPLES or count)


def content(shape: tuple[int, ...], dtype: torch.dtype, first: int = 0) -> torch.Tensor:
    """Small whole numbers, all exact in every dtype, with repeats only for bool."""
    flat = (torch.arange(first, first + math.prod(shape)) * 7) % 61
    if dtype == torch.bool:
        return (flat % 3 == 0).reshape(shape)
    if dtype.is_complex:
        return torch.complex(flat.float(), (flat - 30).float()).to(dtype).reshape(shape)
    return flat.to(dtype).reshape(shape)


def check_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "tpu"
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if expected.numel() > 0:
        assert actual.stride() == expected.stride()
        assert actual.storage_offset() == expected.storage_offset()
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


# ---- random views ----


def draw_slice(draw, t: torch.Tensor) -> View:
    dim = draw(st.integers(0, t.dim() - 1))
    start = draw(st.integers(-t.shape[dim], t.shape[dim]))
    stop = draw(st.none() | st.integers(-t.shape[dim], t.shape[dim] + 1))
    step = draw(st.integers(1, 3))
    return lambda x: x[(slice(None),) * dim + (slice(start, stop, step),)]


def draw_select(draw, t: torch.Tensor) -> View | None:
    dim = draw(st.integers(0, t.dim() - 1))
    if t.shape[dim] == 0:
        return None
    index = draw(st.integers(-t.shape[dim], t.shape[dim] - 1))
    return lambda x: x.select(dim, index)


def draw_narrow(draw, t: torch.Tensor) -> View:
    dim = draw(st.integers(0, t.dim() - 1))
    start = draw(st.integers(0, t.shape[dim]))
    length = draw(st.integers(0, t.shape[dim] - start))
    return lambda x: x.narrow(dim, start, length)


def draw_permute(draw, t: torch.Tensor) -> View:
    order = draw(st.permutations(range(t.dim())))
    return lambda x: x.permute(order)


def draw_transpose(draw, t: torch.Tensor) -> View:
    a, b = draw(st.integers(-t.dim(), t.dim() - 1)), draw(st.integers(0, t.dim() - 1))
    return lambda x: x.transpose(a, b)


def draw_expand(draw, t: torch.Tensor) -> View:
    sizes = [draw(st.integers(1, 3)) if size == 1 else -1 for size in t.shape]
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 3)), *sizes]
    return lambda x: x.expand(sizes)


def draw_reshape(draw, t: torch.Tensor) -> View | None:
    if t.numel() == 0:
        return None
    left, sizes = t.numel(), []
    while left > 1 and len(sizes) < 3:
        factor = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        sizes.append(factor)
        left //= factor
    sizes.append(left)
    return lambda x: x.reshape(sizes)


def draw_unsqueeze(draw, t: torch.Tensor) -> View:
    dim = draw(st.integers(-t.dim() - 1, t.dim()))
    return lambda x: x.unsqueeze(dim)


def draw_squeeze(draw, t: torch.Tensor) -> View:
    dim = draw(st.integers(0, t.dim() - 1))
    return (lambda x: x.squeeze()) if draw(st.booleans()) else (lambda x: x.squeeze(dim))


def draw_diagonal(draw, t: torch.Tensor) -> View | None:
    if t.dim() < 2:
        return None
    first, second = draw(st.permutations(range(t.dim())))[:2]
    offset = draw(st.integers(-2, 2))
    return lambda x: x.diagonal(offset, first, second)


def draw_unfold(draw, t: torch.Tensor) -> View | None:
    dim = draw(st.integers(0, t.dim() - 1))
    if t.shape[dim] == 0:
        return None
    size, step = draw(st.integers(1, t.shape[dim])), draw(st.integers(1, 3))
    return lambda x: x.unfold(dim, size, step)


def draw_as_strided(draw, t: torch.Tensor) -> View | None:
    count = t.untyped_storage().nbytes() // t.itemsize
    if count == 0:
        return None
    offset = draw(st.integers(0, count - 1))
    sizes, strides, last = [], [], offset
    for _ in range(draw(st.integers(0, 3))):
        stride = draw(st.integers(0, 7))
        most = 3 if stride == 0 else (count - 1 - last) // stride + 1
        sizes.append(draw(st.integers(1, min(most, 4))))
        strides.append(stride)
        last += (sizes[-1] - 1) * stride
    return lambda x: x.as_strided(sizes, strides, offset)


def draw_dtype(draw, t: torch.Tensor) -> View | None:
    if t.dtype == torch.bool:
        return None
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.int32, torch.int64]))
    return lambda x: x.view(dtype)


def draw_complex_part(draw, t: torch.Tensor) -> View | None:
    if t.is_conj():
        return None
    if not t.is_complex():
        fits = t.dtype == torch.float32 and t.shape[-1] == 2
        return torch.view_as_complex if fits else None
    parts = [torch.view_as_real, torch.conj, lambda x: x.real, lambda x: x.imag]
    return draw(st.sampled_from(parts))


ANY_RANK = [draw_expand, draw_reshape, draw_unsqueeze, draw_as_strided]
SOME_RANK = [
    draw_slice,
    draw_slice,
    draw_select,
    draw_narrow,
    draw_permute,
    draw_transpose,
    draw_squeeze,
    draw_diagonal,
    draw_unfold,
    draw_dtype,
    draw_complex_part,
]


def draw_view(draw, t: torch.Tensor) -> View | None:
    """Draw an operation that the CPU accepts on `t`; None when the one drawn does not fit."""
    kinds = ANY_RANK + SOME_RANK if t.dim() > 0 else ANY_RANK
    operation = draw(st.sampled_from(kinds))(draw, t)
    try:
        fits = operation is not None and operation(t).dim() <= 6 and operation(t).numel() <= 4096
    except RuntimeError:
        return None
    return operation if fits else None


def draw_chain(draw) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Draw a tensor and a chain of views, on the CPU and on the device."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    cpu = [content(shape, dtype)]
    tpu = [cpu[0].to("tpu")]
    for _ in range(draw(st.integers(1, 4))):
        operation = draw_view(draw, cpu[-1])
        if operation is None:
            continue
        cpu.append(operation(cpu[-1]))
        tpu.append(operation(tpu[-1]))
    return cpu, tpu


def test_views_read() -> None:
    @examples(130)
    @given(st.data())
    def run(data) -> None:
        with torch.tpu.set_eager_mode(data.draw(st.sampled_from(MODES))):
            cpu, tpu = draw_chain(data.draw)
            check_same(tpu[-1], cpu[-1])
            # A copy made on the device reads the view in a program.
            check_same(
                tpu[-1].clone(memory_format=torch.contiguous_format),
                cpu[-1].clone(memory_format=torch.contiguous_format),
            )

    run()


# ---- random writes ----


def write_fill(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    number = draw(st.sampled_from([0, 1, 5]))
    return lambda x: x.fill_(number)


def write_zero(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    return lambda x: x.zero_()


def write_add(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    number = draw(st.sampled_from([1, 3, True]))
    return lambda x: x.add_(number)


def write_mul(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    other = content(tuple(t.shape), t.dtype, 5)
    return lambda x: x.mul_(other.to(x.device))


def write_copy(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    dtype = draw(st.sampled_from([t.dtype, torch.float32, torch.int32, torch.bool]))
    source = content(tuple(reversed(t.shape)), dtype, 9)
    return lambda x: x.copy_(source.to(x.device).permute(tuple(reversed(range(x.dim())))))


def write_from_host(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    source = content(tuple(t.shape), t.dtype, 11)
    return lambda x: x.copy_(source)


def write_masked(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    mask = content(tuple(t.shape), torch.bool, draw(st.integers(0, 2)))
    return lambda x: x.masked_fill_(mask.to(x.device), 1)


def write_indexed(draw, t: torch.Tensor) -> Callable[[torch.Tensor], object]:
    rows = draw(st.permutations(range(t.shape[0] if t.dim() > 0 else 1)))[:2]
    index = torch.tensor(rows, dtype=torch.int64)
    values = content((len(rows), *t.shape[1:]), t.dtype, 13)

    def write(x: torch.Tensor) -> None:
        x[index.to(x.device)] = values.to(x.device)

    return write


BIT_WRITES = [write_fill, write_zero, write_copy, write_from_host]
WRITES = [*BIT_WRITES, write_add, write_mul, write_masked, write_indexed]


def outcome(write: Callable[[torch.Tensor], object], t: torch.Tensor) -> str:
    try:
        write(t)
    except Exception as error:
        return type(error).__name__
    return "done"


def has_overlap(t: torch.Tensor) -> bool:
    """Whether two elements of `t` may be the same memory."""
    seen = torch.zeros(t.untyped_storage().nbytes() // t.itemsize + 1, dtype=torch.int32)
    places = seen.as_strided(t.shape, t.stride(), t.storage_offset())
    flat = torch.arange(seen.numel()).as_strided(t.shape, t.stride(), t.storage_offset())
    return flat.unique().numel() < places.numel()


def test_writes_through_views() -> None:
    @examples(130)
    @given(st.data())
    def run(data) -> None:
        with torch.tpu.set_eager_mode(data.draw(st.sampled_from(MODES))):
            cpu, tpu = draw_chain(data.draw)
            is_reinterpreted = len({t.dtype for t in cpu}) > 1
            for _ in range(data.draw(st.integers(1, 3))):
                place = data.draw(st.integers(0, len(cpu) - 1))
                kinds = BIT_WRITES if is_reinterpreted else WRITES
                if has_overlap(cpu[place]):
                    kinds = [write_fill, write_zero]  # others depend on the order of writing
                write = data.draw(st.sampled_from(kinds))(data.draw, cpu[place])
                assert outcome(write, tpu[place]) == outcome(write, cpu[place])
            for on_device, on_host in zip(tpu, cpu, strict=True):
                check_same(on_device, on_host)

    run()


def test_overlapping_write_is_refused(mode: str) -> None:
    for device in ("cpu", "tpu"):
        x = torch.ones(1, device=device).expand(3)
        with pytest.raises(RuntimeError, match="single memory location"):
            x.add_(1)
        assert x.tolist() == [1, 1, 1]


# ---- aliases ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chain_of_writes(mode: str, dtype: torch.dtype) -> None:
    results = []
    for device in ("cpu", "tpu"):
        base = content((4, 6), dtype).to(device)
        rows, columns, flat = base[1:3], base.t()[::2], base.view(-1)
        rows.fill_(1)
        columns[1] = 0
        flat[5::7] = rows.reshape(-1)[0]
        base[base == 1] = 0
        columns.copy_(base[:3, :4].flip(0).contiguous())
        results.append([base, rows, columns, flat])
    for expected, actual in zip(*results, strict=True):
        check_same(actual, expected)


def test_storage_is_shared(mode: str) -> None:
    base = torch.arange(12.0, device="tpu").reshape(3, 4)
    for alias in (base[1], base.t(), base.detach(), base.view(torch.int32), base.data):
        assert alias.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        assert alias.untyped_storage()._cdata == base.untyped_storage()._cdata
    assert base[1].data_ptr() == base.data_ptr() + 16
    assert base.clone().data_ptr() != base.data_ptr()
    assert base[1].is_set_to(base[1])
    assert not base[1].is_set_to(base[2])
    assert base.contiguous() is base
    assert base[:, 1]._base is base or base[:, 1]._base is not None


def test_detach_and_data(mode: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device="tpu"))
    parameter.detach().mul_(2)
    parameter.data.add_(1)
    assert parameter.tolist() == [3, 3, 3]
    other = torch.zeros(2, 2, device="tpu")
    parameter.data = other
    assert parameter.shape == (2, 2)
    other.add_(5)
    assert parameter.tolist() == [[5, 5], [5, 5]]
    parameter.data = parameter.data[0]
    parameter.data.fill_(1)
    assert other.tolist() == [[1, 1], [5, 5]]


def test_set(mode: str) -> None:
    for device in ("cpu", "tpu"):
        base = torch.arange(8.0, device=device)
        x = torch.empty(0, device=device)
        x.set_(base)
        x[0] = 9
        assert base[0].item() == 9
        x.set_(base.untyped_storage(), 2, (2, 3), (1, 2))
        assert x.tolist() == [[2, 4, 6], [3, 5, 7]]
        x[1] = 0
        assert base.tolist() == [9, 1, 2, 0, 4, 0, 6, 0]
        x.set_()
        assert x.shape == (0,)
        assert base.tolist() == [9, 1, 2, 0, 4, 0, 6, 0]


def test_resize(mode: str) -> None:
    for device in ("cpu", "tpu"):
        base = torch.arange(6.0, device=device)
        alias = base.view(2, 3)
        base.resize_(2, 2)
        assert base.tolist() == [[0, 1], [2, 3]]
        base.resize_(10)
        base[6:] = 0
        assert base.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0]
        base[0] = 7
        assert alias.tolist() == [[7, 1, 2], [3, 4, 5]]
        base.resize_(0)
        assert base.tolist() == []
        assert base.resize_(3).shape == (3,)
        alias.untyped_storage().resize_(0)
        alias.untyped_storage().resize_(24)
        alias.fill_(2)
        assert alias.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_out_into_views(mode: str) -> None:
    results = []
    for device in ("cpu", "tpu"):
        base = torch.zeros(4, 6, device=device)
        left = torch.arange(8.0, device=device).reshape(4, 2)
        torch.add(left, 1, out=base[:, ::3])
        torch.mul(left.t(), 2, out=base[1:3, 1:5])
        torch.sum(left, 0, out=base[3, 2:4])
        torch.mm(left[:2], left[:2], out=base[0:2, 4:6])
        torch.cat([left[0], left[1]], out=base[2, :4])
        values, indices = base.new_empty(2), torch.empty(2, dtype=torch.int64, device=device)
        torch.max(left, 0, out=(values, indices))
        grown = torch.empty(0, device=device)
        torch.sub(left, 1, out=grown)
        wide = torch.empty(4, 2, dtype=torch.float64, device=device)
        torch.add(left, 1, out=wide)
        results.append([base, values, indices, grown, wide])
    for expected, actual in zip(*results, strict=True):
        check_same(actual, expected)


LAYOUTS: dict[str, View] = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "sliced": lambda x: x[:, ::2],
    "transposed": lambda x: x.transpose(1, 3),
    "expanded": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "squeezed": lambda x: x[:1].contiguous(memory_format=torch.channels_last),
}

POINTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + 1,
    "mul": lambda x: x * x,
    "exp": lambda x: x.exp(),
    "compare": lambda x: x > 3,
    "where": lambda x: torch.where(x > 3, x, -x),
    "to": lambda x: x.to(torch.float64),
    "clone": lambda x: x.clone(),
    "empty_like": lambda x: torch.empty_like(x).fill_(1),
    "zeros_like": lambda x: torch.zeros_like(x),
    "broadcast": lambda x: x + torch.ones(x.shape[-1], device=x.device),
    "mixed": lambda x: x + torch.ones(x.shape, device=x.device),
    "relu": lambda x: torch.relu(x),
    "clamp": lambda x: x.clamp(1, 4),
    "flip": lambda x: x.flip(1),
    "contiguous": lambda x: x.contiguous(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", POINTWISE)
def test_strides_of_results(name: str, layout: str) -> None:
    x = torch.arange(120.0).reshape(2, 4, 3, 5) / 32
    expected = POINTWISE[name](LAYOUTS[layout](x))
    actual = POINTWISE[name](LAYOUTS[layout](x.to("tpu")))
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected)


def test_strides_survive_transfer(mode: str) -> None:
    for change in LAYOUTS.values():
        x = change(torch.arange(120.0).reshape(2, 4, 3, 5))
        there = x.to("tpu")
        assert there.stride() == x.to("cpu", copy=True).stride()
        back = there.cpu()
        assert torch.equal(back, x)
        assert back.stride() == there.stride()


def test_results_do_not_alias(mode: str) -> None:
    for device in ("cpu", "tpu"):
        x = torch.arange(4.0, device=device)
        copies = [x.clone(), x.to(torch.float32, copy=True), x.repeat(1), x[[0, 1, 2, 3]]]
        same = [x.to(torch.float32), x.float(), x.reshape(4), x.contiguous(), x.expand(4)]
        x.add_(1)
        assert [c.tolist() for c in copies] == [[0, 1, 2, 3]] * 4
        assert [s.tolist() for s in same] == [[1, 2, 3, 4]] * 5


def test_write_into_empty(mode: str) -> None:
    x = torch.ones(2, 3, device="tpu")
    x[2:].fill_(5)
    x[:, :0].add_(1)
    x[torch.zeros(0, dtype=torch.int64, device="tpu")] = 7
    x.masked_fill_(torch.zeros(2, 3, dtype=torch.bool, device="tpu"), 3)
    assert x.tolist() == [[1, 1, 1], [1, 1, 1]]
