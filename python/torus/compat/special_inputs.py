# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Inputs of the model types whose signature does not say enough, by model type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torus.compat.inputs import BATCH, LENGTH, Inputs, Maker, find, image_size, mel_bins, vision
from torus.compat.shrink import first, is_int

SPECIAL: dict[str, Callable[[Maker], Inputs]] = {}


def _special(*types: str) -> Callable[[Callable[[Maker], Inputs]], Callable[[Maker], Inputs]]:
    def register(function: Callable[[Maker], Inputs]) -> Callable[[Maker], Inputs]:
        SPECIAL.update(dict.fromkeys(types, function))
        return function

    return register


@_special("autoformer", "informer", "time_series_transformer")
def _time_series(m: Maker) -> Inputs:
    past = m.config.context_length + max(m.config.lags_sequence)
    future = m.config.prediction_length
    return {
        "past_values": m.draw.normal(BATCH, past),
        "past_time_features": m.draw.normal(BATCH, past, 2),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": m.draw.normal(BATCH, future),
        "future_time_features": m.draw.normal(BATCH, future, 2),
    }


@_special("decision_transformer")
def _decision(m: Maker) -> Inputs:
    return {
        "states": m.draw.normal(BATCH, 5, m.config.state_dim),
        "actions": m.draw.normal(BATCH, 5, m.config.act_dim),
        "rewards": m.draw.normal(BATCH, 5, 1),
        "returns_to_go": m.draw.normal(BATCH, 5, 1),
        "timesteps": torch.arange(5).expand(BATCH, 5).clone(),
        "attention_mask": torch.ones(BATCH, 5).long(),
    }


@_special("audio-spectrogram-transformer")
def _spectrogram(m: Maker) -> Inputs:
    return {"input_values": m.draw.normal(BATCH, m.config.max_length, m.config.num_mel_bins)}


@_special("clap_audio_model")
def _clap_audio(m: Maker) -> Inputs:
    return {
        "input_features": m.draw.normal(BATCH, 1, 1001, 64),
        "is_longer": torch.zeros(BATCH, 1, dtype=torch.bool),
    }


@_special("clap")
def _clap(m: Maker) -> Inputs:
    return {**_clap_audio(m), "input_ids": m.ids()}


@_special("blip_2_qformer")
def _qformer(m: Maker) -> Inputs:
    return {
        "query_embeds": m.draw.normal(BATCH, 4, m.config.hidden_size),
        "encoder_hidden_states": m.draw.normal(BATCH, 6, m.config.encoder_hidden_size),
    }


@_special("instructblip_qformer", "instructblipvideo_qformer")
def _instruct_qformer(m: Maker) -> Inputs:
    return {"input_ids": m.ids(), **_qformer(m)}


@_special("lxmert")
def _lxmert(m: Maker) -> Inputs:
    return {
        "input_ids": m.ids(),
        "visual_feats": m.draw.normal(BATCH, 10, m.config.visual_feat_dim),
        "visual_pos": m.draw.uniform(BATCH, 10, m.config.visual_pos_dim),
    }


@_special("idefics2_perceiver")
def _perceiver(m: Maker) -> Inputs:
    return {
        "context": m.draw.normal(BATCH, 10, m.config.hidden_size),
        "attention_mask": torch.ones(BATCH, 10).long(),
    }


@_special("musicgen_decoder", "musicgen_melody_decoder")
def _music_decoder(m: Maker) -> Inputs:
    return {"input_ids": m.draw.integers(0, 200, BATCH * m.config.num_codebooks, 8)}


@_special("musicgen", "musicgen_melody")
def _music(m: Maker) -> Inputs:
    rows = BATCH * m.config.decoder.num_codebooks
    return {
        "decoder_input_ids": m.draw.integers(0, 200, rows, 8),
        "input_ids": m.draw.integers(3, 200, BATCH, LENGTH),
    }


def _flattened_patches(m: Maker, width: int) -> Inputs:
    count = 12
    rows = torch.arange(1, count + 1).view(1, count, 1).expand(BATCH, count, 1).float()
    columns = torch.ones(BATCH, count, 1)
    patches = torch.cat([rows, columns, m.draw.normal(BATCH, count, width)], -1)
    return {"flattened_patches": patches, "attention_mask": torch.ones(BATCH, count)}


@_special("pix2struct")
def _pix2struct(m: Maker) -> Inputs:
    patches = _flattened_patches(m, m.config.vision_config.patch_embed_hidden_size)
    return {**patches, "decoder_input_ids": m.draw.integers(3, 200, BATCH, 8)}


