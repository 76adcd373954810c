# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The architectures by name, and how each is made and run.

Names are ``transformers/bert`` (a model type), ``diffusers/UNet2DModel`` (a model class),
``diffusers/scheduler/DDIMScheduler`` and ``diffusers/pipeline/FluxPipeline``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

from torus.compat.stages import Found
from torus.compat.trees import Named

Row = dict[str, Any]

# Before the name of a topology: the stage that asks the TPU compiler.
COMPILE_FOR = "compile for "


class Case(Protocol):
    """One architecture, made on the CPU."""

    def describe(self) -> Row:
        """Return class, parameters, recipe and names of the inputs."""

    def has(self, stage: str) -> bool:
        """Return whether there is such a stage."""

    def run(self, stage: str, compiled: bool) -> Found:
        """Run one stage on both devices."""


class ModelCase:
    """A model with a forward pass."""

    def __init__(
        self, subject: Any, stages: tuple[str, ...] = ("forward", "generate", "train")
    ) -> None:
        self._stages = stages
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
        if stage.startswith(COMPILE_FOR):
            return self._runner.compile_for(stage.removeprefix(COMPILE_FOR))
        return getattr(self._runner, stage)()

    def has(self, stage: str) -> bool:
        """Return whether there is such a stage."""
        return stage in self._stages or stage.startswith(COMPILE_FOR)


class LoopCase:
    """A denoising loop.

    Parameters
    ----------
    cls : str
    parameters : int
    loop : callable
        Runs the loop on a device and returns tensors by name.
    """

    def __init__(self, cls: str, parameters: int, loop: Callable[[str], Named]) -> None:
        self._about = {"class": cls, "parameters": parameters, "recipe": "", "inputs": []}
        self._loop = loop
        # What the CPU cannot do is no case.
        self._expected = loop("cpu")

    def describe(self) -> Row:
        """Return class and parameters."""
        return self._about

    def has(self, stage: str) -> bool:
        """Return whether there is such a stage."""
        return stage == "denoise"

    def run(self, stage: str, compiled: bool) -> Found:
        """Compare the ends of the loop on both devices."""
        from torus.compat import stages

        found = Found()
        with stages.measure(found):
            actual = {name: value.cpu() for name, value in self._loop(stages.DEVICE).items()}
        stages.settle(found, actual, self._expected, dict)
        return found


def names() -> list[str]:
    """Return the names of all architectures of the installed libraries."""
    found: list[str] = []
    if importlib.util.find_spec("transformers"):
        from torus.compat import build

        found += [f"transformers/{each}" for each in build.model_types()]
    if importlib.util.find_spec("diffusers"):
        from torus.compat import diffusion, pipelines

        found += [f"diffusers/{each}" for each in diffusion.model_names()]
        found += [f"diffusers/scheduler/{each}" for each in diffusion.scheduler_names()]
        found += [f"diffusers/pipeline/{each}" for each in pipelines.pipeline_names()]
    return found


def load(name: str, attention: str = "") -> Case:
    """Make an architecture.

    Parameters
    ----------
    name : str
        One of `names`.
    attention : str
        For Transformers, see `build.build`.

    Returns
    -------
    Case
    """
    library, _, rest = name.partition("/")
    if library == "transformers":
        from torus.compat import build

        return ModelCase(build.build(rest, attention))
    from torus.compat import diffusion

    kind, _, inner = rest.partition("/")
    if kind == "scheduler":
        return LoopCase(inner, 0, lambda device: diffusion.denoise(inner, device))
    if kind == "pipeline":
        return _load_pipeline(inner)
    return ModelCase(diffusion.build_model(rest), ("forward", "train"))


def _load_pipeline(name: str) -> Case:
    import torch

    from torus.compat import pipelines

    pipeline, call = pipelines.make_pipeline(name)
    modules = [m for m in pipeline.components.values() if isinstance(m, torch.nn.Module)]
    count = sum(p.numel() for module in modules for p in module.parameters())
    return LoopCase(
        type(pipeline).__name__,
        count,
        lambda device: pipelines.unrolled(call(pipeline.to(device))),
    )
