"""Run two pretrained models on a device and on the CPU, and compare what they say.

SmolLM2-135M-Instruct answers a prompt through the ordinary ``generate`` of Transformers, then
all-MiniLM-L6-v2 ranks sentences by similarity to a query. Nothing in the models is changed for
the device: they are moved with ``.to("tpu")``. Both sets of weights come from installed packages,
so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import (
    ExampleError,
    load_embedding_model,
    load_language_model,
    require_device,
    step,
)
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

EMBEDDING_TOLERANCE = 1e-4
DEFAULT_PROMPT = "Explain in two sentences why the sky is blue."
QUERY = "How do plants make their food?"
SENTENCES = (
    "Photosynthesis turns sunlight, water and carbon dioxide into sugar.",
    "Chlorophyll in the leaves absorbs red and blue light.",
    "Mushrooms feed on dead wood and fallen leaves.",
    "The bakery on the corner sells fresh bread every morning.",
    "A tomato seedling needs six hours of direct sun a day.",
    "The train to Vienna leaves from platform seven.",
    "Roots take up water and minerals from the soil.",
    "She tuned the violin before the concert began.",
    "Solar panels convert light into electricity.",
    "The parliament voted on the new budget last night.",
)
COUNTERS = ("compilations", "launches", "cache_hits", "disk_hits")
HELP_EXAMPLES = """\
examples:
  quickstart.py                                   on device tpu, against the CPU
  quickstart.py --prompt "Name three rivers."     another question
  quickstart.py --max-new-tokens 128              a longer answer
  quickstart.py --device cpu                      the CPU against itself, without the backend
  quickstart.py --json > report.json              figures for a program; progress stays on stderr

exit status: 0 same results and no fallback, 1 results differ or an operator fell back to the CPU,
2 the example could not run
"""


@dataclasses.dataclass
class Answer:
    """What the language model wrote on one device."""

    ids: list[int]
    text: str
    seconds: float
    first_token_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Rate after the first token, which pays for the prompt and for compiling."""
        later = self.seconds - self.first_token_seconds
        return (len(self.ids) - 1) / later if len(self.ids) > 1 and later > 0 else 0.0


@dataclasses.dataclass
class Ranking:
    """Embeddings of the query and the sentences on one device, as CPU values."""

    embeddings: torch.Tensor
    seconds: float

    @property
    def scores(self) -> list[float]:
        """Cosine similarity of the query, row 0, to each sentence."""
        return (self.embeddings[1:] @ self.embeddings[0]).tolist()

    @property
    def order(self) -> list[int]:
        """Sentence numbers from the most to the least similar."""
        scores = self.scores
        return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)


# ---- progress ---------------------------------------------------------------------------------


class TokenProgress:
    """A Transformers streamer that counts tokens on a progress bar and notes the first one's time.

    Parameters
    ----------
    advance : callable
        Called once for each new token.
    """

    def __init__(self, advance: Callable[[], None]) -> None:
        self.advance = advance
        self.first_token_at: float | None = None
        self.prompt_seen = False

    def put(self, _: torch.Tensor) -> None:
        """Take one token; the first call of all brings the prompt."""
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        self.advance()

    def end(self) -> None:
        """Nothing is held back, so there is nothing to flush."""


