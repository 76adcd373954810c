# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Layers that the ``kernels`` library puts in the place of a model's own on device "tpu".

Each calls one operator that Torus lowers as a whole where models write several: less is recorded
and compiled, and half types are rounded once, at the end. They hold no state: members such as
``weight`` are those of the layer they replace.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Root mean square normalization over the last dimension, as in Llama and its kin."""

    can_torch_compile = True
    has_backward = True
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalize `hidden_states` (..., n) with ``weight`` (n,)."""
        return F.rms_norm(
            hidden_states, hidden_states.shape[-1:], self.weight, self.variance_epsilon
        )


class ScaledDotProductAttention(nn.Module):
    """Attention as one operator; grouped heads are not copied."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Attend with `query` (b, h, n, d) to `key` and `value` (b, h or a divisor, m, d)."""
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=query.shape[-3] != key.shape[-3],
        )


class SiluAndMul(nn.Module):
    """The gate of a gated feed-forward layer: one half through SiLU, times the other."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` (..., 2 n) to (..., n)."""
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


class SiLU(nn.Module):
    """``x * sigmoid(x)``."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` element by element."""
        return F.silu(x)


class GeLU(nn.Module):
    """The exact GELU, by the error function."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` element by element."""
        return F.gelu(x)


class GeluTanh(nn.Module):
    """GELU by the hyperbolic tangent."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` element by element."""
        return F.gelu(x, approximate="tanh")


class NewGELU(GeluTanh):
    """GELU by the hyperbolic tangent, under the name that GPT-2 gives it."""
