# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Make a configuration of Transformers small by the names of its fields.

Every field is looked at on its own: widths, heads, layers, vocabularies and image sizes have names
that hundreds of configurations share. What couples fields of one model type is in `adjust`.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

VOCABULARY = 1024


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a configuration is made small.

    Attributes
    ----------
    name : str
    narrow : bool
        Set widths and heads to small numbers.
    divide : int
        Divide all widths by this number instead.
    shallow : bool
        Drop layers, experts and vocabulary.
    small_images : bool
        Shrink images, if narrow.
    layers : int
        Keep the first so many layers instead of one of each kind; 0: one of each kind.
    """

    name: str
    narrow: bool = False
    divide: int = 1
    shallow: bool = True
    small_images: bool = True
    layers: int = 0

    @property
    def scaled(self) -> bool:
        """Whether widths change at all."""
        return self.narrow or self.divide > 1


# In the order in which they are tried.
RECIPES = (
    Recipe("narrow", narrow=True),
    Recipe("narrow, full images", narrow=True, small_images=False),
    Recipe("narrow, 8 layers", narrow=True, layers=8),
    Recipe("divided by 8", divide=8),
    Recipe("divided by 4", divide=4),
    Recipe("shallow"),
    Recipe("as published", shallow=False),
)

_LAYERS = re.compile(
    r"(^|_)(num_hidden_layers|n_layers?|num_layers|layers|depth|num_layers_per_stack|n_head_layers)$"
    r"|num_hidden_layers|_num_layers$|^num_encoder_layers$|^num_decoder_layers$|_depth$"
    r"|num_.*_layers$|^n_.*_layers$"
)
_NOT_LAYERS = re.compile(
    r"feat_extract|lstm_layers|no_rope|kv_shared|adapter_layers|window_layers|fov_head|head_depth"
    r"|residual_layers|_add_layers|color|encode_proj|max_depth|min_depth|mel_attn|mlp_only"
)
_EXPERTS = re.compile(
    r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_moe_experts"
    r"|zero_expert_num)$"
)
_EXPERTS_USED = re.compile(
    r"^(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k_experts|experts_per_token"
    r"|moe_top_k)$"
)
_KEY_VALUE_HEADS = re.compile(r"(key_value_heads|kv_heads|num_kv_heads)$")
_HEADS = re.compile(r"(attention_heads|num_heads|n_heads?|_heads|_n_head)$")
_HEAD_SIZE = re.compile(r"(^|_)(head_dim|kv_channels|d_kv|d_head|head_size|dim_head|dim_per_head)$")
_INNER = re.compile(
    r"(intermediate_size|ffn_dim|ffn_hidden_size|feedforward_dim|dim_feedforward|d_ff|^dff|dim_ff"
    r"|mlp_dim|d_inner|intermediate_dim|n_inner|linear_units|mlp_hidden_size"
    r"|feed_forward_hidden_size|intermediate_top|intermediate_size_mlp)$"
)
_WIDTH = re.compile(
    r"(hidden_size|d_model|n_embd|embed_dim|^dim|hidden_dim|embedding_size|embedding_dim"
    r"|projection_dim|proj_dim|output_dim|out_hidden_size|projection_size|projection_hidden_dim"
    r"|emb_dim|model_dim|hidden_features|output_channels|mask_feature_size|fusion_hidden_size"
    r"|fpn_hidden_size|pooler_output_size|out_dim|codevector_dim|output_proj_dims"
    r"|attention_hidden_size|classifier_proj_size|input_dim|query_dim|d_latents|latent_size"
    r"|bottleneck_.*size|width|channels_dim|adapter_in_dim|adapter_out_dim|proj_size|mm_embed_dim"
    r"|lru_width|hidden_size_per_layer_input|q_lora_rank|o_lora_rank|xvector_output_dim"
    r"|backbone_hidden_size)$"
)
_POSITIONS = re.compile(
    r"(max_position_embeddings|n_positions|n_ctx|max_seq_len|max_seq_length|model_max_length"
    r"|max_sequence_length|max_source_positions|max_target_positions"
    r"|original_max_position_embeddings|seq_length|max_encoder_position_embeddings"
    r"|max_decoder_position_embeddings)$"
)
_TOKEN = re.compile(r"(_token_id|_token_index|_token_ids|_token|_index|_id|_ids|_idx)$")
_LAYER_NUMBERS = re.compile(r"(index|indexes|indices|idxs|_layers|layer_ids|_layer_idx|_layer)$")
_UNTOUCHED = re.compile(
    r"^(id2label|label2id|num_labels|return_dict|chunk_size_feed_forward|_.*|architectures"
    r"|transformers_version|ignore_index|semantic_loss_ignore_index|ce_ignore_index|problem_type"
    r"|dtype|torch_dtype)$"
)
# Their parts are given to another constructor than the class itself.
_COMPOSED = frozenset(
    [
        "encoder-decoder",
        "vision-encoder-decoder",
        "speech-encoder-decoder",
        "rag",
        "vision-text-dual-encoder",
        "musicgen",
        "musicgen_melody",
    ]
)


def is_int(value: Any) -> bool:
    """Return whether a value is an integer and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_int_list(value: Any) -> bool:
    """Return whether a value is a non-empty list or tuple of integers."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(is_int(x) for x in value)


def first(value: Any) -> Any:
    """Return the first element of a list or tuple, anything else as it is."""
    return value[0] if isinstance(value, list | tuple) else value


def parts(config: Any) -> dict[str, Any]:
    """Return the configurations that a configuration holds, by field."""
    from transformers import PreTrainedConfig

    return {k: v for k, v in config.__dict__.items() if isinstance(v, PreTrainedConfig)}


def all_parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and all inside it."""
    yield config
    for part in parts(config).values():
        yield from all_parts(part)