@_special("pix2struct_vision_model")
def _pix2struct_vision(m: Maker) -> Inputs:
    return _flattened_patches(m, m.config.patch_embed_hidden_size)


@_special("pp_ocrv5_mobile_rec", "pp_ocrv5_server_rec", "pp_ocrv6_small_rec", "pp_ocrv6_tiny_rec")
def _text_line(m: Maker) -> Inputs:
    return {"pixel_values": m.draw.normal(BATCH, 3, 48, 160)}


@_special("idefics")
def _idefics(m: Maker) -> Inputs:
    return {
        "input_ids": m.ids(),
        "pixel_values": m.draw.normal(BATCH, 1, 3, *image_size(m.config)),
        "image_attention_mask": torch.ones(BATCH, LENGTH, 1).long(),
        "attention_mask": torch.ones(BATCH, LENGTH).long(),
    }


@_special("kosmos-2")
def _kosmos(m: Maker) -> Inputs:
    count = m.config.latent_query_num
    mask = torch.zeros(BATCH, count + 8, dtype=torch.long)
    mask[:, 2 : 2 + count] = 1
    return {
        "input_ids": m.ids(BATCH, count + 8),
        "pixel_values": m.draw.normal(BATCH, 3, *image_size(m.config)),
        "image_embeds_position_mask": mask,
    }


@_special("phi4_multimodal_audio")
def _phi4_audio(m: Maker) -> Inputs:
    return {
        "hidden_states": m.draw.normal(BATCH, 64, mel_bins(m.config)),
        "mask": torch.ones(BATCH, 64, dtype=torch.bool),
    }


@_special("siglip2", "siglip2_vision_model")
def _siglip2(m: Maker) -> Inputs:
    side = first(vision(m.config).patch_size)
    inputs: Inputs = {
        "pixel_values": m.draw.normal(BATCH, 16, 3 * side * side),
        "pixel_attention_mask": torch.ones(BATCH, 16).long(),
        "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
    }
    return {**inputs, "input_ids": m.ids()} if m.has("input_ids") else inputs


@_special("speech-encoder-decoder")
def _speech(m: Maker) -> Inputs:
    return {
        "input_values": 0.1 * m.draw.normal(BATCH, 4000),
        "decoder_input_ids": m.draw.integers(3, 200, BATCH, 8),
    }


@_special("mllama_vision_model")
def _mllama_vision(m: Maker) -> Inputs:
    tiles, side = m.config.max_num_tiles, m.config.image_size
    return {
        "pixel_values": m.draw.normal(1, 1, tiles, 3, side, side),
        "aspect_ratio_ids": torch.ones(1, 1).long(),
        "aspect_ratio_mask": torch.ones(1, 1, tiles).long(),
    }


@_special("oneformer")
def _oneformer(m: Maker) -> Inputs:
    return {
        "pixel_values": m.draw.normal(BATCH, 3, 128, 128),
        "task_inputs": m.draw.integers(3, 200, BATCH, m.config.task_seq_len),
    }


@_special("dia")
def _dia(m: Maker) -> Inputs:
    channels = m.config.decoder_config.num_channels
    return {
        "input_ids": m.ids(),
        "decoder_input_ids": m.draw.integers(0, 200, BATCH, 8, channels),
    }


@_special("dia_decoder")
def _dia_decoder(m: Maker) -> Inputs:
    return {
        "input_ids": m.draw.integers(0, 200, BATCH, 8, m.config.num_channels),
        "encoder_hidden_states": m.draw.normal(BATCH, 6, m.config.cross_hidden_size),
    }


@_special("clvp")
def _clvp(m: Maker) -> Inputs:
    features = m.config.decoder_config.feature_size
    return {
        "input_ids": m.draw.integers(3, 200, BATCH, LENGTH),
        "input_features": m.draw.normal(BATCH, features, 64),
    }


@_special("gemma4_vision")
def _gemma4_vision(m: Maker) -> Inputs:
    row, column = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    places = torch.stack([column.flatten(), row.flatten()], -1).expand(BATCH, 36, 2).clone()
    return {
        "pixel_values": m.draw.uniform(BATCH, 36, 3 * first(m.config.patch_size) ** 2),
        "pixel_position_ids": places,
    }


@_special("vivit", "videomae")
def _video(m: Maker) -> Inputs:
    frames = find(m.config, ["num_frames"], 4)
    return {"pixel_values": m.draw.normal(1, frames, 3, *image_size(m.config))}


