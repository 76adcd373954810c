# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The architectures by name, and how each is made and run.

Names are ``transformers/bert`` (a model type), ``diffusers/UNet2DModel`` (a model class),
``diffusers/scheduler/DDIMScheduler`` and ``diffusers/pipeline/FluxPipeline``.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

from torus.compat.stages import Found

Row = dict[str, Any]


class Case(Protocol):
    """One architecture, made on the CPU."""

    stages: tuple[str, ...]

    def describe(self) -> Row:
        """Return class, parameters, recipe and names of the inputs."""

    def run(self, stage: str, compiled: bool) -> Found:
        """Run one stage on both devices."""


class ModelCase:
    """A model with a forward pass."""

    stages = ("forward", "generate", "train")

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self._runner: Any = None

    def describe(self) -> Row:
        """Return class, parameters, recipe and names of the inputs."""
        return {
            "class": type(self._subject.model).__name__,
            "parameters": self._subject.parameters,
            "recipe": self._subject.recipe,
            "inputs": sorted(self._subject.inputs),
        }

    def run(self, stage: str, compiled: bool) -> Found:
        """Run one stage on both devices."""
        from torus.compat.stages import Runner

        self._runner = self._runner or Runner(self._subject, compiled)
        return getattr(self._runner, stage)()


def names() -> list[str]:
    """Return the names of all architectures of the installed libraries."""
    found: list[str] = []
    if importlib.util.find_spec("transformers"):
        from torus.compat import build

        found += [f"transformers/{each}" for each in build.model_types()]
    return found


def load(name: str) -> Case:
    """Make an architecture.

    Parameters
    ----------
    name : str
        One of `names`.

    Returns
    -------
    Case
    """
    _, _, rest = name.partition("/")
    from torus.compat import build

    return ModelCase(build.build(rest))
