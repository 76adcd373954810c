# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Build a small model of a Transformers model type, with inputs that its forward pass takes.

Classes, recipes for the configuration and kinds of input are tried in turn until a forward pass on
the CPU succeeds.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import re
import time
from collections.abc import Iterator
from typing import Any

import torch

from torus.compat import trees
from torus.compat.adjust import default_config, fit_sections, small_config
from torus.compat.inputs import MODES, Draw, Inputs, Maker
from torus.compat.shrink import RECIPES, Recipe, all_parts, parts
from torus.compat.special_inputs import add_placeholders

_MOST_PARAMETERS = 75_000_000
_CLASSES = 4
_SOUND = ("input_features", "input_values", "audio_values")
# Without a cache of keys and values, when nothing else works.
_NO_CACHE = -1
# Classes with a head say more than the bare model; the first that the type has is taken.
_HEADS = (
    "CAUSAL_LM",
    "MULTIMODAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "MASKED_LM",
    "OBJECT_DETECTION",
    "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "MASK_GENERATION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "TEXT_TO_SPECTROGRAM",
    "TEXT_TO_WAVEFORM",
    "TIME_SERIES_PREDICTION",
    "KEYPOINT_DETECTION",
    "KEYPOINT_MATCHING",
)


class NotBuiltError(Exception):
    """No forward pass succeeded on the CPU; the text says what was tried."""


class NoModelError(Exception):
    """The type names a configuration without a model of its own."""


@dataclasses.dataclass
class Subject:
    """A model and what its forward pass takes, on the CPU.

    Attributes
    ----------
    model : torch.nn.Module
        In evaluation mode; it has not run yet.
    inputs : dict
        Arguments of ``forward``.
    recipe : str
        How it was made small, empty if it was written small.
    """

    model: torch.nn.Module
    inputs: Inputs
    recipe: str = ""

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())


def model_types() -> list[str]:
    """Return all model types of the installed Transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return list(CONFIG_MAPPING_NAMES)


def model_classes(model_type: str) -> list[type]:
    """Return the classes of a model type, those that say most first."""
    import transformers

    names: dict[str, None] = {}
    for mapping in _mappings(model_type):
        found = mapping.get(model_type, ())
        names |= dict.fromkeys(found if isinstance(found, list | tuple) else [found])
    classes = [getattr(transformers, name, None) for name in names]
    return [c for c in classes if c is not None] or _classes_of_config(model_type)


def _mappings(model_type: str) -> Iterator[dict[str, Any]]:
    from transformers.models.auto import modeling_auto

    heads = list(_HEADS)
    config = default_config(model_type)
    inner = parts(config)
    whole = getattr(config, "is_encoder_decoder", False) or len(inner) >= 2
    if whole or "text_config" in inner:  # not the decoder alone
        heads = [*heads[1:], heads[0]]
    for head in heads:
        yield getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {})
    yield modeling_auto.MODEL_MAPPING_NAMES
    for name in sorted(dir(modeling_auto)):
        if name.endswith("_MAPPING_NAMES") and name != "CONFIG_MAPPING_NAMES":
            yield getattr(modeling_auto, name)


def _classes_of_config(model_type: str) -> list[type]:
    """Return the models in the module beside the configuration's that are made of it."""
    import importlib

    from transformers import PreTrainedModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type]
    try:
        name = config.__module__.replace(".configuration_", ".modeling_")
        module = importlib.import_module(name)
    except ImportError:
        return []
    return [
        value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, PreTrainedModel)
        and getattr(value, "config_class", None) is config
        and not key.endswith("PreTrainedModel")
    ]


def build(model_type: str, attention: str = "", seconds: float = 30.0) -> Subject:
    """Build a model and its inputs.

    Parameters
    ----------
    model_type : str
    attention : str
        Which of the library's implementations, such as "eager"; empty: the library's choice.
    seconds : float
        Processor time after which no more is tried.

    Returns
    -------
    Subject

    Raises
    ------
    NoModelError
        If the type has no model class.
    NotBuiltError
        If no forward pass succeeded.
    """
    classes = model_classes(model_type)
    if not classes:
        raise NoModelError(f"{model_type} is a configuration without a model class")
    errors: list[str] = []
    end = time.process_time() + seconds
    for cls in classes[:_CLASSES]:
        for recipe, config in _configs(model_type, cls, errors):
            if time.process_time() > end:
                raise NotBuiltError("; ".join(errors[-3:]) or "no time left")
            try:
                _choose_attention(config, attention)
                subject = _Attempt(cls, config, recipe, errors).run()
            except Exception as error:  # of the model's constructor, of any type
                errors.append(f"{cls.__name__}, {recipe.name}: {_line(error)}")
                continue
            if subject is not None:
                return subject
            gc.collect()
    raise NotBuiltError("; ".join(errors[:2] + errors[2:][-1:]))


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def _configs(model_type: str, cls: type, errors: list[str]) -> Iterator[tuple[Recipe, Any]]:
    seen = set()
    for recipe in RECIPES:
        try:
            config = small_config(model_type, recipe)
        except Exception as error:  # of the configuration's validators, of any type
            errors.append(f"{cls.__name__}, {recipe.name}: {_line(error)}")
            continue
        text = _text(config)
        if text not in seen:
            seen.add(text)
            yield recipe, config


def _choose_attention(config: Any, attention: str) -> None:
    for part in all_parts(config):
        if attention:
            part._attn_implementation = attention


