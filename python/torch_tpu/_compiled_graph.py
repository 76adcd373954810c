# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""A functional graph as programs of the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.node import Node

from torch_tpu import _C

_log = logging.getLogger("torch_tpu.compiler")


class Graph:
    """A forward or backward graph of AOTAutograd.

    Its first call records the operators on stand-ins for the arguments and compiles them; later
    calls run the program. Arguments that are numbers are part of what was recorded, so that other
    ones record again. That finds the same executable where they only are the graph's real numbers,
    for those are arguments of the executable.

    Parameters
    ----------
    gm : torch.fx.GraphModule
        The graph: functional, but for copies into its inputs at the end.
    may_use_up : bool
        Whether a call may use up the memory of arguments that nobody else holds: what the forward
        pass saved for the backward pass.

    Attributes
    ----------
    callable
        Takes a list of arguments, which it empties, and returns a list of results.
    reason : str or None
        Why the graph is not one program.
    """

    def __init__(self, gm: torch.fx.GraphModule, may_use_up: bool = False) -> None:
        self._gm = gm
        self._may_use_up = may_use_up
        self._has_sizes = _has_sizes(gm)
        self.reason = _needs_host(gm)
        self.callable = _C._CompiledGraph(torch._dynamo.disable(self._call_first))
        self.callable._boxed_call = True
        if self.reason is not None:
            self._tell()

    def _call_first(self, args: list[Any]) -> Sequence[Any]:
        """Make the program for these arguments, unless there can be none, and run it."""
        if self.reason is None and not self._has_sizes:
            self._make_program(args)
        if self.reason is None and not self._has_sizes:
            return self.callable(args)
        return self._run_operators(args)

    def _make_program(self, args: list[Any]) -> None:
        tensors = [arg for arg in args if _is_on_device(arg)]
        given = _C._sole_owned(args) if self._may_use_up else [False] * len(tensors)
        program = _C._Program()
        stand_ins = iter(program.begin(tensors, given))
        try:
            with torch.no_grad(), torch._C._DisableAutocast():
                results = self._gm(
                    *(next(stand_ins) if _is_on_device(arg) else arg for arg in args)
                )
            program.end(list(results))
        except Exception as error:
            program.abort()
            self.reason = _explain(error)
            self._tell()
            return
        self.callable.add(program, [_constant(arg) for arg in args])

    def _run_operators(self, args: list[Any]) -> Sequence[Any]:
        """Run the operators through the engine, in as few programs as there are waits."""
        device = next((arg.device.index for arg in args if _is_on_device(arg)), -1)
        inputs = list(args)
        args.clear()
        _C._hold(device)
        try:
            with torch.no_grad(), torch._C._DisableAutocast():
                return self._gm(*inputs)
        finally:
            _C._release(device)

    def _tell(self) -> None:
        _log.info("a compiled graph runs operator by operator: %s", self.reason)


def _is_on_device(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.device.type == "tpu"


def _constant(arg: Any) -> Any:
    """Return what an argument must be equal to; None for tensors on the device."""
    if isinstance(arg, torch.Tensor):
        return None if arg.device.type == "tpu" or arg.numel() == 0 else arg.item()
    return arg


def _explain(error: Exception) -> str:
    missing = _C._take_missing()
    if not missing:
        return str(error)
    operator, reason, _ = missing[0]
    return f"{operator}: {reason}"


def _values(node: Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _has_sizes(gm: torch.fx.GraphModule) -> bool:
    """Return whether sizes differ from call to call."""
    return any(
        isinstance(value, torch.SymInt)
        for node in gm.graph.nodes
        if node.op == "placeholder"
        for value in _values(node)
    )


def _is_on_host(value: Any) -> bool:
    """Tell tensors of the host, except the empty ones that stand for the order of effects."""
    is_tensor = isinstance(value, torch.Tensor) and value.device.type not in ("tpu", "meta")
    return is_tensor and value.numel() != 0


def _needs_host(gm: torch.fx.GraphModule) -> str | None:
    """Return what keeps a graph from being one program as far as its nodes tell."""
    for node in gm.graph.nodes:
        on_host = any(_is_on_host(value) for value in _values(node))
        if node.op == "placeholder" and any(
            _is_on_host(value) and value.dim() > 0 for value in _values(node)
        ):
            return f"its argument {node.name} is a tensor of the host"
        if node.op == "call_function" and on_host and _writes(node):
            return f"{node.target} writes to a tensor of the host"
        if node.op == "output":
            for result in node.all_input_nodes:
                if any(_is_on_host(value) for value in _values(result)):
                    return f"its result {result.name} is a tensor of the host"
    return None


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
