# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Makes ``torch.compile`` without a named backend look at where the tensors are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_tpu._post_import import when_imported
from torch_tpu._wrap import wrap_once


def install() -> None:
    """Enter the choice into Dynamo's registry, and the device where only others are let in."""
    when_imported("torch._dynamo.backends.registry", _register)
    when_imported("torch._inductor.compile_fx", _redirect)
    when_imported("torch.nn.attention.flex_attention", _admit)


def choose(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
    """Compile a graph where its tensors are; see `torch_tpu.compiler.choose_backend`."""
    from torch_tpu.compiler import choose_backend

    return choose_backend(gm, example_inputs, **kwargs)


def _register(registry: ModuleType) -> None:
    if registry.get_default_backend() == "inductor":  # a choice of the user's stays
        registry.set_default_backend(choose)


def _redirect(inductor: ModuleType) -> None:
    """Compile graphs of the device also where libraries name Inductor without asking the user.

    Transformers does in ``generate``. Inductor generates code for devices and has no place for a
    compiler of whole graphs; for this device its code would need another framework.
    """

    @wrap_once(inductor, "compile_fx")
    def choose_fx(
        compile_fx: Any, model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from torch_tpu.compiler import is_for_tpu, tpu_backend

        if isinstance(model_, torch.fx.GraphModule) and is_for_tpu(model_, example_inputs_):
            return tpu_backend(model_, example_inputs_)
        return compile_fx(model_, example_inputs_, *args, **kwargs)


def _admit(flex: ModuleType) -> None:
    """Let flex_attention have tensors on the device: it knows a fixed set of others."""

    @wrap_once(flex, "_validate_device")
    def validate_device(
        validate: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        if query.device.type != "tpu":
            validate(query, key, value)
