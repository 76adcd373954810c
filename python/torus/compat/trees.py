# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Nested results: their tensors by name, copies on a device, and how far two of them differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

Named = dict[str, torch.Tensor]

_CACHE_STATES = ("keys", "values", "conv_states", "recurrent_states")


def tensors(tree: Any, path: str = "") -> Named:
    """Return the tensors of a result by their path, those of key-value caches included."""
    found: Named = {}
    if isinstance(tree, torch.Tensor):
        found[path] = tree
    elif isinstance(tree, dict):
        for name, value in tree.items():
            found |= tensors(value, f"{path}.{name}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            found |= tensors(value, f"{path}[{index}]")
    elif hasattr(tree, "self_attention_cache"):
        found |= tensors(tree.self_attention_cache, path + ".self")
        found |= tensors(tree.cross_attention_cache, path + ".cross")
    elif hasattr(tree, "layers") and hasattr(tree, "get_seq_length"):
        for index, layer in enumerate(tree.layers):
            states = {name: getattr(layer, name, None) for name in _CACHE_STATES}
            found |= tensors(states, f"{path}.cache{index}")
    return found


def move(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the tree with every tensor of it changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {name: move(value, change) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(move(value, change) for value in tree)
    return tree


def to_device(tree: Any, device: str) -> Any:
    """Return a copy of the tree whose tensors are on `device`."""
    return move(tree, lambda x: x.clone() if device == "cpu" else x.to(device))


def to_double(tree: Any) -> Any:
    """Return a copy of the tree whose floating point tensors are float64."""
    return move(tree, lambda x: x.double() if x.is_floating_point() else x.clone())


@dataclasses.dataclass
class Difference:
    """How far results are from those expected.

    Attributes
    ----------
    relative : float
        Greatest difference of floating point results, in units of the greatest number of the tensor
        that it is in.
    notes : list of str
        Other shapes, dtypes, integers, or places of NaN and infinity.
    where : str
        The tensor with the greatest difference.
    """

    relative: float = 0.0
    notes: list[str] = dataclasses.field(default_factory=list)
    where: str = ""

    def within(self, tolerance: float) -> bool:
        """Return whether the results agree."""
        return not self.notes and self.relative <= tolerance

    def text(self) -> str:
        """Return a line for people."""
        far = [f"{self.where or 'result'} differs by {self.relative:.2g} of its greatest number"]
        return "; ".join(self.notes[:3] or far)


def compare(actual: Named, expected: Named, floor: float = 1e-6) -> Difference:
    """Compare tensors by name.

    Parameters
    ----------
    actual, expected : dict of str to torch.Tensor
        Any shapes and dtypes; those of `actual` may be on a device.
    floor : float
        Tensors with no number greater than this are measured in units of it.

    Returns
    -------
    Difference
    """
    found = Difference()
    if actual.keys() != expected.keys():
        names = sorted(actual.keys() ^ expected.keys())
        found.notes.append(f"results on one device only: {', '.join(names[:3])}")
    for name in expected.keys() & actual.keys():
        _compare_one(name, actual[name].detach().cpu(), expected[name].detach(), floor, found)
    return found


def _compare_one(
    name: str, actual: torch.Tensor, expected: torch.Tensor, floor: float, found: Difference
) -> None:
    if actual.shape != expected.shape:
        shapes = f"{tuple(actual.shape)} instead of {tuple(expected.shape)}"
        found.notes.append(f"{name}: shape {shapes}")
        return
    if actual.dtype != expected.dtype:
        found.notes.append(f"{name}: {actual.dtype} instead of {expected.dtype}")
    if expected.is_complex():
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    if not expected.is_floating_point():
        wrong = int((actual != expected).sum())
        if wrong:
            found.notes.append(f"{name}: {wrong} of {expected.numel()} integers differ")
        return
    _compare_numbers(name, actual.double(), expected.double(), floor, found)


def _compare_numbers(
    name: str, actual: torch.Tensor, expected: torch.Tensor, floor: float, found: Difference
) -> None:
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        found.notes.append(f"{name}: NaN or infinity in other places")
        return
    actual, expected = actual[finite], expected[finite]
    if expected.numel() == 0:
        return
    scale = max(expected.abs().max().item(), floor)
    relative = (actual - expected).abs().max().item() / scale
    if relative > found.relative:
        found.relative, found.where = relative, name


def largest(named: Iterable[torch.Tensor]) -> float:
    """Return the greatest absolute finite number in any of the floating point tensors."""
    greatest = 0.0
    for tensor in named:
        values = tensor.detach()[tensor.detach().isfinite()]
        if values.numel():
            greatest = max(greatest, values.abs().max().item())
    return greatest
