# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Small configurations of Transformers' model types: what a rule for one field cannot know.

`small_config` starts from the default configuration of a type, shrinks it field by field and then
restores what couples the fields: here by the names of fields, in the functions under `adjust` by
model type.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from torus.compat.shrink import (
    VOCABULARY,
    Recipe,
    Shrinker,
    all_parts,
    first,
    is_int,
    is_int_list,
    parts,
    token_ids,
)

Adjustment = Callable[[Any, Recipe], None]

_ADJUSTMENTS: list[tuple[re.Pattern[str], Adjustment]] = []


def adjust(pattern: str) -> Callable[[Adjustment], Adjustment]:
    """Register a function for the configurations whose model type matches `pattern`."""

    def register(function: Adjustment) -> Adjustment:
        _ADJUSTMENTS.append((re.compile(pattern), function))
        return function

    return register


def _make(model_type: str, **fields: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**fields)


def _decoder(model_type: str) -> Any:
    return _make(model_type, is_decoder=True, add_cross_attention=True)


def _time_series(cls: Any) -> Any:
    return cls(
        prediction_length=4,
        context_length=16,
        lags_sequence=[1, 2, 3],
        num_time_features=2,
        d_model=16,
    )


def _music(decoder: str) -> Callable[[Any], Any]:
    return lambda cls: cls(
        text_encoder=_make("t5"), audio_encoder=_make("encodec"), decoder=_make(decoder)
    )


# Types whose constructor needs more than nothing.
_DEFAULTS: dict[str, Callable[[Any], Any]] = {
    "encoder-decoder": lambda cls: cls.from_encoder_decoder_configs(
        _make("bert"), _decoder("bert")
    ),
    "vision-encoder-decoder": lambda cls: cls.from_encoder_decoder_configs(
        _make("vit"), _decoder("gpt2")
    ),
    "speech-encoder-decoder": lambda cls: cls.from_encoder_decoder_configs(
        _make("wav2vec2"), _decoder("bert")
    ),
    "vision-text-dual-encoder": lambda cls: cls.from_vision_text_configs(
        _make("vit"), _make("bert")
    ),
    "autoformer": _time_series,
    "informer": _time_series,
    "time_series_transformer": _time_series,
    "rag": lambda cls: cls(
        question_encoder=_make("dpr").to_dict(), generator=_make("bart").to_dict()
    ),
    "musicgen": _music("musicgen_decoder"),
    "musicgen_melody": _music("musicgen_melody_decoder"),
}


def default_config(model_type: str) -> Any:
    """Return the default configuration of a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    return _DEFAULTS.get(model_type, lambda cls: cls())(cls)


def small_config(model_type: str, recipe: Recipe) -> Any:
    """Return a small configuration.

    Parameters
    ----------
    model_type : str
        Such as "bert".
    recipe : Recipe

    Returns
    -------
    transformers.PreTrainedConfig
    """
    config = default_config(model_type)
    _replace_timm(config)
    numbers = {x: VOCABULARY - 2 - i for i, x in enumerate(sorted(token_ids(config)))}
    if recipe.shallow:
        config = Shrinker(recipe, numbers).rebuild(config)
        for part in all_parts(config):
            _couple(part, recipe)
    for part in list(all_parts(config)):
        for pattern, function in _ADJUSTMENTS:
            if pattern.search(part.model_type or ""):
                function(part, recipe)
    for part in all_parts(config):
        _keep_padding_inside(part)
    return config


def _replace_timm(config: Any) -> None:
    """Take the library's own ResNet for a backbone of another library, with as many stages."""
    for name, part in parts(config).items():
        if part.model_type != "timm_backbone":
            _replace_timm(part)
            continue
        count = len(getattr(part, "out_indices", None) or [1])
        stages = ["stage1", "stage2", "stage3", "stage4"]
        resnet = _make(
            "resnet",
            embedding_size=16,
            hidden_sizes=[16, 32, 64, 128],
            depths=[1, 1, 1, 1],
            out_features=stages[-min(count, 4) :],
        )
        setattr(config, name, resnet)


def _keep_padding_inside(config: Any) -> None:
    """Replace a padding token outside the vocabulary, which an embedding refuses."""
    size, padding = _get(config, "vocab_size"), _get(config, "pad_token_id")
    if is_int(size) and is_int(padding) and padding >= size:
        config.pad_token_id = 0


# Couplings by the names of fields.


