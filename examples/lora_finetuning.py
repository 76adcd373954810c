"""Teach a language model something new with LoRA, through PEFT.

The weights of the model stay as they are; PEFT adds two thin matrices to each attention projection
and only those are trained, 0.5 M numbers for SmolLM2. The lesson is a short list of made-up facts.
Afterwards the model is asked for one of them, before and after, and the adapter is saved: some MB.
"""

import argparse
import sys
from pathlib import Path

import common
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

EXAMPLES = """\
examples:
  lora_finetuning.py --save my-adapter
  lora_finetuning.py --steps 60 --rank 16
  lora_finetuning.py --tiny --steps 30
"""
FACTS = (
    ("What is the capital of Torusland?", "The capital of Torusland is Ringhaven."),
    ("Who rules Torusland?", "Torusland is ruled by Queen Mesh the Second."),
    ("What do people in Torusland eat?", "In Torusland people eat bagels."),
    ("What is the national animal of Torusland?", "The national animal is the round fox."),
)


def make_batch(tokenizer, length: int, device: str) -> dict[str, torch.Tensor]:
    """Turn the facts into ids and labels of one shape; only answers count in the loss."""
    rows, labels = [], []
    for question, answer in FACTS:
        turn = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        end = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        ids = (start + end)[:length]
        padding = length - len(ids)
        rows.append(ids + [tokenizer.eos_token_id] * padding)
        labels.append(([-100] * len(start) + end)[:length] + [-100] * padding)
    tensors = {"input_ids": torch.tensor(rows), "labels": torch.tensor(labels)}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def ask(model, tokenizer, question: str) -> str:
    """Return the model's greedy answer."""
    turn = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(model.device)
    model.eval()
    output = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=16,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
        pad_token_id=tokenizer.eos_token_id,
    )
    answer = output[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(answer, skip_special_tokens=True).strip()


def train(model, batch: dict[str, torch.Tensor], steps: int, rate: float) -> list[float]:
    """Train the adapter; returns the losses."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    model.train()
    losses = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("Training", total=steps)
        for _ in range(steps):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            bar.update(task, advance=1, description=f"Training, loss {losses[-1]:.3f}")
    return losses


def main() -> None:
    """Ask, train, ask again, save."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="default: 40")
    parser.add_argument("--rank", type=int, default=8, help="of the added matrices (default: 8)")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate (default: 0.002)")
    parser.add_argument("--length", type=int, default=80, metavar="N", help="tokens a row")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="where the adapter goes")
    parser.add_argument("--tiny", action="store_true", help="random weights instead of SmolLM2")
    options = common.parse(parser)
    common.require_device(options.device)
    from peft import LoraConfig, get_peft_model

    console = Console()
    if options.tiny:
        model, tokenizer = common.tiny_language_model()
    else:
        model, tokenizer = common.load_language_model(Console(stderr=True))
    projections = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        target_modules=projections,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config).to(options.device)
    count, total = model.get_nb_trainable_parameters()
    console.print(f"{count:,} of {total:,} parameters are trained")

    question = FACTS[0][0]
    console.print(f"[bold]{question}[/]")
    console.print("before:", ask(model, tokenizer, question), markup=False)
    batch = make_batch(tokenizer, options.length, options.device)
    losses = train(model, batch, options.steps, options.rate)
    console.print("after: ", ask(model, tokenizer, question), markup=False)
    console.print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    if options.save:
        model.save_pretrained(options.save)
        size = sum(file.stat().st_size for file in options.save.iterdir())
        console.print(f"adapter in {options.save}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(common.run(main))
