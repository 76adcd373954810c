"""Continue a text with a language model, greedily or by sampling.

SmolLM2-135M-Instruct writes through the ordinary ``generate`` of Transformers. The words appear as
they are chosen. A static key-value cache keeps every step the same shape, so that the device runs
one compiled program for all tokens; the default cache of Transformers grows, and costs a few
programs more.
"""

import argparse
import sys
import time

import common
import torch
from rich.console import Console

EXAMPLES = """\
examples:
  text_generation.py "Once upon a time"
  text_generation.py --sample --temperature 0.9 --top-p 0.95 --seed 7 "My favourite food is"
  text_generation.py --cache dynamic --max-new-tokens 20 "The capital of France is"
"""


def main() -> None:
    """Read the prompt, write the text, report the speed."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES)
    parser.add_argument("prompt", nargs="?", default="Once upon a time", help="text to continue")
    parser.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="default: 48")
    parser.add_argument("--sample", action="store_true", help="choose tokens at random")
    parser.add_argument("--temperature", type=float, default=0.8, help="with --sample")
    parser.add_argument("--top-p", type=float, default=0.95, help="with --sample")
    parser.add_argument("--cache", choices=("static", "dynamic"), default="static")
    parser.add_argument("--tiny", action="store_true", help="random weights instead of SmolLM2")
    options = common.parse(parser)
    common.require_device(options.device)

    console = Console(stderr=True)
    if options.tiny:
        model, tokenizer = common.tiny_language_model()
    else:
        model, tokenizer = common.load_language_model(console)
    model.to(options.device)

    from transformers import TextStreamer

    choice = {"do_sample": False}
    if options.sample:
        choice = {"do_sample": True, "temperature": options.temperature, "top_p": options.top_p}
    inputs = tokenizer(options.prompt, return_tensors="pt").to(options.device)
    start = time.perf_counter()
    output = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=options.max_new_tokens,
        cache_implementation=None if options.cache == "dynamic" else "static",
        disable_compile=True,  # fused mode compiles by itself
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        pad_token_id=tokenizer.eos_token_id,
        **choice,
    )
    count = output.shape[1] - inputs["input_ids"].shape[1]
    seconds = time.perf_counter() - start
    console.print(f"[dim]{count} tokens in {seconds:.1f} s, compiling included[/]")
    if torch.device(options.device).type == "tpu":
        metrics = torch.tpu.metrics()
        programs = metrics["compilations"] + metrics["disk_hits"]
        console.print(f"[dim]{programs} programs, {metrics['launches']} launches[/]")


if __name__ == "__main__":
    sys.exit(common.run(main))