def _get(config: Any, name: str, default: Any = None) -> Any:
    try:
        return getattr(config, name, default)
    except Exception:  # an attribute that each layer has for itself
        return default


def _whole(config: Any, name: str) -> int | None:
    value = _get(config, name)
    return value if is_int(value) else None


def _hidden(config: Any) -> int | None:
    for name in ("hidden_size", "d_model"):
        if is_int(_get(config, name)):
            return _get(config, name)
    return None


def _couple(config: Any, recipe: Recipe) -> None:
    for rule in (_couple_state_space, _couple_heads, _couple_sizes):
        for name, value in rule(config, recipe).items():
            with contextlib.suppress(Exception):  # no setter, or a validator refuses
                setattr(config, name, value)
    if isinstance(_get(config, "rope_parameters"), dict):
        config.rope_parameters = _fit_rope(config.rope_parameters, _head_size(config))


def _couple_state_space(config: Any, _: Recipe) -> dict[str, Any]:
    """State space models: inner width = heads x size of a head."""
    new: dict[str, Any] = {}
    hidden = _hidden(config)
    for heads, size, expand in (
        ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
        ("mamba_num_heads", "mamba_head_dim", "mamba_expand"),
        ("num_heads", "head_dim", "expand"),
    ):
        known = is_int(_get(config, size)) or _get(config, size) in (None, "auto")
        if not (is_int(_get(config, heads)) and _get(config, expand) and hidden and known):
            continue
        if size == "head_dim" and _get(config, "state_size") is None:
            continue
        inner = int(_get(config, expand) * hidden)
        width = 16 if inner % 16 == 0 else 8
        new[heads] = inner // width
        if is_int(_get(config, size)):
            new[size] = width
        if is_int(_get(config, "mamba_d_ssm")):
            new["mamba_d_ssm"] = inner
    mamba = "mamba" in config.model_type or "nemotron_h" in config.model_type
    if mamba and (_whole(config, "n_groups") or 0) > 2:
        new["n_groups"] = 2
    return new


