# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What the tensors of a function are called."""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C


def of_path(path: tuple[Any, ...]) -> str:
    """Return a pytree path as a name: ``("past", 0)`` is ``"past.0"``."""
    return ".".join(str(_key(entry)) for entry in path)


def flatten(tree: Any) -> tuple[list[tuple[tuple[Any, ...], Any]], pytree.TreeSpec]:
    """Flatten a pytree into its leaves, each with its path.

    Where a type in it is registered without the names of its parts (the outputs of Diffusers'
    models are), the paths of all leaves are their numbers.
    """
    try:
        return pytree.tree_flatten_with_path(tree)
    except ValueError:
        leaves, spec = pytree.tree_flatten(tree)
        return [((number,), leaf) for number, leaf in enumerate(leaves)], spec


def _key(entry: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


def tensors_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, str]]:
    """Yield name, tensor and kind of what a module holds, plain attributes included."""
    for name, parameter in module.named_parameters():
        yield name, parameter, "parameter"
    for name, buffer in module.named_buffers():
        yield name, buffer, "buffer"
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                yield f"{prefix}.{name}" if prefix else name, value, "buffer"


def referred(fn: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules and optimizers that a call reaches without running it, named.

    Those are the function itself, what it is bound to or closes over, the globals its code names,
    and its arguments.
    """
    for name, value in (*_behind(fn), *((f"arg{i}", arg) for i, arg in enumerate(args))):
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            yield name, value
    for name, value in kwargs.items():
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            yield name, value


def _behind(fn: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(fn, functools.partial):
        yield from _behind(fn.func)
        yield from ((f"arg{i}", arg) for i, arg in enumerate(fn.args))
        yield from fn.keywords.items()
    if isinstance(fn, torch.nn.Module):
        yield "model", fn
    if isinstance(fn, types.MethodType):
        yield "model", fn.__self__
        fn = fn.__func__
    fn = getattr(fn, "__wrapped__", fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in code.co_names:
        if name in fn.__globals__:
            yield name, fn.__globals__[name]


def _copy_state(optimizer: torch.optim.Optimizer) -> dict[Any, dict[str, Any]]:
    """Return the states with tensors on the device as they are: they are restored anyhow."""
    return {
        parameter: {key: _copy_of_host_tensor(value) for key, value in state.items()}
        for parameter, state in optimizer.state.items()
    }


def _copy_of_host_tensor(value: Any) -> Any:
    is_host = isinstance(value, torch.Tensor) and value.device.type != "tpu"
    return value.clone() if is_host else value


class Known:
    """Names of the tensors that a function may read and write.

    Parameters
    ----------
    fn : callable
        The function.
    args, kwargs
        Its arguments.
    """

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._names: dict[int, tuple[str, str]] = {}
        self._counts: Counter[str] = Counter()
        found = {id(value): (name, value) for name, value in referred(fn, args, kwargs)}
        modules = [item for item in found.values() if isinstance(item[1], torch.nn.Module)]
        self._optimizers = [
            item for item in found.values() if isinstance(item[1], torch.optim.Optimizer)
        ]
        self._parameters: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for name, module in modules:
            self._add_module(f"{name}." if len(modules) > 1 else "", module)
        for name, optimizer in self._optimizers:
            self._add_optimizer(name, optimizer)
        self._add_arguments(args, kwargs)
        self._gradients = [(p, p.grad) for _, p in self._parameters.values()]
        self._saved = [(o, _copy_state(o)) for _, o in self._optimizers]

    def restore(self) -> None:
        """Take away the gradients and optimizer states that are new, and undo counts of steps."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for optimizer, state in self._saved:
            optimizer.state.clear()
            optimizer.state.update(state)

    def _add(self, tensor: torch.Tensor, name: str, kind: str) -> bool:
        if tensor.device.type != "tpu":
            return False
        key = _C._storage_key(tensor)
        is_new = key not in self._names
        self._names.setdefault(key, (name, kind))
        return is_new

    def _add_module(self, prefix: str, module: torch.nn.Module) -> None:
        for name, tensor, kind in tensors_of(module):
            self._add(tensor, prefix + name, kind)
            if kind != "parameter":
                continue
            self._parameters.setdefault(id(tensor), (prefix + name, tensor))
            if tensor.grad is not None:
                self._add(tensor.grad, f"{prefix}{name}.grad", "buffer")

    def _add_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for i, parameter in enumerate(group["params"]):
                self._parameters.setdefault(id(parameter), (f"{name}.{i}", parameter))
                self._add(parameter, self._parameters[id(parameter)][0], "parameter")
        for state_name, tensor in self._states(optimizer):
            self._add(tensor, state_name, "buffer")

    def _states(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        for parameter, state in optimizer.state.items():
            owner = self._parameters.get(id(parameter), ("state", None))[0]
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield f"{owner}.{key}", value

    def _add_arguments(self, args: Any, kwargs: Any) -> None:
        for prefix, tree in (("arg", args), ("", kwargs)):
            for path, leaf in flatten(tree)[0]:
                if isinstance(leaf, torch.Tensor):
                    self._add(leaf, prefix + of_path(path), "argument")

    def made_meanwhile(self) -> list[tuple[str, torch.Tensor]]:
        """Return the gradients and optimizer states that are new since the names were collected."""
        found = [
            (f"{name}.grad", parameter.grad)
            for name, parameter in self._parameters.values()
            if parameter.grad is not None
        ]
        for _, optimizer in self._optimizers:
            found.extend(self._states(optimizer))
        return [(name, tensor) for name, tensor in found if self._add(tensor, name, "buffer")]

    def name(self, key: int) -> tuple[str, str]:
        """Return name and kind of the tensor with a storage key."""
        if key not in self._names:
            self._names[key] = (self._numbered("captured"), "argument")
        return self._names[key]

    def number(self, kind: str) -> tuple[str, str]:
        """Return name and kind of an input that is no tensor of the program's caller."""
        return self._numbered(kind), kind

    def _numbered(self, word: str) -> str:
        self._counts[word] += 1
        return f"{word}{self._counts[word] - 1}"
