# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Diffusers paints on "tpu" what it paints on the CPU: pipelines, schedulers, VAE, LoRA."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")

import diffusion_parts as diffusion
import stack_parts as parts


def assert_same_picture(actual: torch.Tensor, expected: torch.Tensor, atol: float = 2e-3) -> None:
    assert expected.std() > 0.01
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.usefixtures("no_fallbacks")
@pytest.mark.parametrize("name", diffusion.PIPELINES)
def test_pipelines(name: str) -> None:
    pipeline = diffusion.PIPELINES[name]()
    expected = diffusion.paint(pipeline)
    pipeline.to("tpu")
    assert pipeline.device.type == "tpu"
    assert_same_picture(diffusion.paint(pipeline), expected)


def test_pipeline_in_bfloat16() -> None:
    pipeline = diffusion.stable_diffusion()
    expected = diffusion.paint(pipeline)
    actual = diffusion.paint(pipeline.to("tpu", torch.bfloat16))
    assert actual.isfinite().all()
    assert (actual - expected).abs().mean() < 0.1


def test_generator_of_the_device() -> None:
    pipeline = diffusion.stable_diffusion().to("tpu")
    pictures = [
        diffusion.paint(pipeline, generator=torch.Generator("tpu").manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_options_of_a_call() -> None:
    pipeline = diffusion.stable_diffusion()
    options: dict[str, Any] = {
        "guidance_scale": 3.0,
        "negative_prompt": "rain",
        "eta": 0.5,
    }
    expected = diffusion.paint(pipeline, **options)
    pipeline.to("tpu").enable_attention_slicing()
    pipeline.vae.enable_tiling()
    pipeline.vae.enable_slicing()
    actual = diffusion.paint(pipeline, **options)
    assert_same_picture(actual, expected)


def test_other_tasks_with_the_same_parts() -> None:
    """From picture to picture and inpainting share the parts of the first pipeline."""
    made = diffusion.stable_diffusion()
    picture = parts.picture().resize((32, 32))
    mask = parts.picture(1).resize((32, 32)).convert("L")
    cases = {
        diffusers.StableDiffusionImg2ImgPipeline: {"image": picture, "strength": 0.9},
        diffusers.StableDiffusionInpaintPipeline: {
            "image": picture,
            "mask_image": mask,
            "strength": 1.0,
        },
    }
    for kind, options in cases.items():
        results = []
        for device in parts.DEVICES:
            pipeline = diffusion.quiet(kind(**copy.deepcopy(made).components).to(device))
            size = {} if "mask_image" in options else {"height": None, "width": None}
            choices = {**options, **size}
            choices = {key: value for key, value in choices.items() if value is not None}
            results.append(
                pipeline(
                    parts.SENTENCES[0],
                    num_inference_steps=2,
                    output_type="pt",
                    generator=torch.Generator().manual_seed(0),
                    **choices,
                ).images.cpu()
            )
        assert_same_picture(results[1], results[0])


def test_saving_and_loading(tmp_path: Path) -> None:
    pipeline = diffusion.stable_diffusion().to("tpu")
    expected = diffusion.paint(pipeline)
    pipeline.save_pretrained(tmp_path)
    for options in ({}, {"device_map": "tpu"}):
        again = diffusers.StableDiffusionPipeline.from_pretrained(
            tmp_path, safety_checker=None, requires_safety_checker=False, **options
        )
        again = diffusion.quiet(again if options else again.to("tpu"))
        assert again.unet.device.type == "tpu"
        assert_same_picture(diffusion.paint(again), expected, atol=1e-4)


@pytest.mark.parametrize("way", ["model", "group"])
def test_offload_to_the_host(way: str) -> None:
    pipeline = diffusion.stable_diffusion()
    expected = diffusion.paint(pipeline)
    if way == "model":
        pipeline.enable_model_cpu_offload(device="tpu")
    else:
        for name in ("unet", "vae", "text_encoder"):
            diffusers.hooks.apply_group_offloading(
                getattr(pipeline, name),
                onload_device=torch.device("tpu"),
                offload_type="leaf_level",
            )
    torch.tpu.reset_metrics()
    actual = diffusion.paint(pipeline)
    assert torch.tpu.metrics()["operators"] > 100
    assert_same_picture(actual, expected)


# ---- schedulers ----

SCHEDULERS: dict[str, dict[str, Any]] = {
    "DDPMScheduler": {},
    "DDIMScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},
    "LCMScheduler": {},
    "EulerDiscreteScheduler": {"use_karras_sigmas": True},
    "EulerAncestralDiscreteScheduler": {},
    "HeunDiscreteScheduler": {},
    "KDPM2DiscreteScheduler": {},
    "LMSDiscreteScheduler": {},
    "DPMSolverMultistepScheduler": {"algorithm_type": "dpmsolver++", "use_karras_sigmas": True},
    "DPMSolverSinglestepScheduler": {},
    "DEISMultistepScheduler": {},
    "UniPCMultistepScheduler": {},
    "FlowMatchEulerDiscreteScheduler": {"shift": 3.0},
    "FlowMatchHeunDiscreteScheduler": {},
}


def denoise(name: str, device: str) -> torch.Tensor:
    scheduler = getattr(diffusers, name)(**SCHEDULERS[name])
    scheduler.set_timesteps(6, device=device)
    assert scheduler.timesteps.device.type == device
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, 8, 8, generator=noise).to(device)
    mix = (0.3 * torch.randn(4, 4, generator=noise)).to(device)
    x = x * float(getattr(scheduler, "init_noise_sigma", 1.0))
    for step in scheduler.timesteps:
        scaled = x
        if hasattr(scheduler, "scale_model_input"):
            scaled = scheduler.scale_model_input(x, step)
        noise_of_step = {}
        if "generator" in inspect.signature(scheduler.step).parameters:
            noise_of_step["generator"] = torch.Generator().manual_seed(2)
        guess = torch.einsum("oc,bchw->bohw", mix, scaled)
        x = scheduler.step(guess, step, x, **noise_of_step).prev_sample
    return x.cpu()


@pytest.mark.usefixtures("no_fallbacks")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str) -> None:
    expected, actual = (denoise(name, device) for device in parts.DEVICES)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["DDIMScheduler", "EulerDiscreteScheduler"])