def _text(config: Any) -> str:
    try:
        return config.to_json_string(use_diff=False)
    except Exception:  # a field that JSON does not know
        return repr(config)


class _Attempt:
    """One class with one configuration."""

    def __init__(self, cls: Any, config: Any, recipe: Recipe, errors: list[str]) -> None:
        self._check_size(cls, config)
        torch.manual_seed(0)
        self._model = cls(copy.deepcopy(config)).eval()
        self._recipe, self._errors = recipe, errors
        self._features: int | None = None
        self._repairs = 3
        perturb(self._model)
        _use_encode(self._model)

    def _check_size(self, cls: Any, config: Any) -> None:
        try:
            with torch.device("meta"):
                count = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
        except Exception as error:
            # The meta device has limits of its own: then it is tried for real.
            if not re.search(r"meta|item\(\)|numpy|data-dependent|FakeTensor", str(error), re.I):
                raise
            return
        if count > _MOST_PARAMETERS:
            raise NotBuiltError(f"too big: {count / 1e6:.0f} million parameters")

    def run(self) -> Subject | None:
        """Return what works, or None."""
        waiting, seen = self._forms(), set()
        while waiting:
            mode, form = waiting.pop(0)
            name = f"{type(self._model).__name__}, {self._recipe.name}, {mode} {form}"
            try:
                inputs = self._inputs(mode, form)
                sign = str(trees.move(inputs, lambda x: x.shape))
                if not inputs or sign in seen:
                    continue
                seen.add(sign)
                self._forward(inputs)
                return Subject(self._model, inputs, self._recipe.name)
            except Exception as error:  # whatever a model raises about its arguments
                self._errors.append(f"{name}: {_line(error)}")
                if self._repairs > 0 and self._repair(str(error)):
                    self._repairs -= 1
                    seen.clear()
                    waiting.insert(0, (mode, form))
        return None

    def _forms(self) -> list[tuple[str, int]]:
        forms = [(mode, 0) for mode in MODES]
        taken = Maker(self._model, 0).parameters
        if any(name in taken for name in _SOUND):
            forms[1:1] = [("full", 1), ("full", 2), ("full", 3)]
        elif "pixel_values" in taken:
            forms[1:1] = [("full", 1), ("full", 2)]
        if "use_cache" in taken or getattr(self._model.config, "use_cache", None):
            forms.append(("full", _NO_CACHE))
        return forms

    def _inputs(self, mode: str, form: int) -> Inputs:
        maker = Maker(self._model, 2, self._features)
        inputs = maker.make(mode, max(form, 0))
        if inputs and form == _NO_CACHE:
            inputs["use_cache"] = False
        return add_placeholders(maker, inputs) if inputs else inputs

    def _forward(self, inputs: Inputs) -> None:
        torch.manual_seed(0)
        with torch.no_grad():
            # A copy: models may keep tensors that they made in their first forward pass.
            model = copy.deepcopy(self._model)
            results = trees.tensors(model(**trees.to_device(inputs, "cpu")))
        if not results:
            raise NotBuiltError("no tensors among the results")

    def _repair(self, message: str) -> bool:
        """Learn a size from the text of an error; return whether to try again."""
        found = re.search(
            r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x", message
        )
        if found and self._features is None and hasattr(self._model.config, "model_type"):
            return self._repair_features(int(found[1]), int(found[2]))
        found = re.search(
            r"split_sizes to sum exactly to (\d+) .*split_sizes=\[([\d, ]+)\]", message
        )
        if found:
            sections = fit_sections([int(x) for x in found[2].split(",")], int(found[1]))
            self._set_rope_sections(sections)
        return bool(found)

    def _repair_features(self, have: int, want: int) -> bool:
        maker = Maker(self._model, 2)
        try:
            frame = maker.make("full")["input_features"].shape[-1]
        except Exception:  # no sound among its inputs
            return False
        if frame * want % have:
            return False
        self._features = frame * want // have
        return True

    def _set_rope_sections(self, sections: list[int]) -> None:
        for module in self._model.modules():
            if hasattr(module, "mrope_section"):
                module.mrope_section = sections
        for config in all_parts(self._model.config):
            if isinstance(getattr(config, "rope_parameters", None), dict):
                config.rope_parameters["mrope_section"] = sections


def perturb(model: torch.nn.Module) -> None:
    """Add noise to what is 0 or 1 by default, so that every operator matters."""
    for module in model.modules():
        # What weight normalisation computes from parameters cannot be copied with its history.
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                vars(module)[name] = value.detach()
    draw = Draw(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and p.numel() > 1 and p.device.type == "cpu":
                flat = p.flatten()
                if (flat[0] == flat).all():
                    p.add_(0.02 * draw.normal(*p.shape).to(p.dtype))
        for module in model.modules():
            if getattr(module, "running_var", None) is not None:
                shape = module.running_mean.shape
                module.running_mean.add_(0.02 * draw.normal(*shape))
                module.running_var.mul_(1 + 0.1 * draw.uniform(*shape))


def _use_encode(model: Any) -> None:
    """Tokenizers of images have no forward pass, they encode and decode."""
    forward = type(model).forward
    unset = getattr(forward, "__name__", "") == "_forward_unimplemented"
    if (unset or forward is torch.nn.Module.forward) and hasattr(model, "encode"):
        model.forward = model.encode
