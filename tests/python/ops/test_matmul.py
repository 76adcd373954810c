# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Matrix products against the CPU."""

from __future__ import annotations

import pytest
import torch
from layer_checks import check, rand

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]

PRODUCTS = {
    "mm": (torch.mm, (3, 4), (4, 5)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "mv": (torch.mv, (3, 4), (4,)),
    "dot": (torch.dot, (6,), (6,)),
    "vdot": (torch.vdot, (6,), (6,)),
    "outer": (torch.outer, (3,), (4,)),
    "matmul_broadcast": (torch.matmul, (2, 1, 3, 4), (5, 4, 2)),
    "empty_sum": (torch.mm, (3, 0), (0, 2)),
    "empty_rows": (torch.mm, (0, 3), (3, 2)),
    "empty_batch": (torch.bmm, (0, 3, 2), (0, 2, 4)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    function, *shapes = PRODUCTS[name]
    check(function, *(rand(*s, seed=i) for i, s in enumerate(shapes)))


def test_mm_modes(mode: str) -> None:
    check(torch.mm, rand(5, 3), rand(3, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mm", "bmm", "vdot", "mv"])
def test_product_dtypes(name: str, dtype: torch.dtype) -> None:
    function, *shapes = PRODUCTS[name]
    check(function, *(rand(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integer_products(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype) * 9
    check(torch.mm, x, x.T.contiguous(), gradient=False)
    check(torch.addmm, x[:, :3], x, x.T.contiguous(), gradient=False)


def test_transposed_operands() -> None:
    check(lambda x, y: x.T @ y.T, rand(4, 3), rand(5, 4))


ADDED = {
    "addmm": (torch.addmm, (3, 5), (3, 4), (4, 5)),
    "addmm_row": (torch.addmm, (5,), (3, 4), (4, 5)),
    "addmm_number": (torch.addmm, (), (3, 4), (4, 5)),
    "addmv": (torch.addmv, (3,), (3, 4), (4,)),
    "addbmm": (torch.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    "baddbmm": (torch.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "baddbmm_row": (torch.baddbmm, (1, 5), (2, 3, 4), (2, 4, 5)),
    "addr": (torch.addr, (3, 4), (3,), (4,)),
}


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, -2), (0, 3)])
@pytest.mark.parametrize("name", ADDED)
def test_added_products(name: str, beta: float, alpha: float) -> None:
    function, *shapes = ADDED[name]
    tensors = [rand(*s, seed=i) for i, s in enumerate(shapes)]
    check(lambda *t: function(*t, beta=beta, alpha=alpha), *tensors)


def test_zero_beta_ignores_nan() -> None:
    nan = torch.full((3, 5), float("nan"))
    check(lambda s, x, y: torch.addmm(s, x, y, beta=0), nan, rand(3, 4), rand(4, 5), gradient=False)


def test_addr_bool() -> None:
    a = torch.tensor([True, False, True])
    s = torch.zeros(3, 3, dtype=torch.bool)
    s[1, 1] = True
    check(torch.addr, s, a, a, gradient=False)
    check(lambda *t: torch.addr(*t, beta=False), s, a, a, gradient=False)


def test_in_place_and_out() -> None:
    def run(s: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        out = torch.empty(0, device=s.device)
        torch.mm(x, y, out=out)
        return [s.addmm_(x, y, alpha=2), out]

    check(run, rand(3, 5), rand(3, 4), rand(4, 5), gradient=False)


def test_quantised_products() -> None:
    x = torch.randint(-128, 127, (17, 16), dtype=torch.int8)
    y = torch.randint(-128, 127, (16, 24), dtype=torch.int8)
    check(torch._int_mm, x, y, gradient=False)
    weight = torch.randint(-128, 127, (32, 64), dtype=torch.int8)
    check(
        torch._weight_int8pack_mm,
        rand(4, 64, dtype=torch.bfloat16),
        weight,
        rand(32, dtype=torch.bfloat16),
        gradient=False,
        tolerance=6e-2,
    )


FOUR_BITS = {
    "rows": (80, 64, 32),
    "one_block": (64, 128, 128),
    "small_block": (16, 64, 64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FOUR_BITS)
def test_four_bit_weights(name: str, dtype: torch.dtype) -> None:
    rows, columns, group = FOUR_BITS[name]
    aten = torch.ops.aten
    torch.manual_seed(0)
    weight = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    packed = aten._convert_weight_to_int4pack_for_cpu(weight, 2)
    on_device = aten._convert_weight_to_int4pack_for_cpu(weight.to("tpu"), 2)
    assert torch.equal(on_device.cpu(), packed)
    x, scales = rand(5, columns, dtype=dtype), rand(columns // group, rows, 2, dtype=dtype)
    expected = aten._weight_int4pack_mm_for_cpu(x, packed, group, scales)
    limit = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    x, scales = x.to("tpu"), scales.to("tpu")
    actual = aten._weight_int4pack_mm_for_cpu(x, packed.to("tpu"), group, scales)
    torch.testing.assert_close(actual.cpu(), expected, **limit)
    pairs = (weight[:, ::2] << 4 | weight[:, 1::2]).to(torch.uint8).to("tpu")
    words = aten._convert_weight_to_int4pack(pairs, 2)
    assert words.shape == (rows // 8, columns // 32, 32, 1)
    actual = aten._weight_int4pack_mm(x, words, group, scales)
    torch.testing.assert_close(actual.cpu(), expected, **limit)


def test_four_bit_weights_that_do_not_fit() -> None:
    aten = torch.ops.aten
    with pytest.raises(RuntimeError):
        aten._convert_weight_to_int4pack_for_cpu(torch.ones(17, 4, dtype=torch.int32).to("tpu"), 2)
    with pytest.raises(RuntimeError):
        aten._convert_weight_to_int4pack(torch.ones(8, 4, dtype=torch.uint8).to("tpu"), 2)
    packed = torch.ones(16, 32, dtype=torch.uint8).to("tpu")
    x, scales = torch.ones(2, 64).to("tpu"), torch.ones(3, 16, 2).to("tpu")
    with pytest.raises(RuntimeError):
        aten._weight_int4pack_mm_for_cpu(x, packed, 32, scales)


@pytest.mark.parametrize("use_gelu", [False, True])
def test_addmm_activation(use_gelu: bool) -> None:
    check(
        lambda *t: torch._addmm_activation(*t, use_gelu=use_gelu),
        rand(5),
        rand(3, 4),
        rand(4, 5),
        gradient=False,
    )


def test_linear() -> None:
    check(torch.nn.functional.linear, rand(2, 3, 4), rand(5, 4), rand(5))
    check(torch.nn.functional.bilinear, rand(3, 4), rand(3, 5), rand(2, 4, 5), rand(2))


# ---- groups ----


def _grouped(x: torch.Tensor, w: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """Return the products of the groups one by one, put together as _grouped_mm does."""
    starts = [0, *ends[:-1]]
    spans = [slice(s, e) for s, e in zip(starts, ends, strict=True)]
    if x.dim() == 2 and w.dim() == 3:
        return torch.cat([x[s] @ w[i] for i, s in enumerate(spans)])
    if x.dim() == 3:
        return torch.cat([x[i] @ w[:, s] for i, s in enumerate(spans)], dim=1)
    return torch.stack([x[:, s] @ w[s] for s in spans])


GROUPS = [[8, 8, 16, 24], [0, 0, 0, 24], [1, 2, 3, 24], [6, 12, 18, 24]]


def _device_grouped(x: torch.Tensor, w: torch.Tensor, ends: list[int]) -> torch.Tensor:
    if x.device.type == "cpu":
        return _grouped(x, w, ends)
    return torch._grouped_mm(x, w, torch.tensor(ends, dtype=torch.int32, device=x.device))


@pytest.mark.parametrize("ends", GROUPS)
@pytest.mark.parametrize(
    "shapes", [((24, 8), (4, 8, 16)), ((4, 8, 16), (16, 24)), ((8, 24), (24, 16))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped(ends: list[int], shapes: tuple, dtype: torch.dtype) -> None:
    x, w = (rand(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes))
    gradient = len(shapes[1]) == 3 and dtype == torch.float32
    check(lambda x, w: _device_grouped(x, w, ends), x, w, gradient=gradient)


def test_grouped_rows_behind_the_last_group() -> None:
    x, w = rand(6, 4).to("tpu"), rand(3, 4, 2).to("tpu")
    ends = torch.tensor([1, 3, 4], dtype=torch.int32, device="tpu")
    y = torch._grouped_mm(x, w, ends).cpu()
    torch.testing.assert_close(y[:4], _grouped(x.cpu()[:4], w.cpu(), [1, 3, 4]))


# ---- errors ----


def test_errors_are_pytorchs() -> None:
    x = rand(3, 4).to("tpu")
    with pytest.raises(RuntimeError, match=r"reduction dim|multiplied"):
        torch.mm(x, x)
    with pytest.raises(RuntimeError):
        torch.mm(x, x.double().T)
    with pytest.raises(RuntimeError):
        torch.addmm(x, x.long(), x.long().T, alpha=0.5)
