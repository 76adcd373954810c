# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Scaled dot product attention against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from layer_checks import check, rand
from torch.nn.attention import SDPBackend, sdpa_kernel

attend = F.scaled_dot_product_attention


def _qkv(
    query: tuple[int, ...], key: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    return [
        rand(*query, dtype=dtype),
        rand(*key, dtype=dtype, seed=1),
        rand(*key, dtype=dtype, seed=2),
    ]


CASES = {
    "plain": ((2, 3, 5, 8), (2, 3, 7, 8), {}),
    "causal": ((2, 3, 6, 8), (2, 3, 6, 8), {"is_causal": True}),
    "causal_longer_keys": ((1, 2, 3, 4), (1, 2, 6, 4), {"is_causal": True}),
    "causal_longer_queries": ((1, 2, 6, 4), (1, 2, 3, 4), {"is_causal": True}),
    "scale": ((1, 2, 4, 4), (1, 2, 5, 4), {"scale": 0.3}),
    "grouped": ((2, 6, 5, 8), (2, 2, 7, 8), {"enable_gqa": True}),
    "grouped_causal": ((2, 4, 5, 8), (2, 1, 5, 8), {"enable_gqa": True, "is_causal": True}),
    "3d": ((4, 5, 8), (4, 7, 8), {}),
    "5d": ((2, 2, 3, 5, 4), (2, 2, 3, 6, 4), {}),
    "2d": ((5, 8), (7, 8), {}),
    "empty_batch": ((0, 2, 3, 4), (0, 2, 3, 4), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    query, key, options = CASES[name]
    check(lambda *t: attend(*t, **options), *_qkv(query, key))


def test_modes(mode: str) -> None:
    check(lambda *t: attend(*t, is_causal=True), *_qkv((1, 2, 4, 4), (1, 2, 4, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    tolerance = {torch.float64: 1e-9}.get(dtype, 4e-2)
    check(lambda *t: attend(*t), *_qkv((1, 2, 5, 8), (1, 2, 6, 8), dtype), tolerance=tolerance)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 3, 1, 7), (2, 3, 5, 7)])
def test_masks(shape: tuple[int, ...]) -> None:
    tensors = _qkv((2, 3, 5, 8), (2, 3, 7, 8))
    allowed = rand(*shape) > -0.5
    allowed[..., 0] = True
    check(lambda q, k, v, m: attend(q, k, v, m), *tensors, allowed)
    additive = rand(*shape, seed=5)
    check(lambda q, k, v, m: attend(q, k, v, m.detach()), *tensors, additive)


def test_mask_with_gradient() -> None:
    check(lambda q, k, v, m: attend(q, k, v, m), *_qkv((1, 2, 4, 4), (1, 2, 5, 4)), rand(4, 5))


def test_rows_that_see_nothing() -> None:
    allowed = torch.ones(5, 7, dtype=torch.bool)
    allowed[2] = False
    check(lambda q, k, v, m: attend(q, k, v, m), *_qkv((1, 2, 5, 8), (1, 2, 7, 8)), allowed)


def test_grouped_mask() -> None:
    mask = rand(2, 4, 5, 7) > 0
    mask[..., 0] = True
    tensors = _qkv((2, 4, 5, 8), (2, 2, 7, 8))
    check(lambda q, k, v, m: attend(q, k, v, m, enable_gqa=True), *tensors, mask)


def test_transposed_heads() -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return y.transpose(1, 2).reshape(2, 5, -1)

    check(run, *_qkv((2, 5, 3, 8), (2, 5, 3, 8)))


def test_math_backend_agrees() -> None:
    q, k, v = (t.to("tpu") for t in _qkv((1, 2, 4, 8), (1, 2, 4, 8)))
    native = attend(q, k, v)
    with sdpa_kernel(SDPBackend.MATH):
        composite = attend(q, k, v)
    torch.testing.assert_close(native.cpu(), composite.cpu(), rtol=2e-5, atol=2e-5)


def test_dropout() -> None:
    q, k, v = (t.to("tpu").requires_grad_() for t in _qkv((1, 2, 8, 8), (1, 2, 8, 8)))
    y = attend(q, k, v, dropout_p=0.5)
    y.sum().backward()
    assert y.isfinite().all().item()
    assert q.grad.abs().sum().item() > 0


def test_multi_head_layer() -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = rand(2, 5, 8)
    expected, _ = layer(x, x, x)
    moved = layer.to("tpu")
    actual, _ = moved(x.to("tpu"), x.to("tpu"), x.to("tpu"))
    torch.testing.assert_close(actual.cpu(), expected, rtol=2e-5, atol=2e-5)


def test_heads_are_joined_by_a_view() -> None:
    q, k, v = (t.to("tpu") for t in _qkv((2, 3, 5, 8), (2, 3, 7, 8)))
    joined = attend(q, k, v).transpose(1, 2).view(2, 5, 24)
    expected = attend(q.cpu(), k.cpu(), v.cpu()).transpose(1, 2).reshape(2, 5, 24)
    torch.testing.assert_close(joined.cpu(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_for_inference(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    x = rand(2, 5, 16)
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        actual = encoder.to("tpu")(x.to("tpu"), src_key_padding_mask=padding.to("tpu"))
    torch.testing.assert_close(actual.cpu()[~padding], expected[~padding], rtol=2e-5, atol=2e-5)


def test_multi_head_layer_for_inference() -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padding = rand(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for average in (True, False):
        with torch.no_grad():
            expected = layer.cpu()(x, x, x, padding, average_attn_weights=average)
            y = x.to("tpu")
            actual = layer.to("tpu")(y, y, y, padding.to("tpu"), average_attn_weights=average)
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-5, atol=2e-5)
