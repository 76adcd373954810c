"""Train a small vision transformer to tell shapes apart, then classify new pictures.

The pictures are drawn by the program: discs, squares, triangles and rings of any size and colour,
on noise. The model is the ordinary ViT of Transformers with random weights; a minute of training
is enough. ``--dtype bfloat16`` computes the forward pass under autocast, as a TPU likes best.
"""

import argparse
import sys

import common
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

EXAMPLES = """\
examples:
  image_classification.py
  image_classification.py --steps 300 --dtype bfloat16
"""
SHAPES = ("disc", "square", "triangle", "ring")
SIZE = 32


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw pictures, shape (count, 3, SIZE, SIZE), and return them with their labels."""
    labels = torch.randint(len(SHAPES), (count,))
    centre = torch.rand(2, count, 1, 1) * 12 + SIZE / 2 - 6
    radius = torch.rand(count, 1, 1) * 5 + 6
    grid = torch.arange(SIZE, dtype=torch.float32)
    y = (grid.view(1, -1, 1) - centre[0]) / radius
    x = (grid.view(1, 1, -1) - centre[1]) / radius
    distance = (x.square() + y.square()).sqrt()
    square = torch.maximum(x.abs(), y.abs()) < 0.8
    triangle = (y < 0.7) & (y > 2 * x.abs() - 0.9)
    ring = (distance < 1) & (distance > 0.6)
    masks = torch.stack([distance < 1, square, triangle, ring], dim=1)
    mask = masks[torch.arange(count), labels].unsqueeze(1).float()
    colour = torch.rand(count, 3, 1, 1) * 0.6 + 0.4
    pictures = mask * colour + 0.15 * torch.randn(count, 3, SIZE, SIZE)
    return (pictures - 0.2) / 0.3, labels


def make_model():
    """Make a ViT of 0.1 M parameters."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=SIZE,
        patch_size=8,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=len(SHAPES),
        id2label=dict(enumerate(SHAPES)),
        label2id={shape: number for number, shape in enumerate(SHAPES)},
    )
    return ViTForImageClassification(config)


def train(model, options: argparse.Namespace) -> None:
    """Train for some steps; the loss is read back every tenth step only."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.steps)
    model.train()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("Training", total=options.steps)
        for step in range(options.steps):
            pictures, labels = (tensor.to(options.device) for tensor in draw(options.batch))
            with torch.autocast(
                torch.device(options.device).type, enabled=options.dtype == "bfloat16"
            ):
                loss = model(pixel_values=pictures, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 10 == 0:
                bar.update(task, description=f"Training, loss {loss.item():.3f}")
            bar.advance(task)


@torch.no_grad()
def evaluate(model, count: int, device: str) -> torch.Tensor:
    """Return the confusion matrix of new pictures: rows are what they are, columns answers."""
    model.eval()
    pictures, labels = draw(count)
    answers = model(pixel_values=pictures.to(device)).logits.argmax(-1).cpu()
    pairs = labels * len(SHAPES) + answers
    return torch.bincount(pairs, minlength=len(SHAPES) ** 2).view(len(SHAPES), -1)


def main() -> None:
    """Train, then show what is taken for what."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="default: 32")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = common.parse(parser)
    common.require_device(options.device)

    model = make_model().to(options.device)
    train(model, options)
    confusion = evaluate(model, 200, options.device)
    table = Table("is \\ answer", *SHAPES)
    for shape, row in zip(SHAPES, confusion.tolist(), strict=True):
        table.add_row(shape, *map(str, row))
    console = Console()
    console.print(table)
    accuracy = confusion.diagonal().sum().item() / confusion.sum().item()
    console.print(f"accuracy {accuracy:.1%}")


if __name__ == "__main__":
    sys.exit(common.run(main))
