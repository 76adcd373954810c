# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What a model's forward pass takes, read off its signature and its configuration."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import torch

from torus.compat.shrink import VOCABULARY, all_parts, first, is_int, parts

BATCH, LENGTH = 2, 16
# Kinds of input that are tried in turn, and the forms in which images and sound may come.
MODES = ("full", "text", "image", "audio")

Inputs = dict[str, Any]
_SPECIAL_TOKEN = ("_token_id", "_token_index", "_token_ids", "_start_id", "_end_id")
_VISION = (
    "vision_config",
    "vision_encoder_config",
    "image_config",
    "encoder",
    "backbone_config",
    "vit_config",
    "image_encoder_config",
)
_HOLDERS = ("thinker_config", "vlm_config", "detector_config", "base_model_config")
_MEL = ("num_mel_bins", "n_mel_bins", "input_feat_size", "input_feat_per_channel")
_MEL_TOO = ("feature_size", "feat_dim", "feature_projection_input_dim", "input_dim", "n_mels")
_AUDIO = (
    "audio_config",
    "encoder_config",
    "audio_encoder",
    "speech_config",
    "encoder",
    "audio_encoder_config",
)


class Draw:
    """Random numbers from a seed of their own, on the CPU."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        """Return normally distributed float32 numbers."""
        return torch.randn(*shape, generator=self.generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Return float32 numbers between 0 and 1."""
        return torch.rand(*shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers from `low` up to below `high`."""
        return torch.randint(low, max(low + 1, high), shape, generator=self.generator)


def find(config: Any, names: tuple[str, ...] | list[str], default: Any = None) -> Any:
    """Return the first of the fields that a configuration or one inside it has."""
    for name in names:
        value = _field(config, name)
        if value is not None and not callable(value):
            return value
    for part in parts(config).values():
        value = find(part, names)
        if value is not None:
            return value
    return default


def _field(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # an attribute that each layer has for itself
        return None


def part(config: Any, *names: str) -> Any:
    """Return the first of the fields that is a configuration, or None."""
    for name in names:
        value = _field(config, name)
        if hasattr(value, "model_type"):
            return value
    return None


def vision(config: Any) -> Any:
    """Return the configuration of the part that sees images; the whole if there is none."""
    for name in _VISION:
        value = part(config, name)
        if value is not None:
            return vision(value) if name == "encoder" else value
    value = part(config, *_HOLDERS)
    return config if value is None else vision(value)


def image_size(config: Any) -> tuple[int, int]:
    """Return height and width of the images that a model expects."""
    size = None
    for place in (vision(config), config):
        size = find(place, ["image_size", "input_size", "img_size", "crop_size", "resolution"])
        if size is not None and (not is_int(size) or size >= 16):
            break
    if size is None:
        size = 256 if find(config, ["num_queries"]) else 64
    if isinstance(size, dict):
        size = (size.get("height", 64), size.get("width", 64))
    if isinstance(size, list | tuple):
        return int(size[-2]), int(size[-1])
    return int(size), int(size)


def mel_bins(config: Any) -> int:
    """Return how many features a frame of sound has."""
    audio = part(config, *_AUDIO) or config
    names = (*_MEL, *_MEL_TOO, "num_mels", "mel_dim", "input_size")
    found = find(audio, names) or find(config, _MEL, 80)
    return found if is_int(found) else 80


def hidden_size(config: Any) -> int:
    """Return the width of the model."""
    return first(find(config, ["hidden_size", "d_model", "embed_dim", "dim"], 64))


def special_tokens(config: Any) -> set[int]:
    """Return the numbers of all tokens that mean something of their own."""
    found: set[int] = set()
    for each in all_parts(config):
        for name, value in each.__dict__.items():
            if name.endswith(_SPECIAL_TOKEN):
                values = value if isinstance(value, list | tuple) else [value]
                found |= {x for x in values if is_int(x)}
    return found


class Maker:
    """Makes the inputs of one model.

    Parameters
    ----------
    model : torch.nn.Module
        With ``config`` and a ``forward`` whose parameters say what it takes.
    seed : int
        Of the random numbers.
    features : int, optional
        Size of a frame of sound, where the configuration misleads.
    """

    def __init__(self, model: Any, seed: int, features: int | None = None) -> None:
        self.model, self.config = model, model.config
        self.draw = Draw(seed)
        self.type = self.config.model_type
        self.parameters = inspect.signature(model.forward).parameters
        self.main = getattr(model, "main_input_name", "input_ids")
        self._features = features
        self._required = {
            name
            for name, parameter in self.parameters.items()
            if parameter.default is inspect.Parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }

    def has(self, name: str) -> bool:
        """Return whether forward has the parameter."""
        return name in self.parameters

    def vocabulary(self) -> int:
        """Return how many tokens the model embeds."""
        try:
            table = self.model.get_input_embeddings()
        except (NotImplementedError, AttributeError):
            table = None
        if isinstance(table, torch.nn.Embedding):
            return table.num_embeddings
        found = find(self.config, ["vocab_size"], VOCABULARY)
        return found if is_int(found) else VOCABULARY

    def ids(self, *shape: int) -> torch.Tensor:
        """Return ordinary tokens, ``[BATCH, LENGTH]`` if no shape is given."""
        count, special = self.vocabulary(), special_tokens(self.config)
        ids = self.draw.integers(3, min(count, VOCABULARY), *(shape or (BATCH, LENGTH)))
        others = [x for x in range(3, min(count, 400)) if x not in special] or [min(3, count - 1)]
        for token in special:
            ids[ids == token] = others[token % len(others)]
        return ids

    def make(self, mode: str, form: int = 0) -> Inputs:
        """Return the arguments of the forward pass.

        Parameters
        ----------
        mode : str
            One of `MODES`: which of text, images and sound.
        form : int
            0 to 3: how images and sound are laid out.
        """
        from torus.compat.special_inputs import SPECIAL

        special = SPECIAL.get(self.type)
        if special is not None:
            return special(self)
        if self._is_vision_tower():
            return self._flat_patches()
        inputs: Inputs = {}
        if mode in ("full", "text"):
            self._text(inputs)
        self._decoder(inputs)
        if mode in ("full", "image"):
            self._images(inputs, form)
        self._videos(inputs)
        if mode in ("full", "audio"):
            self._sound(inputs, mode, form)
        self._rest(inputs)
        return inputs

    def _text(self, inputs: Inputs) -> None:
        if self.has("input_ids"):
            inputs["input_ids"] = self.ids()
            if self.has("attention_mask"):
                inputs["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long)

    def _decoder(self, inputs: Inputs) -> None:
        if not self.has("decoder_input_ids"):
            return
        count = self.vocabulary()
        if getattr(self.config, "is_encoder_decoder", False):
            count = find(self.config, ["decoder_vocab_size"], count)
        elif "decoder_input_ids" not in self._required and self.main == "input_ids":
            return
        inputs["decoder_input_ids"] = self.draw.integers(3, min(count, VOCABULARY), BATCH, 8)

    # Images.

    def _is_vision_tower(self) -> bool:
        grid = self.has("grid_thw") or self.has("image_grid_thw")
        return grid and self.has("hidden_states") and not self.has("input_ids")

    def _merge(self) -> int:
        size = first(find(vision(self.config), ["spatial_merge_size", "merge_size"], 2))
        return size if is_int(size) else 2

    def _flat_patches(self) -> Inputs:
        merge = self._merge()
        side = first(find(vision(self.config), ["patch_size"], 14))
        width = self.patch_width(3 * side * side)
        grid = "grid_thw" if self.has("grid_thw") else "image_grid_thw"
        return {
            "hidden_states": self.draw.normal(4 * merge * merge, width),
            grid: torch.tensor([[1, 2 * merge, 2 * merge]]),
        }

    def patch_width(self, default: int) -> int:
        """Return the length of a flattened patch, read off the first projection of the tower."""
        config, tower = vision(self.config), None
        for module in self.model.modules():
            own = getattr(getattr(module, "config", None), "model_type", None)
            if own == config.model_type or (module is self.model and config is self.config):
                tower = module
                found = _projection_width(tower)
                if found:
                    return found
        return default

    def _images(self, inputs: Inputs, form: int) -> None:
        if not self.has("pixel_values"):
            return
        channels = find(
            vision(self.config), ["num_channels", "in_channels", "in_chans", "n_channels"]
        )
        channels = channels if is_int(channels) else find(self.config, ["num_channels"], 3)
        channels = channels if is_int(channels) else 3
        grids = ("image_grid_thw", "grid_thw", "image_grid_hws")
        grid = next((name for name in grids if self.has(name)), None)
        if grid:
            self._patches(inputs, grid, channels, form)
            return
        size = image_size(self.config)
        frames = (2,) if form >= 2 else ()
        inputs["pixel_values"] = self.draw.normal(BATCH, *frames, channels, *size)
        if self.has("image_sizes") and form:
            inputs["image_sizes"] = torch.tensor([list(size)] * BATCH)

    def _patches(self, inputs: Inputs, grid: str, channels: int, form: int) -> None:
        config = vision(self.config)
        side = first(find(config, ["patch_size"], 14))
        steps = first(find(config, ["temporal_patch_size"], 2) or 1)
        rows = 2 * self._merge()
        width = self.patch_width(channels * steps * side * side)
        pixels = self.draw.normal(BATCH * rows * rows, width)
        if form and width == channels * side * side:
            shape = (-1, channels, side, side)
            pixels = pixels.view(shape if form == 1 else (1, *shape))
        inputs["pixel_values"] = pixels
        inputs[grid] = torch.tensor([[1, rows, rows]] * BATCH)

    def _videos(self, inputs: Inputs) -> None:
        name = "pixel_values_videos"
        if self.has(name) and (name in self._required or self.main == name):
            frames = find(self.config, ["num_frames", "frames_per_clip"], 4)
            inputs[name] = self.draw.normal(BATCH, frames, 3, *image_size(self.config))

    # Sound.

    def _wants(self, name: str, mode: str) -> bool:
        return self.has(name) and (self.main == name or name in self._required or mode == "audio")

    def _sound(self, inputs: Inputs, mode: str, form: int) -> None:
        spectrogram = "input_features"
        if self._wants(spectrogram, mode) or (
            self.has(spectrogram) and not self.has("pixel_values")
        ):
            inputs[spectrogram] = self._spectrogram(form)
        if self._wants("input_values", mode):
            bins = mel_bins(self.config)
            shape = ((4000,), (1, 4800), (64, bins), (2, 4800))[form]
            inputs["input_values"] = 0.1 * self.draw.normal(BATCH, *shape)
        if self._wants("audio_values", "full"):
            inputs["audio_values"] = 0.1 * self.draw.normal(BATCH, 1, 4000)

    def _spectrogram(self, form: int) -> torch.Tensor:
        bins = self._features or mel_bins(self.config)
        if form:
            return self.draw.normal(BATCH, *((64, bins), (bins, 64), (1, 64, bins))[form - 1])
        positions = find(self.config, ["max_source_positions"])
        if (
            part(self.config, "audio_config") is not None
            or "whisper" in self.type
            or (positions and self.main == "input_features")
        ):
            return self.draw.normal(BATCH, bins, 2 * (positions or 64))
        return self.draw.normal(BATCH, 64, bins)

    # Whatever else has no default.

    def _rest(self, inputs: Inputs) -> None:
        wanted = set(self._required)
        if self.has("input_features_mask") and "input_features" in inputs:
            wanted.add("input_features_mask")
        if self.has("bbox") and "input_ids" in inputs:
            wanted.add("bbox")
        for name in sorted(wanted - set(inputs)):
            rule = _OTHERS.get(name)
            value = rule(self, inputs) if rule else None
            if value is not None:
                inputs[name] = value
        if self.has("noise") and self.type in ("vit_mae", "videomae"):
            height, width = image_size(self.config)
            side = first(self.config.patch_size)
            inputs["noise"] = self.draw.uniform(BATCH, (height // side) * (width // side))


def _projection_width(tower: torch.nn.Module) -> int | None:
    flat = (torch.nn.Conv2d, torch.nn.Linear)
    for kinds, name in (((torch.nn.Conv3d,), ""), (flat, "patch|embed"), (flat, "")):
        for path, module in tower.named_modules():
            if isinstance(module, kinds) and re.search(name, path):
                if isinstance(module, torch.nn.Linear):
                    return module.in_features
                return module.in_channels * math.prod(module.kernel_size)
    return None


def _states(maker: Maker, _: Inputs) -> torch.Tensor:
    return maker.draw.normal(BATCH, LENGTH, hidden_size(maker.config))


def _hidden_states(maker: Maker, inputs: Inputs) -> torch.Tensor:
    kinds = (torch.nn.Conv2d, torch.nn.Linear, torch.nn.Embedding)
    found = next((m for m in maker.model.modules() if isinstance(m, kinds)), None)
    if isinstance(found, torch.nn.Conv2d) and found.in_channels in (1, 3):
        return maker.draw.normal(BATCH, found.in_channels, *image_size(maker.config))
    return _states(maker, inputs)


def _ones(_: Maker, __: Inputs) -> torch.Tensor:
    return torch.ones(BATCH, LENGTH, dtype=torch.long)


def _sound_mask(maker: Maker, inputs: Inputs) -> torch.Tensor | None:
    features = inputs.get("input_features")
    if features is None:
        return None
    bins_first = features.shape[1] in (mel_bins(maker.config), maker._features)
    return torch.ones(features.shape[0], features.shape[-1 if bins_first else 1]).long()


def _boxes(maker: Maker, _: Inputs) -> torch.Tensor:
    boxes = torch.tensor([10, 20, 60, 90]).expand(BATCH, LENGTH, 4).clone()
    return boxes / 100 if maker.type in ("bros", "udop") else boxes


def _positions(_: Maker, __: Inputs) -> torch.Tensor:
    return torch.arange(LENGTH).expand(BATCH, LENGTH).clone()


def _past(maker: Maker, _: Inputs) -> Any:
    config = maker.config
    length = find(config, ["context_length"], 16)
    if config.model_type in ("patchtst", "patchtsmixer"):
        return maker.draw.normal(BATCH, length, find(config, ["num_input_channels"]) or 1)
    if "timesfm" in config.model_type:
        return [maker.draw.normal(length) for _ in range(BATCH)]
    return maker.draw.normal(BATCH, length + max(find(config, ["lags_sequence"], [0])))


def _codes(maker: Maker, _: Inputs) -> torch.Tensor:
    count = find(maker.config, ["num_quantizers", "n_codebooks", "num_codebooks"], 8)
    return maker.draw.integers(0, 100, BATCH, count, 20)


def _grid(_: Maker, inputs: Inputs) -> torch.Tensor:
    grid = inputs.get("image_grid_thw")
    return torch.tensor([[1, 4, 4]]) if grid is None else grid


def _spectrogram(maker: Maker, _: Inputs) -> torch.Tensor:
    return maker.draw.normal(BATCH, 20, find(maker.config, ["model_in_dim", "num_mel_bins"], 80))


_OTHERS: dict[str, Callable[[Maker, Inputs], Any]] = {
    "hidden_states": _hidden_states,
    "inputs_embeds": _states,
    "encoder_hidden_states": _states,
    "query_embeds": _states,
    "input_embeds": _states,
    "attention_mask": _ones,
    "padding_mask": _ones,
    "input_features_mask": _sound_mask,
    "feature_attention_mask": _sound_mask,
    "token_type_ids": lambda maker, inputs: torch.zeros(BATCH, LENGTH).long(),
    "bbox": _boxes,
    "position_ids": _positions,
    "cache_position": _positions,
    "past_values": _past,
    "past_observed_mask": lambda maker, inputs: torch.ones_like(inputs["past_values"]),
    "spectrogram": _spectrogram,
    "audio_codes": _codes,
    "codes": _codes,
    "pixel_mask": lambda maker, inputs: torch.ones(BATCH, *image_size(maker.config)).long(),
    "grid_thw": _grid,
    "qformer_input_ids": lambda maker, inputs: maker.draw.integers(3, 200, BATCH, 8),
}
