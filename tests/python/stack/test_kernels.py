# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The ``kernels`` library takes the variant ``torch-tpu`` and puts our layers into models."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

kernels = pytest.importorskip("kernels")

from torch_tpu.integrations.kernels import LAYERS, REPOSITORY, layer_mapping

MODES = [
    kernels.Mode.INFERENCE,
    kernels.Mode.TRAINING,
    kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE,
]


class Norm(nn.Module):
    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class Attention(nn.Module):
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> torch.Tensor:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            above = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(above, float("-inf"))
        if attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1) @ value


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return F.silu(x[..., :half]) * x[..., half:]


class Block(nn.Module):
    """A block of a decoder whose layers carry the names of the Hub."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = use("RMSNorm", Norm)()
        self.attention = use("ScaledDotProductAttention", Attention)()
        self.gate = use("SiluAndMul", Gate)()
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.norm(x).unflatten(-1, (4, 4)).transpose(1, 2)
        mixed = self.attention(heads, heads[:, :2], heads[:, 2:], is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2)
        return x + self.down(self.gate(self.up(self.norm(x))))


def use(name: str, layer: type[nn.Module]) -> type[nn.Module]:
    """Give a fresh subclass the name of a layer of the Hub."""
    return kernels.use_kernel_forward_from_hub(name)(type(layer.__name__, (layer,), {}))


def kernelized(model: nn.Module, mode: Any, names: tuple[str, ...] = ()) -> nn.Module:
    with kernels.use_kernel_mapping(layer_mapping(*names)):
        return kernels.kernelize(model, mode=mode, use_fallback=False)


def test_variant_of_this_backend() -> None:
    kernel = kernels.get_local_kernel(REPOSITORY)
    assert {name for name in LAYERS if hasattr(kernel.layers, name)} == set(LAYERS)
    metadata = json.loads((REPOSITORY / "torch-tpu" / "metadata.json").read_text())
    assert metadata["backend"]["type"] == "tpu"


def test_mapping_names_what_it_lacks() -> None:
    assert set(layer_mapping("RMSNorm")) == {"RMSNorm"}
    with pytest.raises(ValueError, match="no layer Conv; there are RMSNorm"):
        layer_mapping("Conv")


@pytest.mark.usefixtures("no_fallbacks")
@pytest.mark.parametrize("mode", MODES)
def test_block(mode: Any) -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 6, 16)
    results = []
    for device in ("cpu", "tpu"):
        own = copy.deepcopy(block).to(device)
        if device == "tpu":
            kernelized(own, mode)
            replaced = [layer.forward.__func__.__module__ for layer in (own.norm, own.attention)]
            assert replaced == ["torus_layers_torch_tpu_1.layers"] * 2
        if device == "tpu" and kernels.Mode.TORCH_COMPILE in mode:
            own = torch.compile(own, backend="tpu")
        inputs = x.clone().to(device).requires_grad_()
        output = own(inputs)
        output.square().sum().backward()
        gradients = [value.grad.cpu() for value in own.parameters()]
        results.append([output.detach().cpu(), inputs.grad.cpu(), *gradients])
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)


def test_fewer_operators_are_recorded() -> None:
    counts = []
    for replace in (False, True):
        block = Block().tpu()
        if replace:
            kernelized(block, kernels.Mode.INFERENCE)
        with torch.no_grad():
            torch.tpu.reset_metrics()
            block(torch.ones(2, 6, 16, device="tpu")).cpu()
        counts.append(torch.tpu.metrics()["operators"])
    assert counts[1] < 0.7 * counts[0]


@pytest.mark.parametrize("name", ["SiLU", "GeLU", "GeluTanh", "NewGELU"])
def test_activations(name: str) -> None:
    wanted = {"SiLU": nn.SiLU(), "GeLU": nn.GELU()}.get(name, nn.GELU(approximate="tanh"))

    class Activation(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError

    model = nn.Sequential(use(name, Activation)(), nn.Linear(8, 8)).tpu()
    kernelized(model, kernels.Mode.INFERENCE, (name,))
    x = torch.linspace(-3, 3, 8)
    torch.testing.assert_close(model[0](x.tpu()).cpu(), wanted(x), rtol=1e-4, atol=1e-6)


def test_layers_of_transformers() -> None:
    """A layer of Transformers gets its name from the public function of ``kernels``."""
    pytest.importorskip("transformers")
    import stack_parts as parts
    from transformers.models.llama import modeling_llama

    kind = type("LlamaRMSNorm", (modeling_llama.LlamaRMSNorm,), {})
    kernels.replace_kernel_forward_from_hub(kind, "RMSNorm")
    model = parts.llama()
    for module in model.modules():
        if type(module) is modeling_llama.LlamaRMSNorm:
            module.__class__ = kind
    tokens = torch.arange(8, 16).reshape(1, 8)
    with torch.no_grad():
        expected = model(tokens).logits
        kernelized(model.tpu(), kernels.Mode.INFERENCE)
        assert model.model.norm.forward.__func__.__module__ == "torus_layers_torch_tpu_1.layers"
        actual = model(tokens.tpu()).logits.cpu()
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_other_local_repositories(tmp_path: Path) -> None:
    """A repository that somebody else wrote, in the usual layout, is found the same way."""
    variant = tmp_path / "build" / "torch-tpu"
    variant.mkdir(parents=True)
    (variant / "__init__.py").write_text("from . import layers\n")
    (variant / "layers.py").write_text(
        "from torch import nn\n"
        "class Twice(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return 2 * x\n"
    )
    metadata = {"name": "twice", "id": "twice_1", "version": 1, "license": "Apache-2.0"}
    metadata |= {"python-depends": [], "backend": {"type": "tpu"}}
    (variant / "metadata.json").write_text(json.dumps(metadata))

    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = nn.Sequential(use("Twice", Same)(), nn.Identity())
    repository = kernels.LocalLayerRepository(tmp_path, layer_name="Twice")
    with kernels.use_kernel_mapping({"Twice": {"tpu": repository}}):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="tpu")
    assert model(torch.ones(2, device="tpu")).tolist() == [2.0, 2.0]