def token_bar(console: Console) -> Progress:
    """Make the progress bar of a generation."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TextColumn("tokens"), TimeElapsedColumn(), console=console)


# ---- running ----------------------------------------------------------------------------------


def chat_inputs(tokenizer: Any, prompt: str) -> dict[str, torch.Tensor]:
    """Turn a question into the token ids of a chat turn, shape (1, length), on the CPU."""
    chat = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return dict(tokenizer(text, return_tensors="pt", add_special_tokens=False))


def answer(
    model: Any, tokenizer: Any, prompt: str, count: int, device: str, console: Console
) -> Answer:
    """Write a greedy answer of at most `count` tokens on `device`.

    The model is moved there and stays there.
    """
    inputs = {name: value.to(device) for name, value in chat_inputs(tokenizer, prompt).items()}
    model.to(device)
    with token_bar(console) as bar:
        task = bar.add_task(f"Answering on {device}", total=count)
        streamer = TokenProgress(lambda: bar.advance(task))
        start = time.perf_counter()
        output = model.generate(
            **inputs,
            max_new_tokens=count,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
            streamer=streamer,
        )
        ids = output[0, inputs["input_ids"].shape[1] :].tolist()
        end = time.perf_counter()
        bar.update(task, total=len(ids))
    text = tokenizer.decode(ids, skip_special_tokens=True).strip()
    return Answer(ids, text, end - start, (streamer.first_token_at or end) - start)


@torch.no_grad()
def rank(model: Any, tokenizer: Any, device: str) -> Ranking:
    """Embed the query and the sentences on `device`: mean over tokens, then unit length."""
    inputs = tokenizer([QUERY, *SENTENCES], padding=True, return_tensors="pt").to(device)
    model.to(device)
    start = time.perf_counter()
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    embeddings = torch.nn.functional.normalize(mean, dim=1).cpu()
    return Ranking(embeddings, time.perf_counter() - start)


def read_metrics(device: str) -> dict[str, Any] | None:
    """Read the backend's counters; None on a device that keeps none."""
    module = getattr(torch, torch.device(device).type, None)
    metrics = getattr(module, "metrics", None)
    return dict(metrics()) if callable(metrics) else None


# ---- the report -------------------------------------------------------------------------------


