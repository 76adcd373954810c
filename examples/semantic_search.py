"""Find paragraphs by meaning: embeddings of MiniLM, and a search on the device.

Every paragraph of the given text files becomes a vector of length 1; the query becomes one too,
and the paragraphs with the largest dot products are the answer. Vectors are computed in batches
of equal shape, so that the device compiles one program for all of them.
"""

import argparse
import sys
from pathlib import Path

import common
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track

EXAMPLES = """\
examples:
  semantic_search.py "where are compiled programs kept?"
  semantic_search.py --top 5 "how do plants eat?" notes.txt book.md
"""
TOKENS = 128


def paragraphs(paths: list[Path]) -> list[tuple[str, str]]:
    """Read the paragraphs of text files, each with its file's name."""
    found = []
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise common.ExampleError(f"{path} cannot be read: {error}") from error
        blocks = (" ".join(block.split()) for block in text.split("\n\n"))
        found += [(path.name, block) for block in blocks if len(block.split()) > 5]
    if not found:
        raise common.ExampleError("the files have no paragraph of more than five words")
    return found


class Embedder:
    """Turns texts into vectors of length 1.

    Parameters
    ----------
    model, tokenizer
        all-MiniLM-L6-v2.
    device : str
        Where the model is and the vectors stay.
    """

    def __init__(self, model, tokenizer, device: str) -> None:
        self.model = model.to(device)
        self.tokenizer = tokenizer
        self.device = device

    @torch.no_grad()
    def __call__(self, texts: list[str], size: int) -> torch.Tensor:
        """Embed texts, filled up to `size` of them; returns shape (len(texts), 384)."""
        padded = texts + [""] * (size - len(texts))
        inputs = self.tokenizer(
            padded, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
        ).to(self.device)
        hidden = self.model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)[: len(texts)]


def main() -> None:
    """Index the files, then answer the query."""
    here = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES)
    parser.add_argument("query", nargs="?", default="where are compiled programs kept?")
    parser.add_argument(
        "files", nargs="*", type=Path, help="texts to search (default: Torus's own documentation)"
    )
    parser.add_argument("--top", type=int, default=3, metavar="N", help="answers (default: 3)")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="texts at a time")
    options = common.parse(parser)
    common.require_device(options.device)

    console = Console()
    progress = Console(stderr=True)
    defaults = [here / "README.md", here / "docs" / "design.md"]
    texts = paragraphs(options.files or defaults)
    embed = Embedder(*common.load_embedding_model(progress), options.device)
    batches = [
        [text for _, text in texts[start : start + options.batch]]
        for start in range(0, len(texts), options.batch)
    ]
    vectors = [
        embed(batch, options.batch)
        for batch in track(batches, f"Embedding {len(texts)} paragraphs", console=progress)
    ]
    index = torch.cat(vectors)
    scores = index @ embed([options.query], 1)[0]
    best = scores.topk(min(options.top, len(texts)))
    for score, position in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        file, text = texts[position]
        shown = text if len(text) < 300 else f"{text[:300]} ..."
        console.print(f"[bold]{score:.3f}[/] [cyan]{escape(file)}[/] {escape(shown)}")


if __name__ == "__main__":
    sys.exit(common.run(main))