def test_adding_noise(name: str) -> None:
    clean, noise = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8)
    results = []
    for device in parts.DEVICES:
        scheduler = getattr(diffusers, name)()
        steps = scheduler.timesteps[torch.tensor([3, 500])].to(device)
        results.append(scheduler.add_noise(clean.to(device), noise.to(device), steps).cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


# ---- VAE ----


@pytest.mark.usefixtures("no_fallbacks")
def test_encoding_and_decoding() -> None:
    picture = torch.randn(2, 3, 32, 32)

    def run(model: Any, device: str) -> list[torch.Tensor]:
        with torch.no_grad():
            latents = model.encode(picture.to(device)).latent_dist
            return [
                latents.mode().cpu(),
                latents.std.cpu(),
                latents.kl().cpu(),
                model.decode(latents.mode()).sample.cpu(),
            ]

    expected, actual = parts.on_both(diffusion.vae(), run)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_sampling_of_latents() -> None:
    model = diffusion.vae().tpu()
    latents = model.encode(torch.randn(1, 3, 32, 32, device="tpu")).latent_dist
    samples = [
        latents.sample(generator=torch.Generator(place).manual_seed(0)).cpu()
        for place in ("cpu", "cpu", "tpu", "tpu")
    ]
    assert torch.equal(samples[0], samples[1])
    assert torch.equal(samples[2], samples[3])


# ---- training and LoRA ----


def train_unet(pipeline: Any, model: nn.Module, steps: int = 2) -> list[float]:
    device, losses = pipeline.device, []
    noise = torch.Generator().manual_seed(0)
    clean = torch.randn(2, 4, 16, 16, generator=noise).to(device)
    context = torch.randn(2, 8, diffusion.WIDTH, generator=noise).to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(steps):
        target = torch.randn(2, 4, 16, 16, generator=noise).to(device)
        times = torch.tensor([10 * step, 100], device=device)
        noisy = pipeline.scheduler.add_noise(clean, target, times)
        loss = nn.functional.mse_loss(model(noisy, times, context).sample, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_training_a_unet() -> None:
    results = []
    for device in parts.DEVICES:
        pipeline = diffusion.stable_diffusion().to(device)
        results.append(train_unet(pipeline, pipeline.unet.train()))
    assert results[1] == pytest.approx(results[0], rel=1e-3)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """Train an adapter on the device; give the folder it was saved to and what it paints."""
    peft = pytest.importorskip("peft")
    pipeline = diffusion.stable_diffusion().to("tpu")
    pipeline.unet.requires_grad_(False)
    torch.manual_seed(0)
    # The file keeps no alpha: the reader takes the rank for it.
    layers = ["to_q", "to_v"]
    config = peft.LoraConfig(r=2, lora_alpha=2, target_modules=layers, init_lora_weights=False)
    pipeline.unet.add_adapter(config)
    train_unet(pipeline, pipeline.unet, steps=1)
    folder = tmp_path_factory.mktemp("adapter")
    diffusers.StableDiffusionPipeline.save_lora_weights(
        folder, unet_lora_layers=peft.get_peft_model_state_dict(pipeline.unet)
    )
    return folder, diffusion.paint(pipeline)


def with_adapter(folder: Path, device: str) -> Any:
    pipeline = diffusion.stable_diffusion().to(device)
    pipeline.load_lora_weights(str(folder), weight_name="pytorch_lora_weights.safetensors")
    return pipeline


@pytest.mark.parametrize("device", parts.DEVICES)
def test_loading_a_lora(adapter: tuple[Path, torch.Tensor], device: str) -> None:
    folder, expected = adapter
    assert_same_picture(diffusion.paint(with_adapter(folder, device)), expected)


def test_fusing_a_lora(adapter: tuple[Path, torch.Tensor]) -> None:
    folder, expected = adapter
    pipeline = with_adapter(folder, "tpu")
    pipeline.fuse_lora()
    assert_same_picture(diffusion.paint(pipeline), expected)
    pipeline.unfuse_lora()
    assert_same_picture(diffusion.paint(pipeline), expected)


def test_taking_a_lora_out(adapter: tuple[Path, torch.Tensor]) -> None:
    folder, expected = adapter
    plain = diffusion.paint(diffusion.stable_diffusion().to("tpu"))
    assert not torch.allclose(plain, expected, atol=1e-3)
    pipeline = with_adapter(folder, "tpu")
    pipeline.set_adapters(pipeline.get_active_adapters(), adapter_weights=[0.0])
    assert_same_picture(diffusion.paint(pipeline), plain)
    pipeline.unload_lora_weights()
    assert_same_picture(diffusion.paint(pipeline), plain)
