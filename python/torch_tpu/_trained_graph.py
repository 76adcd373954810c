# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""A forward and a backward graph as one function of autograd, without Python at each call.

AOTAutograd's own function serves every kind of graph: inputs that are written, results that are
views, tensor subclasses, effects. For the graphs that have none of these, `Pair` hands what
AOTAutograd found out to the binding, which then does at each call what AOTAutograd would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

from torch_tpu import _C
from torch_tpu._compiled_graph import Graph

_FRESH = (OutputType.non_alias, OutputType.unsafe_view_alias)


class Pair:
    """The compilers of one graph's two halves, for AOTAutograd to call.

    `forward` and `backward` are given to AOTAutograd; `shorten` then takes the function that it
    made and returns one that is quicker where it can be.
    """

    def __init__(self) -> None:
        self._forward: Graph | None = None
        self._metadata: Any = None
        self._argument_count = 0
        self._trained: Any = None

    def forward(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile the forward half; notes what AOTAutograd knows of the function."""
        context = torch._guards.TracingContext.try_get()
        self._metadata = context.fw_metadata if context is not None else None
        self._argument_count = len(example_inputs)
        self._forward = Graph(gm)
        return self._forward.callable

    @torch._dynamo.disable(reason="the compiler of the backward pass")
    def backward(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile the backward half, which may be long after the forward half."""
        del example_inputs
        graph = Graph(gm, may_use_up=True)
        if self._trained is not None:
            self._trained.set_backward(graph.callable, _are_given(gm))
        return graph.callable

    def shorten(self, function: Callable[..., Any], argument_count: int) -> Callable[..., Any]:
        """Return a callable that does what AOTAutograd's `function` of so many arguments does."""
        is_whole = self._argument_count == argument_count
        if self._forward is None or not is_whole or not _is_usual(self._metadata):
            return function
        info = self._metadata.output_info
        self._trained = _C._TrainedGraph(
            function,
            self._forward.callable,
            [output.requires_grad for output in info],
            bool(self._metadata.deterministic),
        )
        places = [i for i, output in enumerate(info) if output.requires_grad_for_backward]
        for place, meta in zip(places, self._metadata.subclass_tangent_meta, strict=True):
            layout = meta.memory_format
            self._trained.add_tangent(place, list(layout.stride or ()), layout.memory_format)
        return self._trained


def _are_given(gm: torch.fx.GraphModule) -> list[bool]:
    """Return for each result of a graph whether it is one."""
    output = next(node for node in gm.graph.nodes if node.op == "output")
    return [result is not None for result in output.args[0]]


def _is_usual(metadata: Any) -> bool:
    """Return whether a function has none of what only AOTAutograd's own wrappers know."""
    if metadata is None or torch._dynamo.config.compiled_autograd:
        return False
    unusual = (
        metadata.num_mutated_inp_runtime_indices,
        metadata.mutated_graph_handled_indices_seen_by_autograd,
        metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw,
        metadata.num_outputs_aliased,
        metadata.num_intermediate_bases,
        metadata.num_symints_saved_for_bw,
        metadata.num_tensors_saved_with_no_vc_check,
        metadata.num_opaque_objects_saved_for_bw,
        metadata.num_graphsafe_rng_states,
        metadata.num_outputs_rng_offset,
        metadata.num_backward_tokens,
        metadata.tokens,
        metadata.dynamic_outputs,
        metadata.dynamic_saved_tensors_idxs,
        metadata.grad_enabled_mutation is not None,
        torch._functorch.config.debug_assert,
    )
    return not any(unusual) and _has_plain_tensors(metadata)


def _has_plain_tensors(metadata: Any) -> bool:
    metas = (
        *metadata.subclass_inp_meta,
        *metadata.subclass_fw_graph_out_meta,
        *metadata.subclass_tangent_meta,
    )
    are_plain = all(isinstance(meta, PlainTensorMeta) for meta in metas)
    have_layout = all(meta.memory_format is not None for meta in metadata.subclass_tangent_meta)
    return (
        are_plain
        and have_layout
        and all(
            output.output_type in _FRESH and issubclass(output.raw_type, torch.Tensor)
            for output in metadata.output_info
        )
    )
