# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Whole diffusion pipelines with small random models, text encoders and tokenizers included."""

from __future__ import annotations

from typing import Any

import diffusers
import stack_parts as parts
import torch
import transformers
from torch import nn

WIDTH = 32
_BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}


def seeded(make: Any, **options: Any) -> Any:
    """Build a model with random weights that no product makes vanish."""
    torch.manual_seed(0)
    model = make(**options).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            if value.min() == value.max():
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
    return model


def words() -> Any:
    own = parts.tokenizer()
    own.model_max_length = 8
    return own


def text_encoder(projection: bool = False) -> nn.Module:
    tokens = words()
    config = transformers.CLIPTextConfig(
        vocab_size=64,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=8,
        projection_dim=WIDTH,
        pad_token_id=tokens.pad_token_id,
        bos_token_id=tokens.cls_token_id,
        eos_token_id=tokens.sep_token_id,
    )
    torch.manual_seed(0)
    kind = transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel
    return kind(config).eval()


def t5_encoder() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=64, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=1
    )
    torch.manual_seed(0)
    return transformers.T5EncoderModel(config).eval()


def vae(channels: int = 4, **options: Any) -> nn.Module:
    return seeded(
        diffusers.AutoencoderKL,
        latent_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=32,
        **_BLOCKS,
        **options,
    )


def stable_diffusion() -> Any:
    unet = seeded(
        diffusers.UNet2DConditionModel,
        sample_size=16,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        **_BLOCKS,
    )
    return quiet(
        diffusers.StableDiffusionPipeline(
            unet=unet,
            vae=vae(),
            scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
            text_encoder=text_encoder(),
            tokenizer=words(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def stable_diffusion_xl() -> Any:
    unet = seeded(
        diffusers.UNet2DConditionModel,
        sample_size=16,
        attention_head_dim=(2, 4),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
        cross_attention_dim=2 * WIDTH,
        **_BLOCKS,
    )
    return quiet(
        diffusers.StableDiffusionXLPipeline(
            unet=unet,
            vae=vae(),
            scheduler=diffusers.EulerDiscreteScheduler(),
            text_encoder=text_encoder(),
            text_encoder_2=text_encoder(projection=True),
            tokenizer=words(),
            tokenizer_2=words(),
            add_watermarker=False,
        )
    )


def stable_diffusion_3() -> Any:
    transformer = seeded(
        diffusers.SD3Transformer2DModel,
        sample_size=16,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=WIDTH,
        pooled_projection_dim=2 * WIDTH,
        out_channels=4,
        pos_embed_max_size=16,
    )
    t5 = seeded(lambda: _t5_of_width(2 * WIDTH))
    return quiet(
        diffusers.StableDiffusion3Pipeline(
            transformer=transformer,
            vae=vae(shift_factor=0.06, scaling_factor=1.5),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            text_encoder=text_encoder(projection=True),
            tokenizer=words(),
            text_encoder_2=text_encoder(projection=True),
            tokenizer_2=words(),
            text_encoder_3=t5,
            tokenizer_3=words(),
        )
    )


def _t5_of_width(width: int) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=64, d_model=width, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=1
    )
    return transformers.T5EncoderModel(config)


def flux() -> Any:
    transformer = seeded(
        diffusers.FluxTransformer2DModel,
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(4, 4, 8),
    )
    return quiet(
        diffusers.FluxPipeline(
            transformer=transformer,
            vae=vae(channels=1, shift_factor=0.06, scaling_factor=1.5),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            text_encoder=text_encoder(),
            tokenizer=words(),
            text_encoder_2=t5_encoder(),
            tokenizer_2=words(),
        )
    )


PIPELINES = {
    "sd": stable_diffusion,
    "sdxl": stable_diffusion_xl,
    "sd3": stable_diffusion_3,
    "flux": flux,
}


def quiet(pipeline: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint(pipeline: Any, **options: Any) -> torch.Tensor:
    """Paint one picture of 32 x 32 from a prompt with seeded noise."""
    choices = {
        "height": 32,
        "width": 32,
        "num_inference_steps": 2,
        "output_type": "pt",
        "generator": torch.Generator().manual_seed(0),
        **options,
    }
    if type(pipeline).__name__ in ("FluxPipeline", "StableDiffusion3Pipeline"):
        choices["max_sequence_length"] = 8
    return pipeline(parts.SENTENCES[0], **choices).images.float().cpu()