def token_ids(config: Any) -> set[int]:
    """Return the numbers of special tokens that lie beyond the small vocabulary."""
    found = set()
    for part in all_parts(config):
        for name, value in part.__dict__.items():
            if _TOKEN.search(name) and not _LAYER_NUMBERS.search(
                name.replace("token_index", "token_id")
            ):
                values = value if isinstance(value, list | tuple) else [value]
                found |= {x for x in values if is_int(x) and x >= VOCABULARY}
    return found


class Shrinker:
    """Shrinks one configuration by one recipe.

    Parameters
    ----------
    recipe : Recipe
    tokens : dict of int to int
        New numbers of the special tokens beyond the vocabulary.
    """

    def __init__(self, recipe: Recipe, tokens: dict[int, int]) -> None:
        self._recipe = recipe
        self._tokens = tokens
        self._fields: dict[str, Any] = {}

    def rebuild(self, config: Any) -> Any:
        """Return a small copy.

        It is made by the constructor where that takes the changed fields, so that derived values
        are computed anew, else field by field.
        """
        inner = {name: self.rebuild(part) for name, part in parts(config).items()}
        changed = self.changes(config)
        small = None
        if config.model_type not in _COMPOSED:
            small = _construct(config, changed, inner)
        if small is None:
            small = copy.deepcopy(config)
        else:  # what the constructor derived may be large again
            changed = {k: v for k, v in self.changes(small).items() if k not in inner}
        for name, value in {**changed, **inner}.items():
            _set(small, name, value)
        _keep_outputs(config, small)
        return small

    def changes(self, config: Any) -> dict[str, Any]:
        """Return the new values of the fields that change, inner configurations left out."""
        self._fields = {k: v for k, v in config.__dict__.items() if not _UNTOUCHED.match(k)}
        new = self._layers()
        for name, value in self._fields.items():
            if name not in new:
                found = self._one(name, value)
                if found is not None:
                    new[name] = found
        return new

    # Layers, and the lists that have one entry for each.

    def _layers(self) -> dict[str, Any]:
        names = [k for k, v in self._fields.items() if self._counts_layers(k, v)]
        new: dict[str, Any] = {}
        for count in {self._fields[name] for name in names}:
            rows = self._rows(count)
            numbers = self._numbers(count, rows)
            kept = self._kept_layers(count, rows, numbers)
            new |= {name: len(kept) for name in names if self._fields[name] == count}
            new |= {k: type(v)(v[i] for i in kept) for k, v in rows.items()}
            new |= {k: _spread(v, len(kept)) for k, v in numbers.items()}
        return new

    def _counts_layers(self, name: str, value: Any) -> bool:
        if not (is_int(value) and value > 2 and _LAYERS.search(name)) or _NOT_LAYERS.search(name):
            return False
        stages = [
            len(self._fields[k])
            for k in ("depths", "hidden_sizes", "stage_names")
            if isinstance(self._fields.get(k), list | tuple)
        ]
        return not (name == "num_layers" and value in stages)

    def _rows(self, count: int) -> dict[str, Sequence[Any]]:
        return {
            k: v
            for k, v in self._fields.items()
            if isinstance(v, list | tuple) and len(v) == count > 3
        }

    def _numbers(self, count: int, rows: dict[str, Any]) -> dict[str, Sequence[int]]:
        return {
            k: v
            for k, v in self._fields.items()
            if is_int_list(v)
            and _LAYER_NUMBERS.search(k)
            and "encode_proj_layers" not in k
            and k not in rows
            and 0 <= max(v) <= count
            and not _TOKEN.search(k.replace("_index", "_idxx"))
        }

    def _kept_layers(self, count: int, rows: dict[str, Any], numbers: dict[str, Any]) -> list[int]:
        wanted = 2
        if numbers:
            wanted = min(count, max(2, min(4, max(map(len, numbers.values())))) + 1)
        if self._recipe.layers:
            return list(range(min(count, self._recipe.layers)))
        if not rows:
            return list(range(min(count, wanted)))
        kept = _one_of_each(count, rows)
        others = (i for i in range(count) if i not in kept)
        while len(kept) < min(wanted, count):
            kept.append(next(others))
        return sorted(kept)

    # Single fields.

    def _one(self, name: str, value: Any) -> Any:
        for rule in (_bounded, self._token, self._length, self._image):
            found = rule(name, value)
            if found is not None:
                return found[0]
        if self._recipe.narrow:
            return self._narrow(name, value)
        return self._divided(name, value) if self._recipe.divide > 1 else None

    def _token(self, name: str, value: Any) -> tuple[Any] | None:
        if not _TOKEN.search(name) or not (is_int(value) or is_int_list(value)):
            return None
        if is_int(value):
            return (self._tokens.get(value),)
        return (type(value)(self._tokens.get(x, x) for x in value),)

    def _length(self, name: str, value: Any) -> tuple[Any] | None:
        if not _POSITIONS.search(name) or not is_int(value):
            return None
        if name == "max_source_positions" and 1000 <= value <= 3000:
            return (64,)
        return (512 if value > 1024 else None,)

    def _image(self, name: str, value: Any) -> tuple[Any] | None:
        recipe = self._recipe
        if not (recipe.narrow and recipe.small_images and name == "image_size"):
            return None
        patch = first(self._fields.get("patch_size", self._fields.get("vision_patch_size")))
        patch = patch if is_int(patch) else 32
        if is_int(value) and value > 64:
            return (max(64, 4 * patch) if patch <= 32 else value,)
        if is_int_list(value) and len(value) == 2 and min(value) > 64 and patch <= 32:
            return (type(value)(max(64, 4 * patch) for _ in value),)
        return (None,)

    def _narrow(self, name: str, value: Any) -> Any:
        for pattern, rule in _NARROW:
            if pattern.search(name):
                return rule(self._fields, name, value)
        return None

    def _divided(self, name: str, value: Any) -> Any:
        by = self._recipe.divide
        named = any(p.search(name) for p in (_HEAD_SIZE, _INNER, _WIDTH))
        if not named and name not in ("kv_lora_rank", "rotary_dim"):
            return None
        if is_int(value) and value >= 4 * by and value % by == 0:
            return value // by
        if is_int_list(value) and all(x % by == 0 for x in value):
            return type(value)(x // by for x in value)
        return None


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # a property without a setter, or a validator's refusal: it stays as it is
        return


def _keep_outputs(config: Any, small: Any) -> None:
    """Let a backbone yield the stages that it did, which are no fields of its constructor."""
    names, features = getattr(config, "stage_names", None), getattr(config, "out_features", None)
    if names and features and list(names) == list(getattr(small, "stage_names", ())):
        small.set_output_features_output_indices(out_features=list(features), out_indices=None)


def _construct(config: Any, changed: dict[str, Any], inner: dict[str, Any]) -> Any:
    cls = type(config)
    fields = {f.name: f for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    chosen = {k: v for k, v in changed.items() if k in fields}
    for arguments in (_arguments(config, fields, changed, inner), {**chosen, **inner}):
        try:
            return cls(**arguments)
        except Exception:  # whatever its validators raise
            continue
    return None


def _arguments(
    config: Any, fields: dict[str, Any], changed: dict[str, Any], inner: dict[str, Any]
) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, value in config.__dict__.items():
        if name in inner or name not in fields or _UNTOUCHED.match(name):
            continue
        field = fields[name]
        derived = field.default is None and name in ("head_dim", "num_key_value_heads")
        if name in changed and not derived:
            chosen[name] = changed[name]
        elif name not in changed and _was_set(field, value):
            chosen[name] = value
    return {**chosen, **inner}


def _was_set(field: Any, value: Any) -> bool:
    """Whether a value is not what the constructor makes of nothing."""
    if field.default_factory is not dataclasses.MISSING:
        return isinstance(value, list | tuple) and list(value) != list(field.default_factory())
    if field.default is None:
        return value is not None and not isinstance(value, list | tuple | dict)
    return field.default is not dataclasses.MISSING and value != field.default


def _spread(numbers: Sequence[int], count: int) -> Sequence[int]:
    """Numbers of layers, spread over so many layers."""
    length = min(len(numbers), count)
    places = (max(0, round((i + 1) * count / length) - 1) for i in range(length))
    return type(numbers)(sorted({min(count - 1, place) for place in places}))


def _one_of_each(count: int, rows: dict[str, Sequence[Any]]) -> list[int]:
    """Return the first layer of each kind, as the rows tell them apart; five at most."""

    def counts_up(row: Sequence[Any], i: int) -> bool:
        return is_int(row[i]) and len(set(map(repr, row))) == count

    seen, kept = set(), []
    for i in range(count):
        kind = tuple(
            "float" if isinstance(row[i], float) else repr(row[i])
            for row in rows.values()
            if not counts_up(row, i)
        )
        if kind not in seen and len(kept) < 5:
            seen.add(kind)
            kept.append(i)
    return kept


# Bounds that hold for every recipe that drops anything.
_BOUNDS: list[tuple[re.Pattern[str], int]] = [
    (
        re.compile(
            r"^(first_k_dense_replace|num_dense_layers|moe_layer_start_index|topk_group"
            r"|num_nextn_predict_layers|moe_layer_end_index)$"
        ),
        1,
    ),
    (_EXPERTS, 4),
    (_EXPERTS_USED, 2),
    (re.compile(r"^(n_group|num_expert_group)$"), 2),
    (re.compile(r"vocab_size"), VOCABULARY),
    (re.compile(r"^num_queries$"), 20),
]


def _bounded(name: str, value: Any) -> tuple[Any] | None:
    for pattern, bound in _BOUNDS:
        if pattern.search(name):
            if is_int(value):
                return (min(value, bound),)
            if is_int_list(value) and bound <= 4:
                return (type(value)(min(bound, x) for x in value),)
            return (None,)
    return None


def _key_value_heads(fields: dict[str, Any], name: str, value: Any) -> Any:
    if not is_int(value):
        return None
    query = name.replace("key_value_heads", "attention_heads").replace(
        "kv_heads", "attention_heads"
    )
    heads = fields.get(query, fields.get("num_attention_heads", fields.get("num_heads", 0)))
    if value == 1:
        return 1
    return 4 if value == heads or (is_int(heads) and heads < value) else 2


def _heads(_: dict[str, Any], __: str, value: Any) -> Any:
    if is_int(value):
        return min(value, 4)
    return type(value)(min(x, 2**i) for i, x in enumerate(value)) if is_int_list(value) else None


def _head_size(_: dict[str, Any], name: str, value: Any) -> Any:
    if not is_int(value):
        return None
    if "rope" in name:
        return 8 if value else value
    return 24 if name == "qk_head_dim" else min(value, 16)


def _at_most(bound: int) -> Callable[[dict[str, Any], str, Any], Any]:
    return lambda _, __, value: min(value, bound) if is_int(value) else None


def _ones(_: dict[str, Any], __: str, value: Any) -> Any:
    return type(value)(1 for _ in value) if is_int_list(value) else None


_NARROW: list[tuple[re.Pattern[str], Callable[[dict[str, Any], str, Any], Any]]] = [
    # With few heads the scores of sparse attention tie at 0, and which of the equal ones are among
    # the greatest is free.
    (re.compile(r"^index_n_heads$"), _at_most(64)),
    (_KEY_VALUE_HEADS, _key_value_heads),
    (_HEADS, _heads),
    (_HEAD_SIZE, _head_size),
    (_INNER, _at_most(128)),
    (re.compile(r"^kv_lora_rank$"), _at_most(16)),
    (_WIDTH, _at_most(64)),
    (re.compile(r"^rotary_dim$"), _at_most(8)),
    (re.compile(r"^(depths|num_block_repeats)$"), _ones),
]
