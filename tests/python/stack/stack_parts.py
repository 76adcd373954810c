# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Small models, words and pictures that the tests of the libraries share; all made on the spot."""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

DEVICES = ("cpu", "tpu")

SENTENCES = [
    "the cat sleeps on the warm stove",
    "a dog runs over the green hill",
    "numbers are kept in a small tensor",
    "the tensor is sent to the device",
    "rain falls on the green hill while the cat sleeps",
    "a small dog sleeps",
]

_ACCELERATE = ["-m", "accelerate.commands.launch", "--num_machines", "1"]
_ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no"]
_LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
    "accelerate": [*_ACCELERATE, "--num_processes"],
    "accelerate for several": [
        *_ACCELERATE,
        "--multi_gpu",
        "--main_process_port",
        "0",
        "--num_processes",
    ],
}

_SPECIAL = {
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
}
_CHAT = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} [SEP]"
    "{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Build a tokenizer whose words are those of `SENTENCES`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    names = [*_SPECIAL.values(), "user", "assistant", *words]
    inner = Tokenizer(
        models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", names.index("[CLS]")), ("[SEP]", names.index("[SEP]"))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, chat_template=_CHAT, model_max_length=32, **_SPECIAL
    )


def generator_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Build the same tokenizer, padding on the left and adding no marks, as decoders want it."""
    from tokenizers import processors

    own = tokenizer()
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[]
    )
    own.padding_side = "left"
    return own


def llama(seed: int = 0, layers: int = 2, **options: Any) -> transformers.LlamaForCausalLM:
    """Build a decoder with random weights and the vocabulary of the tokenizer."""
    words = tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        **options,
    )
    transformers.set_seed(seed)
    return transformers.LlamaForCausalLM(config).eval()


def bert(kind: type[nn.Module] | None = None, seed: int = 0, **options: Any) -> nn.Module:
    """Build an encoder of the given class (`BertModel` if none) with random weights."""
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.2,
        pad_token_id=tokenizer().pad_token_id,
        **options,
    )
    transformers.set_seed(seed)
    return (kind or transformers.BertModel)(config).eval()


def vit(**options: Any) -> transformers.ViTForImageClassification:
    """Build a classifier of pictures of 32 x 32 with random weights."""
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        initializer_range=0.2,
        num_labels=4,
        **options,
    )
    transformers.set_seed(0)
    return transformers.ViTForImageClassification(config).eval()


def picture(seed: int = 0) -> Any:
    """Paint a picture of 40 x 40 pixels."""
    import numpy as np
    from PIL import Image

    values = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    return Image.fromarray(values)


def save(model: Any, folder: Path, words: Any = None) -> Path:
    """Save a model, with its tokenizer if given, and return the folder."""
    model.save_pretrained(folder)
    if words is not None:
        words.save_pretrained(folder)
    return folder


def on_both(model: nn.Module, run: Callable[[nn.Module, str], Any]) -> list[Any]:
    """Return what ``run(copy of the model, device)`` gives on the CPU and on "tpu"."""
    return [run(copy.deepcopy(model).to(device), device) for device in DEVICES]


@contextlib.contextmanager
def accelerate_on(device: str) -> Iterator[None]:
    """Let what uses Accelerate, such as a Trainer, run on a device.

    The variable through which Accelerate learns of "tpu" outweighs ``use_cpu=True``.
    """
    import accelerate
    import pytest

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", device)
        yield


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of all parameters on the host."""
    return {name: value.detach().cpu().float() for name, value in model.named_parameters()}


def assert_same_weights(
    actual: nn.Module, expected: nn.Module, rtol: float = 1e-3, atol: float = 1e-5
) -> None:
    """Compare all parameters of two models."""
    torch.testing.assert_close(weights(actual), weights(expected), rtol=rtol, atol=atol)


def changed(model: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    """Name the parameters that are no longer what they were."""
    after = weights(model)
    return {name for name in after if not torch.equal(after[name], before[name])}


def launch(command: list[str], folder: Path, processes: int = 1, launcher: str = "torchrun") -> str:
    """Run ``python COMMAND`` in some processes, in a folder, and return what they printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name in ("ACCELERATE_TORCH_DEVICE", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, *_LAUNCHERS[launcher], str(processes), *command],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        # A launcher that is asked to stop ends its processes; one that is killed leaves them.
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output
