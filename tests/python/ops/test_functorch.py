# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch.func transforms on the device against the CPU."""

from __future__ import annotations

import opinfo_samples
import pytest
import torch
from torch.utils._pytree import tree_leaves

# The operator database calls what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = opinfo_samples.words(
    """
    __rdiv__ alias_copy atleast_1d broadcast_to cat clamp_max clone cos cummin dot expand fft.irfftn
    gradient index_copy linalg.inv_ex linalg.lstsq.grad_oriented linalg.slogdet linalg.svdvals
    linalg.vecdot logaddexp2 logsumexp max.binary max.reduction_with_dim movedim
    mvlgamma.mvlgamma_p_3 native_layer_norm nn.functional.avg_pool1d nn.functional.celu
    nn.functional.group_norm nn.functional.hinge_embedding_loss nn.functional.kl_div
    nn.functional.l1_loss nn.functional.margin_ranking_loss nn.functional.max_unpool1d.grad
    nn.functional.pad.circular nn.functional.softmin nn.functional.softplus nn.functional.softshrink
    nn.functional.softsign norm polygamma.polygamma_n_3 qr rsqrt select_scatter special.xlog1py
    std_mean.unbiased take trapz triu var
    """
)


@pytest.fixture(autouse=True)
def _quiet_fallback():
    previous = torch.tpu.get_fallback()
    torch.tpu.set_fallback("silent")
    yield
    torch.tpu.set_fallback(previous)


def batched(function, inputs):
    """Three different elements along the first dimension."""
    stacks = [torch.stack([x, x * 0.75, x * 1.25 if x.is_floating_point() else x]) for x in inputs]
    return torch.func.vmap(function)(*stacks)


def forward_mode(function, inputs):
    return torch.func.jvp(function, inputs, tuple(0.5 + 0.25 * x for x in inputs))


def jacobian(function, inputs):
    return torch.func.jacrev(function, argnums=tuple(range(len(inputs))))(*inputs)


@pytest.mark.parametrize("name", NAMES)
def test_transforms(name: str) -> None:
    op = opinfo_samples.find(name)
    sample = opinfo_samples.small_sample(op)
    for transform in (batched, forward_mode, jacobian):
        expected = transform(*opinfo_samples.as_function(op, sample, "cpu"))
        actual = transform(*opinfo_samples.as_function(op, sample, "tpu"))
        pairs = zip(tree_leaves(actual), tree_leaves(expected), strict=True)
        for index, (a, e) in enumerate(pairs):
            assert a.device.type == "tpu"
            torch.testing.assert_close(
                a.cpu(),
                e,
                rtol=1e-6,
                atol=1e-8,
                equal_nan=True,
                msg=lambda text, t=transform, i=index: f"{t.__name__}, result {i}: {text}",
            )
