# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Gradients on the device against its own finite differences, in double precision."""

from __future__ import annotations

import opinfo_samples
import pytest
import torch

# The operator database calls what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FIRST_ORDER = opinfo_samples.words(
    """
    __rmul__ _segment_reduce.lengths _softmax_backward_data _unsafe_masked_index acos
    addmm.decomposed aminmax atan2 cfloat cholesky_solve clamp_min combinations complex conj cosh
    cumprod diag diagonal_scatter div.no_rounding_mode erfc exp fft.fftn fft.fftshift fft.ifft2
    fft.ihfftn fft.rfft flatten fmod frexp gather grid_sampler_3d hsplit hypot index_add lerp
    linalg.cond linalg.diagonal linalg.eigvalsh linalg.lu_solve linalg.matrix_norm
    linalg.matrix_power linalg.pinv.hermitian linalg.solve_ex linalg.vector_norm log10 logaddexp2
    logdet mH masked_fill max.reduction_with_dim meshgrid.variadic_tensors min.binary mm movedim mv
    mvlgamma.mvlgamma_p_5 nan_to_num nanmean native_batch_norm nextafter
    nn.functional.adaptive_avg_pool1d nn.functional.binary_cross_entropy_with_logits
    nn.functional.conv1d nn.functional.embedding nn.functional.glu nn.functional.interpolate.nearest
    nn.functional.layer_norm nn.functional.linear_cross_entropy nn.functional.max_pool2d
    nn.functional.max_unpool2d nn.functional.mish nn.functional.multilabel_margin_loss
    nn.functional.nll_loss nn.functional.pad.constant nn.functional.pdist
    nn.functional.pixel_shuffle nn.functional.soft_margin_loss nn.functional.softshrink norm.inf
    permute polygamma.polygamma_n_1 qr quantile ravel round.decimals_neg_3 rsub special.i1
    special.xlog1py squeeze_copy take tensordot torch.ops.aten._safe_softmax.default trace trapz
    unsqueeze_copy var.unbiased var_mean view_as vstack where
    """
)
SECOND_ORDER = opinfo_samples.words(
    """
    __rmul__ add amin broadcast_to cummin cumulative_trapezoid diag_embed gradient index_copy
    linalg.det linalg.lstsq.grad_oriented linalg.lu logcumsumexp matrix_exp min.reduction_with_dim
    nan_to_num nn.functional.binary_cross_entropy_with_logits nn.functional.gaussian_nll_loss
    nn.functional.max_pool1d nn.functional.pad.replicate nn.functional.softmin
    nn.functional.softshrink permute_copy reshape resolve_conj scatter special.i0e
    torch.ops.aten._safe_softmax.default unfold_copy where
    """
)
# Above so many elements the Jacobian is checked along one random direction only.
MOST_ELEMENTS = 10


@pytest.fixture(autouse=True)
def _quiet_fallback():
    previous = torch.tpu.get_fallback()
    torch.tpu.set_fallback("silent")
    yield
    torch.tpu.set_fallback(previous)


def sample_function(name: str):
    op = opinfo_samples.find(name)
    sample = opinfo_samples.small_sample(op)
    function, inputs = opinfo_samples.as_function(op, sample, "tpu")
    inputs = tuple(x.requires_grad_() for x in inputs)
    is_fast = op.gradcheck_fast_mode or sum(x.numel() for x in inputs) > MOST_ELEMENTS
    return function, inputs, {"nondet_tol": op.gradcheck_nondet_tol, "fast_mode": is_fast}


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_gradient(name: str) -> None:
    function, inputs, options = sample_function(name)
    assert torch.autograd.gradcheck(function, inputs, **options)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_gradient_of_gradient(name: str) -> None:
    function, inputs, options = sample_function(name)
    options["fast_mode"] = True
    assert torch.autograd.gradgradcheck(function, inputs, **options)
