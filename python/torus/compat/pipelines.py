# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Whole pipelines of Diffusers, from small parts, without tokenizers: prompts are embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torus.compat.diffusion import MODELS, make_model
from torus.compat.diffusion_parts import Draw

Call = Callable[[Any], Any]
Made = tuple[Any, Call]

_PIPELINES: dict[str, Callable[[], Made]] = {}
_STEPS = 3
_NO_SAFETY: dict[str, Any] = {
    "safety_checker": None,
    "feature_extractor": None,
    "requires_safety_checker": False,
}


def _pipeline(name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def register(function: Callable[[], Made]) -> Callable[[], Made]:
        _PIPELINES[name] = function
        return function

    return register


def pipeline_names() -> list[str]:
    """Return the names of the pipelines."""
    return list(_PIPELINES)


def make_pipeline(name: str) -> Made:
    """Return a small pipeline on the CPU and a function that runs it where it is.

    The function returns images or frames as an array or a tensor.
    """
    pipeline, call = _PIPELINES[name]()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, call


def _generator() -> torch.Generator:
    """On the CPU for every device, so that the noise is the same."""
    return torch.Generator().manual_seed(0)


def _none(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


def _autoencoder(**fields: Any) -> Any:
    import diffusers

    torch.manual_seed(0)
    return diffusers.AutoencoderKL(**{**MODELS["AutoencoderKL"][0], **fields}).eval()


def _embeddings(**shapes: tuple[int, ...]) -> Callable[[Any], dict[str, torch.Tensor]]:
    draw = Draw(9)
    drawn = {name: draw.normal(*shape) for name, shape in shapes.items()}
    return lambda pipeline: {k: v.to(pipeline.device) for k, v in drawn.items()}


def _images(given: Callable[[Any], dict[str, Any]], **fields: Any) -> Call:
    """Return a function that runs a pipeline with its inputs and returns the images."""

    def call(pipeline: Any) -> Any:
        result = pipeline(
            **given(pipeline),
            **fields,
            num_inference_steps=_STEPS,
            generator=_generator(),
            output_type="np",
        )
        return result.images if hasattr(result, "images") else result.frames

    return call


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@_pipeline("DDPMPipeline")
def _ddpm() -> Made:
    import diffusers as d

    pipeline = d.DDPMPipeline(unet=make_model("UNet2DModel"), scheduler=d.DDPMScheduler())
    return pipeline, _images(_nothing)


@_pipeline("DDIMPipeline")
def _ddim() -> Made:
    import diffusers as d

    pipeline = d.DDIMPipeline(unet=make_model("UNet2DModel"), scheduler=d.DDIMScheduler())
    return pipeline, _images(_nothing)


@_pipeline("DiTPipeline")
def _dit() -> Made:
    import diffusers as d

    pipeline = d.DiTPipeline(
        transformer=make_model("DiTTransformer2DModel"),
        vae=make_model("AutoencoderKL"),
        scheduler=d.DDIMScheduler(),
    )
    return pipeline, _images(_nothing, class_labels=[1])


def _stable_diffusion(
    scheduler: str, cls: str = "StableDiffusionPipeline", **parts: Any
) -> tuple[Any, Callable[[Any], dict[str, torch.Tensor]]]:
    import diffusers as d

    pipeline = getattr(d, cls)(
        unet=make_model("UNet2DConditionModel"),
        vae=make_model("AutoencoderKL"),
        scheduler=getattr(d, scheduler)(),
        **_none("text_encoder", "tokenizer"),
        **_NO_SAFETY,
        **parts,
    )
    return pipeline, _embeddings(prompt_embeds=(1, 7, 32), negative_prompt_embeds=(1, 7, 32))


def _text_to_image(scheduler: str) -> Callable[[], Made]:
    def make() -> Made:
        pipeline, given = _stable_diffusion(scheduler)
        return pipeline, _images(given, height=32, width=32)

    return make


for _name, _scheduler in (
    ("ddim", "DDIMScheduler"),
    ("euler", "EulerDiscreteScheduler"),
    ("dpm++", "DPMSolverMultistepScheduler"),
    ("lcm", "LCMScheduler"),
):
    _pipeline(f"StableDiffusionPipeline/{_name}")(_text_to_image(_scheduler))


@_pipeline("StableDiffusionImg2ImgPipeline")
def _image_to_image() -> Made:
    pipeline, given = _stable_diffusion("DDIMScheduler", "StableDiffusionImg2ImgPipeline")
    image = Draw(3).uniform(1, 3, 32, 32)
    return pipeline, _images(given, image=image, strength=0.9)


@_pipeline("StableDiffusionInpaintPipeline")
def _inpaint() -> Made:
    pipeline, given = _stable_diffusion("DDIMScheduler", "StableDiffusionInpaintPipeline")
    image, mask = Draw(3).uniform(1, 3, 32, 32), torch.zeros(1, 1, 32, 32)
    mask[..., 8:24, 8:24] = 1
    return pipeline, _images(given, image=image, mask_image=mask, height=32, width=32)


@_pipeline("StableDiffusionControlNetPipeline")
def _control_net() -> Made:
    net = make_model("ControlNetModel")
    name = "StableDiffusionControlNetPipeline"
    pipeline, given = _stable_diffusion("DDIMScheduler", name, controlnet=net)
    image = Draw(3).uniform(1, 3, 32, 32)
    return pipeline, _images(given, image=image, height=32, width=32)


@_pipeline("FluxPipeline")
def _flux() -> Made:
    import diffusers as d

    pipeline = d.FluxPipeline(
        transformer=make_model("FluxTransformer2DModel"),
        vae=_autoencoder(latent_channels=1, shift_factor=0.0609, scaling_factor=1.5),
        scheduler=d.FlowMatchEulerDiscreteScheduler(),
        **_none("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"),
    )
    given = _embeddings(prompt_embeds=(1, 7, 32), pooled_prompt_embeds=(1, 32))
    return pipeline, _images(given, height=16, width=16)


@_pipeline("StableDiffusion3Pipeline")
def _stable_diffusion_3() -> Made:
    import diffusers as d

    numbers = ("", "_2", "_3")
    pipeline = d.StableDiffusion3Pipeline(
        transformer=make_model("SD3Transformer2DModel"),
        vae=_autoencoder(shift_factor=0.06, scaling_factor=1.5),
        scheduler=d.FlowMatchEulerDiscreteScheduler(),
        **_none(*(f"{part}{n}" for part in ("text_encoder", "tokenizer") for n in numbers)),
    )
    given = _embeddings(
        prompt_embeds=(1, 7, 32),
        pooled_prompt_embeds=(1, 64),
        negative_prompt_embeds=(1, 7, 32),
        negative_pooled_prompt_embeds=(1, 64),
    )
    return pipeline, _images(given, height=32, width=32)


@_pipeline("PixArtAlphaPipeline")
def _pixart() -> Made:
    import diffusers as d

    pipeline = d.PixArtAlphaPipeline(
        transformer=make_model("PixArtTransformer2DModel"),
        vae=make_model("AutoencoderKL"),
        scheduler=d.DPMSolverMultistepScheduler(),
        **_none("text_encoder", "tokenizer"),
    )
    embeddings = _embeddings(prompt_embeds=(1, 7, 32), negative_prompt_embeds=(1, 7, 32))

    def given(pipeline: Any) -> dict[str, Any]:
        mask = torch.ones(1, 7).to(pipeline.device)
        masks = {"prompt_attention_mask": mask, "negative_prompt_attention_mask": mask}
        return {**embeddings(pipeline), **masks, **_none("prompt", "negative_prompt")}

    return pipeline, _images(given, height=32, width=32, use_resolution_binning=False)


@_pipeline("LTXPipeline")
def _ltx() -> Made:
    import diffusers as d

    torch.manual_seed(0)
    vae = d.AutoencoderKLLTXVideo(
        **{**MODELS["AutoencoderKLLTXVideo"][0], "latent_channels": 4}
    ).eval()
    pipeline = d.LTXPipeline(
        transformer=make_model("LTXVideoTransformer3DModel"),
        vae=vae,
        scheduler=d.FlowMatchEulerDiscreteScheduler(),
        **_none("text_encoder", "tokenizer"),
    )
    embeddings = _embeddings(prompt_embeds=(1, 7, 16), negative_prompt_embeds=(1, 7, 16))

    def given(pipeline: Any) -> dict[str, Any]:
        mask = torch.ones(1, 7).bool().to(pipeline.device)
        masks = {"prompt_attention_mask": mask, "negative_prompt_attention_mask": mask}
        return {**embeddings(pipeline), **masks}

    return pipeline, _images(given, height=32, width=32, num_frames=9)


@_pipeline("WanPipeline")
def _wan() -> Made:
    import diffusers as d

    torch.manual_seed(0)
    vae = d.AutoencoderKLWan(
        **{
            **MODELS["AutoencoderKLWan"][0],
            "z_dim": 4,
            "latents_mean": [0.0] * 4,
            "latents_std": [1.0] * 4,
        }
    ).eval()
    pipeline = d.WanPipeline(
        transformer=make_model("WanTransformer3DModel"),
        vae=vae,
        scheduler=d.UniPCMultistepScheduler(
            use_flow_sigmas=True, prediction_type="flow_prediction"
        ),
        **_none("text_encoder", "tokenizer"),
    )
    given = _embeddings(prompt_embeds=(1, 7, 16), negative_prompt_embeds=(1, 7, 16))
    return pipeline, _images(given, height=32, width=32, num_frames=5)


@_pipeline("CogVideoXPipeline")
def _cogvideox() -> Made:
    import diffusers as d

    pipeline = d.CogVideoXPipeline(
        transformer=make_model("CogVideoXTransformer3DModel"),
        vae=make_model("AutoencoderKLCogVideoX"),
        scheduler=d.CogVideoXDDIMScheduler(),
        **_none("text_encoder", "tokenizer"),
    )
    given = _embeddings(prompt_embeds=(1, 8, 8), negative_prompt_embeds=(1, 8, 8))
    return pipeline, _images(given, height=64, width=64, num_frames=8)


def unrolled(result: Any) -> dict[str, torch.Tensor]:
    """Return the images or frames of a pipeline as a tensor."""
    return {"images": torch.as_tensor(result).cpu()}
