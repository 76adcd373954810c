# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Counting what a StableHLO program does, against counts by hand and against PyTorch's counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from torch_tpu import aot
from torus.check.analysis import analyse


def program(*lines: str, arguments: str = "") -> str:
    body = "\n".join(lines)
    return (
        f"module @m {{\nfunc.func public @main({arguments}) -> (tensor<f32>) {{\n{body}\n}}\n}}\n"
    )


def test_a_plain_product() -> None:
    text = program(
        "%0 = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0] : "
        "(tensor<128x256xbf16>, tensor<256x64xbf16>) -> tensor<128x64xbf16>",
        arguments="%a0: tensor<128x256xbf16>, %a1: tensor<256x64xbf16>",
    )
    found = analyse(text)
    assert found.flops == 2 * 128 * 256 * 64
    assert found.argument_bytes == 2 * (128 * 256 + 256 * 64)
    assert found.result_bytes == 4
    assert found.products == {"bf16": found.flops}
    assert found.passes == found.products
    assert (found.largest[0].what, found.largest[0].shape) == ("argument", (128, 256))


def test_a_batched_product_of_full_precision_takes_six_passes() -> None:
    text = program(
        "%0 = stablehlo.dot_general %a0, %a1, batching_dims = [0] x [0], "
        "contracting_dims = [2] x [1], precision = [HIGHEST, HIGHEST] : "
        "(tensor<4x8x16xf32>, tensor<4x16x32xf32>) -> tensor<4x8x32xf32>",
    )
    found = analyse(text)
    assert found.flops == 2 * 4 * 8 * 16 * 32
    assert found.passes == {"f32": 6 * found.flops}


def test_a_loop_multiplies_what_is_in_it() -> None:
    text = program(
        "%9 = stablehlo.constant dense<7> : tensor<i32>",
        '%1:2 = "stablehlo.while"(%8, %a0) ({',
        "^bb0(%2: tensor<i32>, %3: tensor<8x8xf32>):",
        "%4 = stablehlo.compare LT, %2, %9, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>",
        "stablehlo.return %4 : tensor<i1>",
        "}, {",
        "^bb0(%5: tensor<i32>, %6: tensor<8x8xf32>):",
        "%7 = stablehlo.dot_general %6, %6, contracting_dims = [1] x [0] : "
        "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>",
        "stablehlo.return %5, %7 : tensor<i32>, tensor<8x8xf32>",
        "}) : (tensor<i32>, tensor<8x8xf32>) -> (tensor<i32>, tensor<8x8xf32>)",
        "%10 = stablehlo.dot_general %1#1, %1#1, contracting_dims = [1] x [0] : "
        "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>",
    )
    found = analyse(text)
    assert found.flops == (7 + 1) * 2 * 8**3
    assert found.uncounted_loops == 0


CONVOLUTIONS = {
    "plain": ((2, 3, 17, 19), (8, 3, 3, 3), {}),
    "strided, padded": ((1, 4, 32, 32), (6, 4, 5, 5), {"stride": 2, "padding": 2}),
    "dilated": ((1, 4, 20, 20), (4, 4, 3, 3), {"dilation": 2, "padding": 2}),
    "groups": ((2, 8, 12, 12), (16, 2, 3, 3), {"groups": 4}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_count_what_meets(name: str) -> None:
    image, kernel, options = CONVOLUTIONS[name]
    x, w = torch.ones(image), torch.ones(kernel)
    # Every product of ones is 1, so the sum of the result counts the multiplications.
    met = int(torch.nn.functional.conv2d(x, w, **options).sum())
    with aot.abstract():
        arguments = [aot.abstract_like(t) for t in (x, w)]
    lowered = aot.lower(lambda a, b: torch.nn.functional.conv2d(a, b, **options), *arguments)
    assert analyse(lowered.text).flops == 2 * met


def test_a_small_network_agrees_with_pytorchs_counter() -> None:
    def build() -> torch.nn.Module:
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        return layer.train()

    x = torch.zeros(2, 24, 64)
    with FlopCounterMode(display=False) as counter:
        build()(x).sum().backward()
    with aot.abstract(), torch.device("tpu"):
        model = build()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    found = analyse(aot.lower(step, aot.abstract_like(x)).text)
    # PyTorch's counter does not know the CPU's fused attention: two products forward, and five
    # backward, where the scores are computed again.
    attention = 7 * 2 * 2 * 24 * 24 * 64
    assert found.flops == counter.get_total_flops() + attention
