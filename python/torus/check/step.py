# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The step that is checked: a forward pass, a training step, or one token of decoding."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_tpu.aot
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from torus.check import inputs
from torus.check.source import Source, SourceError

__all__ = ["DTYPES", "Request", "lower"]

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be checked.

    Attributes
    ----------
    mode : str
        ``"forward"``, ``"train"`` (gradients and AdamW) or ``"decode"`` (one token, a static cache
        of `seq`).
    batch : int
        Samples in one step, over all devices.
    seq : int
        Length of each.
    dtype : str
        Of parameters and activations; ``"mixed"`` keeps parameters and optimizer in float32 and
        computes in bfloat16.
    remat : bool
        Whether layers are computed again in the backward pass instead of kept.
    """

    mode: str = "forward"
    batch: int = 1
    seq: int = 512
    dtype: str = "bfloat16"
    remat: bool = False

    @property
    def parameter_dtype(self) -> torch.dtype:
        """Dtype of the parameters."""
        return DTYPES["float32" if self.dtype == "mixed" else self.dtype]


def lower(source: Source, request: Request) -> tuple[Any, torch_tpu.aot.Lowered]:
    """Capture the step as one program, without memory for the model and without running it.

    Parameters
    ----------
    source : Source
        The model.
    request : Request
        What to do with it.

    Returns
    -------
    model : torch.nn.Module or callable
        The model, abstract.
    lowered : torch_tpu.aot.Lowered
        Its step; operators that cannot be lowered are in ``fallbacks``.

    Raises
    ------
    SourceError
        If the model has no such mode.
    torch_tpu.aot.NotLowered
        If a value is needed on the host.
    """
    with torch_tpu.aot.abstract():
        model, arguments, given = _build(source, request)
        step = _STEPS[request.mode](source, request, model, arguments, given)
    with _one_sequence_in_each_row():
        lowered = torch_tpu.aot.lower(step, *arguments, on_missing="collect", for_tpu=True, **given)
    return model, lowered


@contextlib.contextmanager
def _one_sequence_in_each_row() -> Iterator[None]:
    """Answer what Transformers reads from position ids when a model has neither mask nor cache.

    It looks whether several sequences are packed into a row. Here there is one, but no value that
    would say so.
    """
    masking = sys.modules.get("transformers.masking_utils")
    found = getattr(masking, "find_packed_sequence_indices", None)
    if masking is None or found is None:
        yield
        return
    masking.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking.find_packed_sequence_indices = found


def _build(source: Source, request: Request) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return model, positional and named inputs."""
    if source.library == "function":
        model, example = source.build(request.parameter_dtype)
        model, example = _on_device(model), _on_device(example)
        named = isinstance(example, dict)
        return model, () if named else tuple(example), example if named else {}
    with torch.device("tpu"):
        model = source.build(request.parameter_dtype)
        model.train(request.mode == "train").requires_grad_(request.mode == "train")
        seq = 1 if request.mode == "decode" else request.seq
        given = inputs.make(source, model, request.batch, seq, request.parameter_dtype)
    return model, (), given


def _on_device(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return value.to("tpu")
    if not isinstance(value, (torch.Tensor, dict, list, tuple)):
        return value
    return pytree.tree_map_only(torch.Tensor, torch_tpu.aot.abstract_like, value)


def _tensors(result: Any) -> Any:
    """Return the tensors of a model's result: its logits, a tensor, or a tuple of them."""
    for name in ("logits", "sample", "last_hidden_state"):
        if getattr(result, name, None) is not None:
            return getattr(result, name)
    return result


# ---- the modes ----


def _forward(
    source: Source, request: Request, model: Any, arguments: Any, given: dict[str, Any]
) -> Callable[..., Any]:
    del source, arguments, given

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), _computing(request):
            return _tensors(model(*args, **kwargs))

    return forward


def _computing(request: Request) -> Any:
    if request.dtype != "mixed":
        return contextlib.nullcontext()
    return torch.autocast("tpu", dtype=torch.bfloat16)


def _train(
    source: Source, request: Request, model: Any, arguments: Any, given: dict[str, Any]
) -> Callable[..., Any]:
    del arguments
    if not isinstance(model, torch.nn.Module):
        raise SourceError("--mode train needs a module with parameters")
    if request.remat:
        _checkpoint_layers(model)
    if source.library == "transformers":
        _add_labels(model, given)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=True, capturable=True)
    _make_state(optimizer, parameters)

    def train(*args: Any, **kwargs: Any) -> torch.Tensor:
        with _computing(request):
            loss = _loss(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return train


def _add_labels(model: Any, given: dict[str, Any]) -> None:
    takes = inspect.signature(model.forward).parameters
    if "labels" in takes and "input_ids" in given and type(model).__name__.endswith("LM"):
        given["labels"] = torch.zeros_like(given["input_ids"])


def _make_state(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
    """Let the optimizer make its moments now, so that they are inputs of the step."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _loss(result: Any) -> torch.Tensor:
    """Return the model's own loss, else the mean square of what it returns."""
    loss = getattr(result, "loss", None)
    if loss is not None:
        return loss
    values = pytree.tree_leaves(_tensors(result))
    floats = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if not floats:
        raise SourceError("--mode train: the model returns nothing with a gradient")
    return sum((v.float().square().mean() for v in floats[1:]), floats[0].float().square().mean())


def _decode(
    source: Source, request: Request, model: Any, arguments: Any, given: dict[str, Any]
) -> Callable[..., Any]:
    del arguments
    if source.library != "transformers" or not hasattr(model, "prepare_inputs_for_generation"):
        raise SourceError("--mode decode needs a model of Transformers that generates text")
    cache = _static_cache(source.config, model, request)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    # Tensors of the cache are arguments by name, though the model finds them in the object.
    given["kv"] = [
        {"keys": layer.keys, "values": layer.values, "length": layer.cumulative_length}
        for layer in cache.layers
    ]

    def decode(kv: Any, **kwargs: Any) -> torch.Tensor:
        del kv
        with torch.no_grad(), _computing(request):
            return model(**kwargs, **{name: cache}, use_cache=True).logits

    return decode


def _static_cache(config: Any, model: Any, request: Request) -> Any:
    from transformers import StaticCache

    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    with torch.device("tpu"):
        cache = StaticCache(config=config, max_cache_len=request.seq)
        cache.early_initialization(request.batch, heads, width, model.dtype, torch.device("tpu"))
    return cache


_STEPS: dict[str, Callable[..., Callable[..., Any]]] = {
    "forward": _forward,
    "train": _train,
    "decode": _decode,
}


# ---- recomputing layers ----


def _checkpoint_layers(model: Any) -> None:
    # Transformers' name, and Diffusers'.
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
        if hasattr(model, name):
            getattr(model, name)()
            break
    else:
        raise SourceError("--remat needs a model of Transformers or Diffusers")
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = _checkpointed


def _checkpointed(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function`, and compute its intermediate values again when its gradient is asked for.

    One program holds both passes, and its compiler would find them equal and keep the first after
    all. ``alias_copy`` is a barrier to it, which makes the second pass another one.
    """
    again = _Again()

    def call(*args: Any) -> Any:
        if again.is_on:
            args = pytree.tree_map_only(torch.Tensor, torch.alias_copy, args)
        return function(*args)

    return checkpoint(
        call,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (contextlib.nullcontext(), again),
    )


class _Again:
    """Knows whether a layer is being computed for the second time."""

    is_on = False

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *error: object) -> None:
        self.is_on = False
