# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Example inputs: what a model is called with, of the right shapes.

Called inside `torch_tpu.aot.abstract`, so that they have no content.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from torus.check.source import Source, SourceError

__all__ = ["make"]

Inputs = dict[str, Any]


def make(source: Source, model: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    """Make the inputs of one call.

    Parameters
    ----------
    source : Source
        Where the model comes from.
    model : torch.nn.Module
        The model.
    batch, seq : int
        How many samples, and how long each is: tokens of text, or of a picture for a diffusion
        transformer.
    dtype : torch.dtype
        Of inputs that are not whole numbers.

    Returns
    -------
    dict of str to tensor
        Keyword arguments of the model.

    Raises
    ------
    SourceError
        If it is not known what the model takes.
    """
    if source.library == "diffusers":
        return _of_diffusers(source, model, batch, seq, dtype)
    names = inspect.signature(model.forward).parameters
    for name, of_kind in _KINDS.items():
        if name in names and name in (getattr(model, "main_input_name", name), "input_ids"):
            return of_kind(source.config, names, batch, seq, dtype)
    raise SourceError(
        f"it is not known what {type(model).__name__} takes ({', '.join(list(names)[:6])} ...): "
        "write a function that returns (model, inputs) and give file.py:function"
    )


def _ids(batch: int, seq: int) -> torch.Tensor:
    return torch.zeros(batch, seq, dtype=torch.int64, device="tpu")


def _floats(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="tpu")


# ---- Transformers ----


def _text(config: Any, names: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    del dtype
    _check_length(config, seq)
    made = {"input_ids": _ids(batch, seq)}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        made["decoder_input_ids"] = _ids(batch, seq)
    return made


def _check_length(config: Any, seq: int) -> None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and seq > longest > 0:
        raise SourceError(f"--seq {seq} is longer than the model's {longest} positions")


def _first(config: Any, *names: str, default: Any = None) -> Any:
    """Return the first attribute that is there, of the configuration or of its vision part."""
    for part in (config, getattr(config, "vision_config", None)):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def _picture(config: Any, names: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    size = _first(config, "image_size", "input_size", default=224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    made = {
        "pixel_values": _floats(
            dtype, batch, _first(config, "num_channels", default=3), height, width
        )
    }
    if "input_ids" in names and hasattr(config, "text_config"):
        made["input_ids"] = _ids(batch, min(seq, config.text_config.max_position_embeddings))
    return made


def _spectrum(config: Any, names: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    bands = _first(config, "num_mel_bins", "num_mel_banks", default=80)
    frames = 2 * config.max_source_positions if hasattr(config, "max_source_positions") else seq
    made = {"input_features": _floats(dtype, batch, bands, frames)}
    if "decoder_input_ids" in names:
        made["decoder_input_ids"] = _ids(
            batch, min(seq, getattr(config, "max_target_positions", seq))
        )
    return made


def _sound(config: Any, names: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    del config, names
    return {"input_values": _floats(dtype, batch, seq)}


# By the name of the first argument; pictures first, for models of both.
_KINDS: dict[str, Callable[..., Inputs]] = {
    "pixel_values": _picture,
    "input_ids": _text,
    "input_features": _spectrum,
    "input_values": _sound,
}


# ---- Diffusers ----


def _of_diffusers(source: Source, model: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    kind = source.config["_class_name"]
    makers = {
        "FluxTransformer2DModel": _flux,
        "UNet2DConditionModel": _unet,
        "UNet2DModel": _unet,
        "AutoencoderKL": _autoencoder,
    }
    if kind not in makers:
        raise SourceError(
            f"it is not known what {kind} takes: write a function that returns (model, inputs) and "
            "give file.py:function"
        )
    return makers[kind](model.config, batch, seq, dtype)


def _flux(config: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    """`seq` tokens of picture (4096 are 1024 x 1024 pixels) beside 512 of text."""
    text = 512
    made = {
        "hidden_states": _floats(dtype, batch, seq, config.in_channels),
        "encoder_hidden_states": _floats(dtype, batch, text, config.joint_attention_dim),
        "pooled_projections": _floats(dtype, batch, config.pooled_projection_dim),
        "timestep": _floats(dtype, batch),
        "img_ids": _floats(dtype, seq, 3),
        "txt_ids": _floats(dtype, text, 3),
    }
    if config.guidance_embeds:
        made["guidance"] = _floats(torch.float32, batch)
    return made


def _unet(config: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    size = config.sample_size or 64
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    made = {
        "sample": _floats(dtype, batch, config.in_channels, height, width),
        "timestep": _floats(dtype, batch),
    }
    if hasattr(config, "cross_attention_dim"):
        width = config.cross_attention_dim
        width = width[-1] if isinstance(width, (list, tuple)) else width
        made["encoder_hidden_states"] = _floats(dtype, batch, min(seq, 77), width)
    return made


def _autoencoder(config: Any, batch: int, seq: int, dtype: torch.dtype) -> Inputs:
    del seq
    return {
        "sample": _floats(dtype, batch, config.in_channels, config.sample_size, config.sample_size)
    }
