# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The ``torch.compile`` backend named ``"tpu"``.

PyTorch finds it through the entry point group ``torch_dynamo_backends`` when a program first asks
for it, or takes it when the tensors are on ``"tpu"`` and no backend is named; so none of this costs
anything before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torch_tpu import _control_flow, _dynamo_interface
from torch_tpu._compiled_graph import Graph

__all__ = ["tpu_backend"]

_MODES = (
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
    "lite",
)


def tpu_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a captured graph for the device.

    The graph is made functional and differentiated ahead of time. Forward and backward become one
    program each: their operators are recorded once, by the lowerings that eager code uses, and the
    executable is kept. A graph that cannot be one program (an operator without a lowering, a result
    whose size depends on values, tensors of the host) runs through the recording engine at each
    call instead; `torch.tpu.explain` says why.

    Parameters
    ----------
    gm : torch.fx.GraphModule
        The graph that Dynamo captured.
    example_inputs : sequence of torch.Tensor
        Its inputs, usually fake tensors.
    mode : str, optional
        A mode of `torch.compile`. Checked; all of them do the same here.
    options : mapping, optional
        Options of `torch.compile`. Accepted and not used.
    **kwargs
        Accepted for other callers of Dynamo backends.

    Returns
    -------
    callable
        Takes the graph's inputs and returns its outputs.

    Raises
    ------
    ValueError
        If `mode` is not a mode of `torch.compile`.
    TypeError
        If `options` is not a mapping.
    """
    del kwargs
    if mode is not None and mode not in _MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(_MODES)}")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping, not {type(options).__name__}")
    if any(isinstance(example, (list, tuple, dict)) for example in example_inputs):
        from torch._dynamo.utils import flatten_graph_inputs

        return flatten_graph_inputs(gm, example_inputs, tpu_backend)
    return _compile_ahead(gm, example_inputs)


def _compile_ahead(
    gm: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    from functorch.compile import min_cut_rematerialization_partition
    from torch._functorch.aot_autograd import aot_module_simplified

    from torch_tpu._trained_graph import Pair

    pair = Pair()
    function = aot_module_simplified(
        gm,
        example_inputs,
        fw_compiler=pair.forward,
        bw_compiler=pair.backward,
        inference_compiler=_inference,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return pair.shorten(function, len(example_inputs))


def _inference(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    del example_inputs
    return Graph(gm).callable


def choose_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph for the device that its tensors are on.

    This is what `torch.compile` uses where no backend is named: `tpu_backend` for graphs with
    tensors on ``"tpu"``, and PyTorch's own default for all others, with the arguments that it would
    have had.

    Parameters
    ----------
    gm, example_inputs, mode, options
        As for `tpu_backend`.

    Returns
    -------
    callable
        Takes the graph's inputs and returns its outputs.
    """
    if is_for_tpu(gm, example_inputs):
        return tpu_backend(gm, example_inputs, mode=mode, options=options)
    is_dynamic = any(isinstance(example, torch.SymInt) for example in example_inputs)
    inductor = torch._TorchCompileInductorWrapper(
        mode or ("default" if options is None else None), options, is_dynamic or None
    )
    return inductor(gm, example_inputs)


def is_for_tpu(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Return whether a graph of Dynamo's has tensors on ``"tpu"``."""
    return any(device.type == "tpu" for device in _devices(gm, example_inputs))


def _devices(
    gm: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor]
) -> Iterator[torch.device]:
    """Yield the devices of a graph's inputs, then those that its operators name or give."""
    for example in example_inputs:
        if isinstance(example, torch.Tensor):
            yield example.device
    for tensor in (*gm.parameters(), *gm.buffers()):
        yield tensor.device
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            yield value.device


_dynamo_interface.register()
_control_flow.register()