@dataclasses.dataclass
class Report:
    """Results of both models on the device and on the CPU."""

    device: str
    prompt: str
    answers: dict[str, Answer]
    rankings: dict[str, Ranking]
    metrics: dict[str, Any] | None

    @property
    def ids_equal(self) -> bool:
        """Whether both answers are the same tokens."""
        return self.answers["cpu"].ids == self.answers["device"].ids

    @property
    def embedding_difference(self) -> float:
        """Largest absolute difference between the two sets of embeddings."""
        cpu, device = self.rankings["cpu"].embeddings, self.rankings["device"].embeddings
        return (cpu - device).abs().max().item()

    @property
    def fallbacks(self) -> dict[str, int]:
        """How often each operator ran on the CPU instead of the device."""
        return dict((self.metrics or {}).get("fallbacks", {}))

    def failures(self) -> list[str]:
        """Say what went wrong, one sentence each; empty when all is well."""
        found = []
        if not self.ids_equal:
            pair = zip(self.answers["cpu"].ids, self.answers["device"].ids, strict=False)
            same = next((i for i, (a, b) in enumerate(pair) if a != b), "the end of the shorter")
            found.append(f"the answers differ from token {same} on")
        # Written so that NaN counts as a difference.
        if not self.embedding_difference <= EMBEDDING_TOLERANCE:
            found.append(f"embeddings differ by {self.embedding_difference:.2e}")
        if self.fallbacks:
            names = ", ".join(f"{name} x{count}" for name, count in self.fallbacks.items())
            found.append(f"operators ran on the CPU: {names}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Build the report as plain values."""
        return {
            "device": self.device,
            "prompt": self.prompt,
            "answers": {
                place: {**dataclasses.asdict(given), "tokens_per_second": given.tokens_per_second}
                for place, given in self.answers.items()
            },
            "ids_equal": self.ids_equal,
            "query": QUERY,
            "rankings": {
                place: {
                    "seconds": ranking.seconds,
                    "sentences": [[SENTENCES[i], ranking.scores[i]] for i in ranking.order],
                }
                for place, ranking in self.rankings.items()
            },
            "embedding_difference": self.embedding_difference,
            "metrics": self.metrics,
            "failures": self.failures(),
        }


def print_answers(report: Report, console: Console) -> None:
    """Print the prompt and both answers."""
    console.print(Panel(Text(report.prompt), title="prompt", title_align="left"))
    for place, name in (("device", report.device), ("cpu", "cpu, the reference")):
        text = Text(report.answers[place].text)
        console.print(Panel(text, title=f"answer on {name}", title_align="left"))


def print_ranking(report: Report, console: Console) -> None:
    """Print the sentences in the device's order with the similarities of both devices."""
    table = Table(title=f"similarity to: {QUERY}", title_justify="left")
    table.add_column("sentence")
    table.add_column(report.device, justify="right")
    table.add_column("cpu", justify="right")
    device, cpu = report.rankings["device"], report.rankings["cpu"]
    for i in device.order:
        table.add_row(SENTENCES[i], f"{device.scores[i]:.4f}", f"{cpu.scores[i]:.4f}")
    console.print(table)


def print_figures(report: Report, console: Console) -> None:
    """Print times and agreement, then the backend's counters where it has them."""
    table = Table(title="figures", title_justify="left")
    table.add_column("")
    table.add_column(report.device, justify="right")
    table.add_column("cpu", justify="right")
    answers = report.answers["device"], report.answers["cpu"]
    rankings = report.rankings["device"], report.rankings["cpu"]
    table.add_row("answer, s", *(f"{a.seconds:.2f}" for a in answers))
    table.add_row("  first token, s", *(f"{a.first_token_seconds:.2f}" for a in answers))
    table.add_row("  tokens/s after it", *(f"{a.tokens_per_second:.1f}" for a in answers))
    table.add_row("ranking, s", *(f"{r.seconds:.2f}" for r in rankings))
    table.add_row("token ids equal", "yes" if report.ids_equal else "[red]no[/]", "")
    table.add_row("largest embedding difference", f"{report.embedding_difference:.1e}", "")
    for name in COUNTERS:
        if report.metrics is not None and name in report.metrics:
            table.add_row(name.replace("_", " "), str(report.metrics[name]), "")
    if report.metrics is not None:
        table.add_row("fallbacks", str(sum(report.fallbacks.values())), "")
    console.print(table)
    if report.metrics is None:
        console.print(f"[dim]device {report.device} keeps no counters[/]")


def print_report(report: Report, console: Console) -> None:
    """Print everything for a person to read."""
    print_answers(report, console)
    print_ranking(report, console)
    print_figures(report, console)
    for failure in report.failures():
        console.print(f"[bold red]FAILED[/] {escape(failure)}")
    if not report.failures():
        console.print(f"[bold green]OK[/] {report.device} and cpu agree")


# ---- command line -----------------------------------------------------------------------------


def positive(text: str) -> int:
    """Parse an integer above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=HELP_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="tpu", help="compared with the CPU (default: tpu)")
    parser.add_argument("--prompt", default=DEFAULT_PROMPT, help="question to answer")
    parser.add_argument(
        "--max-new-tokens",
        type=positive,
        default=48,
        metavar="N",
        help="longest answer (default: 48)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser.parse_args(arguments)


def check_length(model: Any, tokenizer: Any, prompt: str, count: int) -> None:
    """Refuse a prompt that leaves no room for the answer.

    Raises
    ------
    ExampleError
        If prompt and answer are longer than the model's context.
    """
    room = model.config.max_position_embeddings
    needed = chat_inputs(tokenizer, prompt)["input_ids"].shape[1] + count
    if needed > room:
        raise ExampleError(f"prompt and answer take {needed} tokens; the model has {room}")


def compare(options: argparse.Namespace, console: Console) -> Report:
    """Run both models on the CPU, then on the chosen device."""
    require_device(options.device)
    places = {"cpu": "cpu", "device": options.device}

    writer, tokenizer = load_language_model(console)
    check_length(writer, tokenizer, options.prompt, options.max_new_tokens)
    answers = {
        place: answer(writer, tokenizer, options.prompt, options.max_new_tokens, device, console)
        for place, device in places.items()
    }
    encoder, tokenizer = load_embedding_model(console)
    rankings = {}
    for place, device in places.items():
        with step(console, f"Ranking sentences on {device}"):
            rankings[place] = rank(encoder, tokenizer, device)
    return Report(options.device, options.prompt, answers, rankings, read_metrics(options.device))


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status."""
    options = parse_arguments(arguments)
    progress = Console(stderr=True)
    try:
        report = compare(options, progress)
    except ExampleError as error:
        progress.print(f"[bold red]error:[/] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        progress.print("interrupted")
        return 130
    if options.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print_report(report, Console())
    return 1 if report.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