@_special("xcodec", "xcodec2", "neucodec")
def _mono_sound(m: Maker) -> Inputs:
    return {"input_values": 0.1 * m.draw.normal(BATCH, 1, 4800)}


@_special("depth_pro")
def _depth_pro(m: Maker) -> Inputs:
    side = 4 * m.config.patch_size  # the smallest of three scales is one patch
    return {"pixel_values": m.draw.normal(1, 3, side, side)}


@_special("fun_asr_nano_encoder")
def _stacked_frames(m: Maker) -> Inputs:
    return {
        "input_features": m.draw.normal(BATCH, 12, m.config.input_size),
        "input_features_mask": torch.ones(BATCH, 12).long(),
    }


@_special("deepseek_ocr2_encoder")
def _patches_and_queries(m: Maker) -> Inputs:
    return {"inputs_embeds": m.draw.normal(BATCH, 12, m.config.hidden_size), "num_patches": 6}


@_special("emu3_vqgan")
def _emu3_images(m: Maker) -> Inputs:
    return {
        "pixel_values": m.draw.normal(BATCH, 3, 64, 64),
        "image_sizes": torch.tensor([[64, 64]] * BATCH),
    }


@_special("seggpt")
def _seggpt(m: Maker) -> Inputs:
    height, width = image_size(m.config)
    return {
        "pixel_values": m.draw.normal(1, 3, height // 2, width),
        "prompt_pixel_values": m.draw.normal(1, 3, height // 2, width),
        "prompt_masks": m.draw.normal(1, 3, height // 2, width),
    }


# Multimodal models take as many placeholder tokens as their towers yield features.
_PLACEHOLDERS = (
    (
        "pixel_values",
        "get_image_features",
        ("image_token_id", "image_token_index", "media_placeholder_token_id"),
    ),
    ("pixel_values_videos", "get_video_features", ("video_token_id", "video_token_index")),
    ("input_features", "get_audio_features", ("audio_token_id", "audio_token_index")),
    ("input_values", "get_audio_features", ("audio_token_id", "audio_token_index")),
)


def add_placeholders(maker: Maker, inputs: Inputs) -> Inputs:
    """Put placeholder tokens for images and sound into ``input_ids``, as many as needed."""
    if "input_ids" not in inputs:
        return inputs
    ids = inputs["input_ids"]
    rows: list[list[int]] = [[] for _ in range(ids.shape[0])]
    for key, method, names in _PLACEHOLDERS:
        token, owner = find(maker.config, names), _owner(maker.model, method)
        if key not in inputs or token is None or owner is None:
            continue
        each, rest = divmod(_count_features(getattr(owner, method), inputs), len(rows))
        for i, row in enumerate(rows):
            row += [token] * (each + (i < rest))
    if not any(rows):
        return inputs
    return {**inputs, **_with_tokens(maker, inputs, rows)}


def _owner(model: Any, method: str) -> Any:
    places = (model, getattr(model, "model", None))
    return next((place for place in places if hasattr(place, method)), None)


def _count_features(method: Callable[..., Any], inputs: Inputs) -> int:
    import inspect

    taken = inspect.signature(method).parameters
    arguments = {
        k: v for k, v in inputs.items() if k in taken and k not in ("input_ids", "attention_mask")
    }
    with torch.no_grad():
        found = method(**arguments)
    pooled = getattr(found, "pooler_output", None)
    features = getattr(found, "last_hidden_state", found) if pooled is None else pooled
    many = features if isinstance(features, list | tuple) else [features]
    return sum(x.reshape(-1, x.shape[-1]).shape[0] for x in many)


def _with_tokens(maker: Maker, inputs: Inputs, rows: list[list[int]]) -> Inputs:
    ids, longest = inputs["input_ids"], max(map(len, rows))
    lines = []
    for text, row in zip(ids.tolist(), rows, strict=True):
        lines.append(text[:4] + row + text[4:] + [text[-1]] * (longest - len(row)))
    new: Inputs = {"input_ids": torch.tensor(lines)}
    if "attention_mask" in inputs:
        new["attention_mask"] = torch.ones_like(new["input_ids"])
    if maker.has("mm_token_type_ids"):
        new["mm_token_type_ids"] = torch.zeros_like(new["input_ids"])
        for kind, name in ((1, "image"), (2, "video")):
            token = find(maker.config, (f"{name}_token_id", f"{name}_token_index"), -1)
            if is_int(token):
                new["mm_token_type_ids"][new["input_ids"] == token] = kind
    return new
