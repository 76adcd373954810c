# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""U-nets, control nets and adapters of Diffusers, small.

By name: the arguments of the constructor, and the inputs of the forward pass made from a `Draw`.
What follows a slash in a name tells variants of one class apart.
"""

from __future__ import annotations

from typing import Any

import torch

from torus.compat.diffusion_parts import BATCH, Table, image, positions, tensor, video

CONDITIONED: dict[str, Any] = {
    "sample_size": 16,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
}

UNETS: Table = {
    "UNet2DModel": (
        {
            "sample_size": 16,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "norm_num_groups": 8,
            "attention_head_dim": 8,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda g: {"sample": image(g, 3), "timestep": tensor(10, 20)},
    ),
    "UNet2DConditionModel": (
        CONDITIONED,
        lambda g: {
            "sample": image(g),
            "timestep": tensor(10, 20),
            "encoder_hidden_states": g.normal(BATCH, 7, 32),
        },
    ),
    "UNet2DConditionModel/sdxl": (
        {
            "sample_size": 16,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "norm_num_groups": 8,
            "attention_head_dim": (2, 4),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 64,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "transformer_layers_per_block": (1, 2),
            "projection_class_embeddings_input_dim": 80,
        },
        lambda g: {
            "sample": image(g),
            "timestep": tensor(10, 20),
            "encoder_hidden_states": g.normal(BATCH, 7, 64),
            "added_cond_kwargs": {
                "text_embeds": g.normal(BATCH, 32),
                "time_ids": g.normal(BATCH, 6),
            },
        },
    ),
    "UNet1DModel": (
        {
            "sample_size": 256,
            "in_channels": 2,
            "out_channels": 2,
            "extra_in_channels": 64,
            "block_out_channels": (32, 32, 64),
        },
        lambda g: {"sample": g.normal(BATCH, 2, 256), "timestep": tensor(10, 10)},
    ),
    "UNet3DConditionModel": (
        {
            "sample_size": 16,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "norm_num_groups": 8,
            "attention_head_dim": 8,
            "cross_attention_dim": 32,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        lambda g: {
            "sample": video(g),
            "timestep": tensor(10),
            "encoder_hidden_states": g.normal(1, 7, 32),
        },
    ),
    "UNetMotionModel": (
        {
            "sample_size": 16,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "norm_num_groups": 8,
            "num_attention_heads": 4,
            "motion_num_attention_heads": 2,
            "cross_attention_dim": 32,
            "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
        },
        lambda g: {
            "sample": video(g),
            "timestep": tensor(10),
            "encoder_hidden_states": g.normal(4, 7, 32),
        },
    ),
    "UNetSpatioTemporalConditionModel": (
        {
            "sample_size": 16,
            "in_channels": 8,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "cross_attention_dim": 32,
            "num_attention_heads": (2, 4),
            "num_frames": 4,
            "addition_time_embed_dim": 32,
            "projection_class_embeddings_input_dim": 96,
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        },
        lambda g: {
            "sample": g.normal(1, 4, 8, 16, 16),
            "timestep": tensor(10.0),
            "encoder_hidden_states": g.normal(1, 1, 32),
            "added_time_ids": tensor([6.0, 127.0, 0.02]),
        },
    ),
    "I2VGenXLUNet": (
        {
            "sample_size": 16,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "norm_num_groups": 8,
            "attention_head_dim": 8,
            "cross_attention_dim": 1024,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        lambda g: {
            "sample": video(g, 4, 2),
            "timestep": tensor(10),
            "fps": tensor(7),
            "image_latents": video(g, 4, 2),
            "image_embeddings": g.normal(1, 1024),
            "encoder_hidden_states": g.normal(1, 4, 1024),
        },
    ),
    "Kandinsky3UNet": (
        {
            "time_embedding_dim": 32,
            "groups": 4,
            "attention_head_dim": 8,
            "layers_per_block": 3,
            "block_out_channels": (32, 64),
            "cross_attention_dim": 32,
            "encoder_hid_dim": 32,
        },
        lambda g: {
            "sample": image(g),
            "timestep": tensor(10, 20),
            "encoder_hidden_states": g.normal(BATCH, 7, 32),
            "encoder_attention_mask": torch.ones(BATCH, 7),
        },
    ),
    "StableCascadeUNet": (
        {
            "in_channels": 4,
            "out_channels": 4,
            "conditioning_dim": 64,
            "block_out_channels": (64, 64),
            "num_attention_heads": (2, 2),
            "down_num_layers_per_block": (1, 1),
            "up_num_layers_per_block": (1, 1),
            "clip_text_pooled_in_channels": 32,
            "clip_text_in_channels": 32,
            "clip_image_in_channels": 32,
            "switch_level": (False,),
        },
        lambda g: {
            "sample": image(g),
            "timestep_ratio": tensor(0.5, 0.5),
            "clip_text_pooled": g.normal(BATCH, 1, 32),
            "clip_text": g.normal(BATCH, 7, 32),
            "clip_img": g.normal(BATCH, 1, 32),
        },
    ),
    "ControlNetModel": (
        {k: v for k, v in CONDITIONED.items() if k not in ("sample_size", "up_block_types")}
        | {"conditioning_embedding_out_channels": (16, 32)},
        lambda g: {
            "sample": image(g),
            "timestep": tensor(10, 20),
            "encoder_hidden_states": g.normal(BATCH, 7, 32),
            "controlnet_cond": g.normal(BATCH, 3, 32, 32),
        },
    ),
    "T2IAdapter": (
        {"channels": [32, 64], "num_res_blocks": 1},
        lambda g: {"x": g.normal(BATCH, 3, 32, 32)},
    ),
    "SD3ControlNetModel": (
        {
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 64,
            "pos_embed_max_size": 16,
        },
        lambda g: {
            "hidden_states": image(g),
            "controlnet_cond": image(g),
            "encoder_hidden_states": g.normal(BATCH, 7, 32),
            "pooled_projections": g.normal(BATCH, 64),
            "timestep": tensor(10, 20),
        },
    ),
    "FluxControlNetModel": (
        {
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": [4, 4, 8],
        },
        lambda g: {
            "hidden_states": g.normal(BATCH, 16, 4),
            "controlnet_cond": g.normal(BATCH, 16, 4),
            "encoder_hidden_states": g.normal(BATCH, 7, 32),
            "pooled_projections": g.normal(BATCH, 32),
            "timestep": tensor(0.5, 0.5),
            "img_ids": positions(3, 16),
            "txt_ids": positions(3, 7),
        },
    ),
    "UVit2DModel": (
        {
            "hidden_size": 32,
            "cond_embed_dim": 32,
            "micro_cond_encode_dim": 8,
            "micro_cond_embed_dim": 40,
            "encoder_hidden_size": 32,
            "vocab_size": 100,
            "codebook_size": 90,
            "in_channels": 32,
            "block_out_channels": 32,
            "num_res_blocks": 1,
            "block_num_heads": 2,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "sample_size": 8,
        },
        lambda g: {
            "input_ids": g.integers(0, 90, BATCH, 8, 8),
            "encoder_hidden_states": g.normal(BATCH, 7, 32),
            "pooled_text_emb": g.normal(BATCH, 32),
            "micro_conds": g.normal(BATCH, 5),
        },
    ),
}
