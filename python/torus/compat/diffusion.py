# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Models and schedulers of Diffusers: what there is, and small ones by name."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torus.compat.build import NotBuiltError, Subject, perturb
from torus.compat.diffusion_autoencoders import AUTOENCODERS
from torus.compat.diffusion_parts import Draw, Table
from torus.compat.diffusion_transformers import TRANSFORMERS
from torus.compat.diffusion_unets import UNETS

MODELS: Table = {**UNETS, **AUTOENCODERS, **TRANSFORMERS}

# Another protocol of calls than set_timesteps and step: discrete tokens, pairs of predictor and
# corrector, further images, or a state that only their pipeline makes.
_OTHER_SCHEDULERS = frozenset(
    [
        "AmusedScheduler",
        "BlockRefinementScheduler",
        "CogVideoXDPMScheduler",
        "DDPMWuerstchenScheduler",
        "DiscreteDDIMScheduler",
        "EntropyBoundScheduler",
        "HeliosDMDScheduler",
        "HeliosScheduler",
        "KarrasVeScheduler",
        "PiflowScheduler",
        "RFD4ProteinaScheduler",
        "RePaintScheduler",
        "VQDiffusionScheduler",
    ]
)
_STEPS = 10
# What else is in the folder of models.
_NO_MODELS = frozenset(
    [
        "AttentionBackendName",
        "AutoModel",
        "CacheMixin",
        "ContextParallelConfig",
        "ModelMixin",
        "ParallelConfig",
        "TensorParallelConfig",
        "attention_backend",
    ]
)


def model_names() -> list[str]:
    """Return the small models by name, then the classes of Diffusers that have none yet."""
    import diffusers

    written = {name.partition("/")[0] for name in MODELS}
    # Of the lazy module: the classes themselves take seconds to import.
    classes = diffusers._import_structure["models"]
    return [*MODELS, *(n for n in classes if n not in written and n not in _NO_MODELS)]


def make_model(name: str) -> torch.nn.Module:
    """Return a small model with random weights, in evaluation mode.

    Raises
    ------
    NotBuiltError
        If no small configuration of the class is known, or this version of Diffusers lacks it.
    """
    if name not in MODELS:
        raise NotBuiltError(f"no small configuration of {name} is known")
    import diffusers

    cls = getattr(diffusers, name.partition("/")[0], None)
    if cls is None:
        raise NotBuiltError(f"this version of Diffusers has no {name}")
    torch.manual_seed(0)
    model = cls(**MODELS[name][0]).eval()
    perturb(model)
    return model


def build_model(name: str) -> Subject:
    """Return a small model and its inputs; see `make_model`."""
    model = make_model(name)
    return Subject(model, MODELS[name][1](Draw(2)))


def scheduler_names() -> list[str]:
    """Return the schedulers that are stepped with ``set_timesteps`` and ``step``."""
    import diffusers
    from diffusers import SchedulerMixin

    found = []
    for name in dir(diffusers):
        cls = getattr(diffusers, name, None) if name.endswith("Scheduler") else None
        if isinstance(cls, type) and issubclass(cls, SchedulerMixin):
            steps = hasattr(cls, "step") and hasattr(cls, "set_timesteps")
            if steps and name not in _OTHER_SCHEDULERS:
                found.append(name)
    return found


def denoise(name: str, device: str) -> dict[str, torch.Tensor]:
    """Run a scheduler with a fixed linear predictor of the noise.

    Parameters
    ----------
    name : str
    device : str
        Where latents and timesteps are all along.

    Returns
    -------
    dict of str to torch.Tensor
        The latents ``[1, 4, 8, 8]`` and the timesteps.
    """
    import diffusers

    scheduler = getattr(diffusers, name)()
    _set_timesteps(scheduler, name, device)
    draw = Draw(5)
    latents = draw.normal(1, 4, 8, 8).to(device)
    weights = (0.3 * draw.normal(4, 4)).to(device)
    if hasattr(scheduler, "init_noise_sigma"):
        latents = latents * float(scheduler.init_noise_sigma)
    taken = inspect.signature(scheduler.step).parameters
    # The last of these timesteps is the end of the trajectory.
    steps = scheduler.timesteps[:-1] if name == "SCMScheduler" else scheduler.timesteps
    for step in steps:
        scaled = latents
        if hasattr(scheduler, "scale_model_input"):
            scaled = scheduler.scale_model_input(latents, step)
        noise = torch.einsum("oc,bchw->bohw", weights, scaled)
        more = {"generator": torch.Generator().manual_seed(3)} if "generator" in taken else {}
        result = scheduler.step(noise, step, latents, **more)
        latents = result.prev_sample if hasattr(result, "prev_sample") else result[0]
    return {"latents": latents, "timesteps": torch.as_tensor(scheduler.timesteps).float()}


def _set_timesteps(scheduler: Any, name: str, device: str) -> None:
    taken = inspect.signature(scheduler.set_timesteps).parameters
    more = {"device": device} if "device" in taken else {}
    if "sigmas" in taken and "num_inference_steps" not in taken:
        scheduler.set_timesteps(sigmas=[1.0, 0.8, 0.6, 0.4, 0.2], **more)
    else:
        scheduler.set_timesteps(2 if name == "SCMScheduler" else _STEPS, **more)
