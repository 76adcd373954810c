# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Where a model comes from: a folder, a configuration, the Hub, or a function of the user's.

Weights are never read: models are built abstract, from their configuration.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Source", "SourceError", "find"]

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class SourceError(ValueError):
    """A model cannot be found or built; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A model that can be built.

    Attributes
    ----------
    name : str
        For reports.
    library : str
        ``"transformers"``, ``"diffusers"`` or ``"function"``.
    config : object
        The library's configuration; None for a function.
    build : callable
        Called inside `torch_tpu.aot.abstract` with a dtype; returns the module, or for a function
        of one's own the pair ``(module or callable, example inputs)``.
    with_config : callable or None
        Returns the same model with another configuration, where that is possible.
    """

    name: str
    library: str
    config: Any
    build: Callable[[torch.dtype], Any]
    with_config: Callable[[Any], Source] | None = None


def find(text: str, component: str = "") -> Source:
    """Find the model that a command line names.

    Parameters
    ----------
    text : str
        A folder with ``config.json`` or ``model_index.json``, such a file, ``file.py:function``, or
        a name on the Hub (``owner/model``).
    component : str
        Which part of a Diffusers pipeline; its transformer or U-Net if empty.

    Returns
    -------
    Source

    Raises
    ------
    SourceError
        If there is no such model.
    """
    file, colon, function = text.rpartition(":")
    if colon and file.endswith(".py"):
        return _of_function(pathlib.Path(file), function)
    path = pathlib.Path(text)
    if path.is_dir():
        return _of_folder(path, component)
    if path.is_file():
        return _of_config(path, _short_name(path))
    if _HUB_NAME.fullmatch(text) and not text.startswith("."):
        return _of_hub(text, component)
    raise SourceError(
        f"{text!r} is no folder or configuration here, no file.py:function, and no name on the Hub "
        "(owner/model)."
    )


def _short_name(path: pathlib.Path) -> str:
    return path.parent.name if path.name == "config.json" else path.stem


# ---- a function of one's own ----


def _of_function(path: pathlib.Path, function: str) -> Source:
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"torus_check_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    made = getattr(module, function, None)
    if not callable(made):
        raise SourceError(f"{path} has no function {function!r}")

    def build(dtype: torch.dtype) -> Any:
        del dtype
        pair = made()
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[0]):
            raise SourceError(
                f"{function}() must return (module or callable, example inputs), the inputs as a "
                f"tuple or dict; it returned {type(pair).__name__}"
            )
        return pair

    return Source(f"{path.name}:{function}", "function", None, build)


# ---- configurations ----


def _of_folder(path: pathlib.Path, component: str) -> Source:
    index = path / "model_index.json"
    if index.is_file():
        return _of_pipeline(path, json.loads(index.read_text("utf-8")), component)
    if not (path / "config.json").is_file():
        raise SourceError(f"{path} has neither config.json nor model_index.json")
    return _of_config(path / "config.json", path.resolve().name)


def _of_pipeline(path: pathlib.Path, index: dict[str, Any], component: str) -> Source:
    parts = sorted(p.name for p in path.iterdir() if (p / "config.json").is_file())
    wanted = [component] if component else ["transformer", "unet", "prior"]
    for part in wanted:
        if part in parts:
            name = f"{index.get('_class_name', path.name)}.{part}"
            return _of_config(path / part / "config.json", name)
    raise SourceError(f"{path} has no part {wanted[0]!r}; --component may be {', '.join(parts)}")


def _of_hub(name: str, component: str) -> Source:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise SourceError(
            f"{name!r} is not here; to look on the Hub: pip install huggingface_hub"
        ) from None
    file = f"{component}/config.json" if component else "config.json"
    try:
        found = hf_hub_download(name, file)
    except Exception as error:  # the client has a class for each way to fail
        said = str(error).strip().splitlines()
        raise SourceError(
            f"{name!r} is no folder here, and the Hub gives no {file} for it "
            f"({said[0] if said else type(error).__name__}). Offline, give a folder or a "
            "configuration."
        ) from error
    return _of_config(pathlib.Path(found), name)


def _of_config(path: pathlib.Path, name: str) -> Source:
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}") from None
    if isinstance(facts, dict) and "_class_name" in facts:
        return _of_diffusers(facts, name)
    if isinstance(facts, dict) and "model_type" in facts:
        return _of_transformers(path, facts, name)
    raise SourceError(
        f"{path} is no configuration of Transformers (model_type) or Diffusers (_class_name)"
    )


def _of_transformers(path: pathlib.Path, facts: dict[str, Any], name: str) -> Source:
    transformers = _import("transformers")
    try:
        config = transformers.AutoConfig.for_model(**facts)
    except ValueError as error:
        raise SourceError(f"{path}: {error}") from None
    config.architectures = facts.get("architectures")
    # What it warns of concerns weights and caches that are not there.
    transformers.logging.set_verbosity_error()
    return _of_loaded(config, name)


def _of_loaded(config: Any, name: str) -> Source:
    transformers = _import("transformers")

    def build(dtype: torch.dtype) -> torch.nn.Module:
        for word in config.architectures or ():
            if hasattr(transformers, word):
                return getattr(transformers, word)._from_config(config, dtype=dtype)
        return transformers.AutoModel.from_config(config, dtype=dtype)

    return Source(name, "transformers", config, build, lambda other: _of_loaded(other, name))


def _of_diffusers(facts: dict[str, Any], name: str) -> Source:
    diffusers = _import("diffusers")
    model_class = getattr(diffusers, facts["_class_name"], None)
    if model_class is None or not hasattr(model_class, "from_config"):
        raise SourceError(f"Diffusers has no model {facts['_class_name']}")

    def build(dtype: torch.dtype) -> torch.nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return model_class.from_config(facts)
        finally:
            torch.set_default_dtype(before)

    return Source(name, "diffusers", facts, build)


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise SourceError(f"this model needs {library}: pip install {library}") from None
