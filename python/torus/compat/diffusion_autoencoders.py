# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Autoencoders of Diffusers, small.

By name: the arguments of the constructor, and the inputs of the forward pass made from a `Draw`.
What follows a slash in a name tells variants of one class apart.
"""

from __future__ import annotations

from typing import Any

import torch

from torus.compat.diffusion_parts import BATCH, Table, video

_SMALL: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 8,
}

AUTOENCODERS: Table = {
    "AutoencoderKL": (
        dict(**_SMALL, latent_channels=4, sample_size=32),
        lambda g: {"sample": g.normal(BATCH, 3, 32, 32)},
    ),
    "AsymmetricAutoencoderKL": (
        {
            "down_block_out_channels": (32, 64),
            "up_block_out_channels": (32, 64),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "norm_num_groups": 8,
        },
        lambda g: {"sample": g.normal(BATCH, 3, 32, 32), "mask": torch.ones(BATCH, 1, 32, 32)},
    ),
    "AutoencoderTiny": (
        {
            "encoder_block_out_channels": (16, 16),
            "decoder_block_out_channels": (16, 16),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        lambda g: {"sample": g.normal(BATCH, 3, 32, 32)},
    ),
    "VQModel": (
        dict(**_SMALL, latent_channels=3),
        lambda g: {"sample": g.normal(BATCH, 3, 32, 32)},
    ),
    "AutoencoderDC": (
        {
            "latent_channels": 4,
            "attention_head_dim": 8,
            "encoder_block_out_channels": (16, 32),
            "decoder_block_out_channels": (16, 32),
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
            "decoder_norm_types": ("rms_norm",) * 2,
            "decoder_act_fns": ("silu",) * 2,
        },
        lambda g: {"sample": g.normal(BATCH, 3, 32, 32)},
    ),
    "AutoencoderKLTemporalDecoder": (
        {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2},
        lambda g: {"sample": g.normal(3, 3, 32, 32), "num_frames": 3},
    ),
    "AutoencoderKLWan": (
        {
            "base_dim": 8,
            "z_dim": 16,
            "dim_mult": [1, 2],
            "num_res_blocks": 1,
            "temperal_downsample": [True],
        },
        lambda g: {"sample": video(g, 3, 5, 16, 16)},
    ),
    "AutoencoderKLQwenImage": (
        {
            "base_dim": 8,
            "z_dim": 16,
            "dim_mult": [1, 2],
            "num_res_blocks": 1,
            "temperal_downsample": [True],
        },
        lambda g: {"sample": video(g, 3, 1, 16, 16)},
    ),
    "AutoencoderKLCogVideoX": (
        {
            "block_out_channels": (8, 8, 8, 8),
            "latent_channels": 4,
            "layers_per_block": 1,
            "norm_num_groups": 2,
        },
        lambda g: {"sample": video(g, 3, 8, 16, 16)},
    ),
    "AutoencoderKLLTXVideo": (
        {
            "latent_channels": 8,
            "block_out_channels": (8, 8, 8, 8),
            "decoder_block_out_channels": (8, 8, 8, 8),
            "layers_per_block": (1, 1, 1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1, 1, 1),
        },
        lambda g: {"sample": video(g, 3, 9, 32, 32)},
    ),
    "AutoencoderKLMochi": (
        {
            "encoder_block_out_channels": (32, 32, 32, 32),
            "decoder_block_out_channels": (32, 32, 32, 32),
            "layers_per_block": (1, 1, 1, 1, 1),
        },
        lambda g: {"sample": video(g, 3, 7, 16, 16)},
    ),
    "AutoencoderOobleck": (
        {
            "encoder_hidden_size": 12,
            "decoder_channels": 12,
            "decoder_input_channels": 6,
            "audio_channels": 2,
            "downsampling_ratios": [2, 4],
            "channel_multiples": [1, 2],
        },
        lambda g: {"sample": g.normal(BATCH, 2, 24)},
    ),
    "AutoencoderKLHunyuanVideo": (
        {
            "latent_channels": 4,
            "block_out_channels": (8, 8, 8, 8),
            "layers_per_block": 1,
            "norm_num_groups": 2,
        },
        lambda g: {"sample": video(g, 3, 5, 16, 16)},
    ),
    "AutoencoderKLFlux2": (
        {
            "block_out_channels": (8, 8),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "latent_channels": 4,
            "norm_num_groups": 2,
            "layers_per_block": 1,
        },
        lambda g: {"sample": g.normal(BATCH, 3, 16, 16)},
    ),
    "AutoencoderKLMagvit": (
        {
            "block_out_channels": [8, 8, 8, 8],
            "latent_channels": 4,
            "layers_per_block": 1,
            "norm_num_groups": 2,
        },
        lambda g: {"sample": video(g, 3, 9, 16, 16)},
    ),
    "AutoencoderKLCosmos": (
        {
            "encoder_block_out_channels": (8, 8, 8, 8),
            "decode_block_out_channels": (8, 8, 8, 8),
            "latent_channels": 16,
            "resolution": 32,
            "num_layers": 1,
            "attention_resolutions": (8,),
        },
        lambda g: {"sample": video(g, 3, 9, 32, 32)},
    ),
}