def _couple_heads(config: Any, recipe: Recipe) -> dict[str, Any]:
    new: dict[str, Any] = {}
    hidden, heads = _hidden(config), _get(config, "num_attention_heads")
    if hidden and is_int(heads) and heads:
        derived = {"head_dim": hidden // heads, "num_key_value_heads": heads}
        new |= {k: v for k, v in derived.items() if _get(config, k, 0) is None}
    both = [_get(config, "qk_nope_head_dim"), _get(config, "qk_rope_head_dim")]
    if is_int(_get(config, "qk_head_dim")) and all(map(is_int, both)):
        new["qk_head_dim"] = sum(both)
    linear = ("linear_num_key_heads", "linear_num_value_heads")
    if recipe.narrow and all(is_int(_get(config, name)) for name in linear):
        new |= dict(zip(linear, (2, 4), strict=True))
    return new


def _couple_sizes(config: Any, recipe: Recipe) -> dict[str, Any]:
    new: dict[str, Any] = {}
    if is_int(_get(config, "index_topk")):
        new["index_topk"] = 8
    if (_whole(config, "sliding_window") or 0) > 64:
        new["sliding_window"] = 8
    if recipe.narrow and is_int(_get(config, "mm_tokens_per_image")):
        new["mm_tokens_per_image"] = 4
    if recipe.narrow and is_int(_get(config, "upsample_groups")) and _hidden(config):
        new["upsample_groups"] = _hidden(config)
    if is_int(_get(config, "n_routed_experts")) and _get(config, "num_experts_per_tok", 2) is None:
        new["num_experts_per_tok"] = 2
    if _whole(config, "num_kv_shared_layers"):
        new["num_kv_shared_layers"] = 0
    return new


def _head_size(config: Any) -> int | None:
    if is_int(_get(config, "head_dim")):
        return _get(config, "head_dim")
    hidden, heads = _hidden(config), _get(config, "num_attention_heads")
    return hidden // heads if hidden and is_int(heads) and heads else None


def _fit_rope(parameters: Any, head_size: int | None) -> Any:
    if not isinstance(parameters, dict):
        return parameters
    fitted = dict(parameters)
    for name, value in parameters.items():
        if isinstance(value, dict):
            fitted[name] = _fit_rope(value, head_size)
        elif name == "mrope_section" and is_int_list(value) and head_size:
            fitted[name] = fit_sections(value, head_size // 2)
        elif name in ("long_factor", "short_factor") and isinstance(value, list) and head_size:
            fitted[name] = value[: max(1, head_size // 2)]
    return fitted


def fit_sections(sections: Sequence[int], total: int) -> list[int]:
    """Return sections of a rotary embedding in about the same proportions, `total` in all."""
    fitted = [max(1, x * total // sum(sections)) for x in sections]
    fitted[0] += total - sum(fitted)
    return fitted


# By model type.


@adjust(r"^bamba$")
def _bamba(c: Any, _: Recipe) -> None:
    c.attn_layer_indices = [1]


@adjust(r"^(bailing_hybrid|granitemoehybrid)$")
def _two_kinds_of_layers(c: Any, recipe: Recipe) -> None:
    if recipe.scaled:
        c.num_hidden_layers, c.layer_types = 2, ["linear_attention", "full_attention"]


@adjust(r"^(efficientnet|align_vision_model)$")
def _efficientnet(c: Any, recipe: Recipe) -> None:
    if recipe.narrow:
        c.width_coefficient, c.depth_coefficient, c.hidden_dim = 1.0, 1.0, 1280


@adjust(r"^align$")
def _align(c: Any, recipe: Recipe) -> None:
    if recipe.scaled:
        c.projection_dim = 320 if recipe.narrow else 640


@adjust(r"^dbrx$")
def _dbrx(c: Any, _: Recipe) -> None:
    c.attn_config.rope_theta = 10000.0
    c.attn_config.clip_qkv = c.attn_config.clip_qkv or 8.0


@adjust(r"^chameleon$")
def _chameleon(c: Any, _: Recipe) -> None:
    c.vq_config.num_embeddings = min(getattr(c.vq_config, "num_embeddings", 8192), 900)
    digits = "ABCDEFGHIJ"
    names = (
        "IMGIMG" + "".join(digits[int(d)] for d in str(i)) + "Z"
        for i in range(c.vq_config.num_embeddings)
    )
    c.vocabulary_map = {"<image>": 5, **{name: 10 + i for i, name in enumerate(names)}}
    c.image_token_id = 5


@adjust(r"^dots1$")
def _dots(c: Any, recipe: Recipe) -> None:
    c.n_routed_experts, c.n_shared_experts, c.num_experts_per_tok = 4, 1, 2
    c.n_group, c.topk_group, c.first_k_dense_replace = 1, 1, 1
    if recipe.narrow or not is_int(getattr(c, "moe_intermediate_size", None)):
        c.moe_intermediate_size = 64


@adjust(r"^hrm_text$")
def _hrm(c: Any, recipe: Recipe) -> None:
    if recipe.scaled:
        c.num_layers_per_stack = 1
        c.num_hidden_layers = c.H_cycles * (c.L_cycles + 1)
        if isinstance(getattr(c, "layer_types", None), list):
            c.layer_types = (c.layer_types * c.num_hidden_layers)[: c.num_hidden_layers]


@adjust(r"^eomt")
def _eomt(c: Any, recipe: Recipe) -> None:
    if recipe.scaled:
        c.num_hidden_layers, c.num_blocks = 3, 1


@adjust(r"^(emu3_vqgan|apertus1p5_vision_tokenizer|glm_image_vqmodel|chameleon_vqgan|janus_vqgan)$")
def _image_tokenizers(c: Any, recipe: Recipe) -> None:
    small = {
        "base_channels": 32,
        "codebook_size": 512,
        "embed_dim": 32,
        "latent_channels": 32,
        "channel_multiplier": [1, 1],
        "resolution": 64,
        "num_embeddings": 512,
        "z_channels": 32,
    }
    if c.model_type == "chameleon_vqgan":
        del small["num_embeddings"]
    if c.model_type == "emu3_vqgan":
        small["hidden_size"] = small["base_channels"]
    for name, value in small.items():
        if recipe.shallow and hasattr(c, name):
            setattr(c, name, value)


@adjust(r"^blt")
def _blt(c: Any, recipe: Recipe) -> None:
    if recipe.shallow and hasattr(c, "encoder_hash_byte_group_vocab"):
        c.encoder_hash_byte_group_vocab = 100


@adjust(r"^emu3$")
def _emu3(c: Any, _: Recipe) -> None:
    c.vq_config.codebook_size = min(c.vq_config.codebook_size, 512)
    images = {f"<|visual token {i:06d}|>": 10 + i for i in range(c.vq_config.codebook_size)}
    c.vocabulary_map = {"<image>": 5, "<|extra_200|>": 6, **images}


@adjust(r"^diffusion_gemma_text$")
def _diffusion_gemma(c: Any, _: Recipe) -> None:
    c.num_experts, c.top_k_experts = 4, 2
    if not is_int(getattr(c, "moe_intermediate_size", None)):
        c.moe_intermediate_size = 64


@adjust(r"^cohere_compass_text$")
def _cohere_compass(c: Any, _: Recipe) -> None:
    kind = {"rope_type": "default", "rope_theta": 10000.0}
    c.rope_parameters = {k: dict(kind) for k in set(c.layer_types)}


@adjust(r"^(deepseek_ocr2|unlimited_ocr)_vision$")
def _ocr_vision(c: Any, recipe: Recipe) -> None:
    """Let the first encoder end in the width of the second."""
    if recipe.narrow:
        width = c.encoder_config.hidden_size
        c.sam_config.downsample_channels = [2 * width, width]


@adjust(r"^deepseek_ocr2_text$")
def _deepseek_ocr(c: Any, _: Recipe) -> None:
    if getattr(c, "mlp_layer_types", None) is None:
        c.mlp_layer_types = ["dense"] + ["sparse"] * (c.num_hidden_layers - 1)


@adjust(r"^jamba$")
def _jamba(c: Any, recipe: Recipe) -> None:
    if recipe.scaled:
        c.num_hidden_layers, c.attn_layer_period, c.attn_layer_offset = 4, 2, 1
        c.expert_layer_period, c.expert_layer_offset = 2, 1


@adjust(r"^zamba2?$")
def _zamba(c: Any, recipe: Recipe) -> None:
    """Attention sees two hidden states side by side; two layers share its weights."""
    if recipe.scaled:
        c.num_hidden_layers, c.layers_block_type = 4, ["linear_attention", "hybrid"] * 2
        c.hybrid_layer_ids = [1, 3]
        c.attention_hidden_size = 2 * c.hidden_size
        c.attention_head_dim = c.attention_hidden_size // c.num_attention_heads


@adjust(r"^recurrent_gemma$")
def _recurrent_gemma(c: Any, recipe: Recipe) -> None:
    if recipe.scaled:
        c.num_hidden_layers = 3


@adjust(r"^lfm2_moe$")
def _lfm2(c: Any, _: Recipe) -> None:
    if getattr(c, "layer_types", None) is None or len(c.layer_types) != c.num_hidden_layers:
        c.layer_types = ["conv", "full_attention"] * (c.num_hidden_layers // 2)
        c.num_hidden_layers = len(c.layer_types)


@adjust(r"^llama4_vision_model$")
def _llama4(c: Any, recipe: Recipe) -> None:
    if recipe.narrow:
        c.intermediate_size = 4 * c.hidden_size
        c.projector_input_dim = c.projector_output_dim = c.vision_output_dim = 64


@adjust(r"^(sam|sam_hq)$")
def _sam(c: Any, recipe: Recipe) -> None:
    if recipe.narrow:
        c.vision_config.image_size, c.vision_config.window_size = 128, 4
        prompt = c.prompt_encoder_config
        prompt.image_size, prompt.image_embedding_size = 128, 128 // prompt.patch_size
        prompt.hidden_size = c.vision_config.output_channels = c.mask_decoder_config.hidden_size
        c.vision_config.num_pos_feats = prompt.hidden_size // 2
        c.mask_decoder_config.vit_dim = c.vision_config.hidden_size


@adjust(r"^sam2_hiera_det_model$")
def _hiera(c: Any, recipe: Recipe) -> None:
    if recipe.narrow and recipe.small_images:
        c.image_size, c.hidden_size = [128, 128], 16
        c.embed_dim_per_stage, c.num_attention_heads_per_stage = [16, 32, 64, 128], [1, 2, 4, 8]
        c.blocks_per_stage, c.global_attention_blocks = [1, 1, 2, 1], [3]


@adjust(r"^sam2_vision_model$")
def _sam2_vision(c: Any, recipe: Recipe) -> None:
    if recipe.narrow and recipe.small_images:
        c.backbone_channel_list = [128, 64, 32, 16]
        c.backbone_feature_sizes = [[32, 32], [16, 16], [8, 8]]


@adjust(r"^(sam2|sam2_video|edgetam|edgetam_video)$")
def _sam2(c: Any, recipe: Recipe) -> None:
    if recipe.narrow and recipe.small_images:
        c.prompt_encoder_config.image_size = 128


@adjust(r"^(depth_anything|prompt_depth_anything|dpt|zoedepth|upernet|vitmatte)$")
def _dense_prediction(c: Any, recipe: Recipe) -> None:
    """Keep as many layers of the backbone as the head reads."""
    backbone = getattr(c, "backbone_config", None)
    if recipe.scaled and is_int(getattr(backbone, "num_hidden_layers", None)):
        backbone.num_hidden_layers = 4
        backbone.stage_names = ["stem"] + [f"stage{i}" for i in range(1, 5)]
        count = len(getattr(c, "neck_hidden_sizes", None) or [0] * 4)
        if hasattr(backbone, "set_output_features_output_indices"):
            backbone.set_output_features_output_indices(
                out_features=[f"stage{i}" for i in range(5 - count, 5)], out_indices=None
            )
    if recipe.narrow and c.model_type.endswith("depth_anything"):
        c.reassemble_hidden_size = backbone.hidden_size


@adjust(r"^(rt_detr|rt_detr_v2|d_fine|deimv2|pp_doclayout_v[23])$")
def _hybrid_encoder(c: Any, recipe: Recipe) -> None:
    if recipe.narrow:
        c.decoder_in_channels = [c.encoder_hidden_dim] * len(c.decoder_in_channels)


@adjust(r"^oneformer$")
def _oneformer(c: Any, recipe: Recipe) -> None:
    """Keep the two widths equal: convolutions between them would stand in a list, unregistered."""
    if recipe.narrow:
        c.conv_dim = c.mask_dim = c.hidden_dim


@adjust(r"^lw_detr$")
def _lw_detr(c: Any, recipe: Recipe) -> None:
    """Give the projector a scale: by default it has none."""
    c.projector_scale_factors, c.projector_in_channels = [1.0], [c.d_model]
    c.num_feature_levels = 1
    if recipe.scaled:
        c.num_queries, backbone = 12, c.backbone_config
        stages = [f"stage{i}" for i in range(1, backbone.num_hidden_layers + 1)]
        backbone.stage_names = ["stem", *stages]
        backbone.set_output_features_output_indices(out_features=stages, out_indices=None)


@adjust(r"^depth_pro$")
def _depth_pro(c: Any, recipe: Recipe) -> None:
    """Every encoder sees patches of one size, which stands in three places."""
    if recipe.narrow:
        c.patch_size, c.intermediate_hook_ids = 32, [1, 0]
        for part in (c.image_model_config, c.patch_model_config, c.fov_model_config):
            part.image_size, part.patch_size = 32, 8


@adjust(r"^zoedepth$")
def _zoedepth(c: Any, recipe: Recipe) -> None:
    if recipe.narrow:
        c.bottleneck_features = c.fusion_hidden_size


@adjust(r"^vitmatte$")
def _vitmatte(c: Any, _: Recipe) -> None:
    """Take lists: they are added to a list."""
    for name in ("convstream_hidden_sizes", "fusion_hidden_sizes"):
        setattr(c, name, list(getattr(c, name)))


@adjust(r"^clap_audio_model$")
def _clap(c: Any, recipe: Recipe) -> None:
    if recipe.narrow:
        c.patch_embeds_hidden_size, c.hidden_size = 16, 128
        c.depths, c.num_attention_heads = [1, 1, 1, 1], [1, 2, 4, 8]


@adjust(r"^esm$")
def _esm(c: Any, _: Recipe) -> None:
    c.vocab_size, c.pad_token_id, c.mask_token_id = 33, 1, 32


@adjust(r"^ernie4_5_vl_moe_text$")
def _ernie(c: Any, recipe: Recipe) -> None:
    if recipe.narrow and isinstance(c.rope_parameters, dict):
        c.rope_parameters["mrope_section"] = [3, 3, 2]


@adjust(r"^(blip-2|instructblip|instructblipvideo)$")
def _blip2(c: Any, _: Recipe) -> None:
    if getattr(c, "image_token_id", None) is None:
        c.image_token_id = 900
    if hasattr(c, "video_token_id") and c.video_token_id is None:
        c.video_token_id = 901


def patch_size(config: Any) -> int:
    """Return the side of a patch of a vision configuration, 14 if it does not say."""
    size = first(_get(config, "patch_size", 14))
    return size if is_int(size) else 14
