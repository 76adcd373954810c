"""DreamBooth in miniature: teach a diffusion model one subject under a rare word.

DreamBooth (Ruiz et al., 2023, arXiv:2208.12242) fine-tunes a text-to-image model on a few pictures
of a subject, called "sks" so that the word means nothing yet, together with pictures of the
subject's whole class, so that the class is not forgotten (the prior preservation loss). This runs
the whole method, autoencoder, text encoder, U-Net and schedulers of Diffusers and Transformers, on
networks small enough for seconds. They have random weights: the losses fall, the pictures are no
art. With pretrained ones of the same classes nothing else would change.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import common
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

EXAMPLES = """\
examples:
  dreambooth.py
  dreambooth.py --steps 200 --prior-weight 0.5 --picture sks.ppm
"""
SIZE = 16
WORDS = ("<start>", "<end>", "a", "photo", "of", "sks", "shape")
SUBJECT, CLASS = "a photo of sks shape", "a photo of shape"


def subject_pictures(count: int) -> torch.Tensor:
    """Draw the subject: a red disc on blue, shape (count, 3, SIZE, SIZE), in -1 ... 1."""
    grid = torch.arange(SIZE) - SIZE / 2 + 0.5
    radius = torch.rand(count, 1, 1) * 2 + 4
    disc = (grid.view(1, -1, 1).square() + grid.view(1, 1, -1).square()).sqrt() < radius
    red, blue = torch.tensor([0.9, -0.6, -0.6]), torch.tensor([-0.8, -0.6, 0.7])
    mask = disc.unsqueeze(1).float()
    return mask * red.view(3, 1, 1) + (1 - mask) * blue.view(3, 1, 1)


def class_pictures(count: int) -> torch.Tensor:
    """Draw the class: rectangles of any colour on any other."""
    pictures = torch.empty(count, 3, SIZE, SIZE)
    for picture in pictures:
        picture[:] = torch.rand(3, 1, 1) * 2 - 1
        top, left = torch.randint(1, 7, (2,)).tolist()
        picture[:, top : top + 8, left : left + 8] = torch.rand(3, 1, 1) * 2 - 1
    return pictures


def token_ids(prompt: str) -> torch.Tensor:
    """Return the ids of a prompt, filled up with end marks, shape (1, 8)."""
    ids = [0, *(WORDS.index(word) for word in prompt.split())]
    return torch.tensor([ids + [1] * (8 - len(ids))])


class Models:
    """The four parts of a latent diffusion model, on a device."""

    def __init__(self, device: str) -> None:
        from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
        from transformers import CLIPTextConfig, CLIPTextModel

        self.vae = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
            up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
            block_out_channels=(16, 16),
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=8,
            sample_size=SIZE,
        )
        self.text = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(WORDS),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=4,
                max_position_embeddings=8,
                bos_token_id=0,
                eos_token_id=1,
                pad_token_id=1,
            )
        )
        self.unet = UNet2DConditionModel(
            sample_size=SIZE // 2,
            down_block_types=("CrossAttnDownBlock2D",),
            up_block_types=("CrossAttnUpBlock2D",),
            block_out_channels=(32,),
            layers_per_block=1,
            norm_num_groups=8,
            cross_attention_dim=32,
            attention_head_dim=8,
        )
        self.noise = DDPMScheduler(num_train_timesteps=1000)
        self.device = device
        for part in (self.vae, self.text, self.unet):
            part.to(device)
        # DreamBooth trains the U-Net and, here, the text encoder; the autoencoder is fixed.
        self.vae.requires_grad_(False)

    @torch.no_grad()
    def encode(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the latents of pictures, of variance 1, shape (count, 4, SIZE / 2, SIZE / 2)."""
        latents = self.vae.encode(pictures.to(self.device)).latent_dist.mode()
        return latents / latents.std()


def denoising_loss(
    models: Models, latents: torch.Tensor, prompts: torch.Tensor, count: int, weight: float
) -> torch.Tensor:
    """Return DreamBooth's loss.

    Parameters
    ----------
    models : Models
        The U-Net predicts the noise that was added to the latents.
    latents : Tensor
        Those of the subject, then as many of the class.
    prompts : Tensor
        Token ids, one row for each latent.
    count : int
        How many belong to the subject.
    weight : float
        Of the prior preservation loss, that of the class.
    """
    noise = torch.randn_like(latents)
    steps = torch.randint(0, 1000, (len(latents),), device=latents.device)
    noisy = models.noise.add_noise(latents, noise, steps)
    meaning = models.text(prompts).last_hidden_state
    predicted = models.unet(noisy, steps, meaning).sample
    losses = (predicted - noise).square().mean(dim=(1, 2, 3))
    return losses[:count].mean() + weight * losses[count:].mean()


def train(models: Models, options: argparse.Namespace) -> list[float]:
    """Train; returns the losses."""
    count = options.pictures
    pictures = torch.cat([subject_pictures(count), class_pictures(count)])
    latents = models.encode(pictures)
    prompts = torch.cat([token_ids(SUBJECT)] * count + [token_ids(CLASS)] * count)
    prompts = prompts.to(options.device)
    parameters = [*models.unet.parameters(), *models.text.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.rate)
    losses = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("Training", total=options.steps)
        for _ in range(options.steps):
            loss = denoising_loss(models, latents, prompts, count, options.prior_weight)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            bar.update(task, advance=1, description=f"Training, loss {losses[-1]:.3f}")
    return losses


@torch.no_grad()
def generate(models: Models, prompt: str, steps: int) -> torch.Tensor:
    """Make a picture from noise with a deterministic schedule; shape (3, SIZE, SIZE)."""
    from diffusers import DDIMScheduler

    schedule: Any = DDIMScheduler.from_config(models.noise.config, clip_sample=False)
    schedule.set_timesteps(steps, device=models.device)
    latents = torch.randn(1, 4, SIZE // 2, SIZE // 2, device=models.device)
    meaning = models.text(token_ids(prompt).to(models.device)).last_hidden_state
    for step in schedule.timesteps:
        predicted = models.unet(latents, step, meaning).sample
        latents = schedule.step(predicted, step, latents).prev_sample
    return models.vae.decode(latents).sample[0].clamp(-1, 1).cpu()


def write_picture(path: Path, picture: torch.Tensor) -> None:
    """Write a picture as PPM, which any viewer opens."""
    pixels = ((picture + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    path.write_bytes(f"P6 {SIZE} {SIZE} 255\n".encode() + bytes(pixels.flatten().tolist()))


def main() -> None:
    """Train on the subject, then make a picture of it."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="default: 60")
    parser.add_argument("--pictures", type=int, default=4, metavar="N", help="of the subject")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate (default: 0.002)")
    parser.add_argument("--prior-weight", type=float, default=1.0, metavar="W", help="default: 1")
    parser.add_argument("--sampling-steps", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the picture, as PPM")
    options = common.parse(parser)
    common.require_device(options.device)

    models = Models(options.device)
    losses = train(models, options)
    part = max(1, len(losses) // 5)
    first, last = (sum(values) / part for values in (losses[:part], losses[-part:]))
    print(f"loss {first:.3f} -> {last:.3f}")
    picture = generate(models, SUBJECT, options.sampling_steps)
    print(f"picture of {SUBJECT!r}: {tuple(picture.shape)}, finite: {picture.isfinite().all()}")
    if options.picture:
        write_picture(options.picture, picture)


if __name__ == "__main__":
    sys.exit(common.run(main))
