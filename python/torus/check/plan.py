# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sharding plans: how the tensors of a step lie on the devices of a topology.

``fsdp``
    Parameters, gradients and optimizer states are cut over all devices, and so is the batch;
    parameters are gathered layer by layer.
``tp``
    Products are cut over the axis "model"; the batch over what devices remain.
``2d``
    Both: the axis "model" cuts products, the axis "data" the batch and, a second time, parameters.

A dimension is cut into as many parts as divide both it and the axis; over the rest of the axis the
array is repeated.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable

from torch_tpu.aot import Lowered, Slot
from torch_tpu.aot.plans import spec_for
from torch_tpu.aot.rolling import Rolled, Stacked
from torch_tpu.aot.sharding import Mesh, annotate, local_shape, sharding

__all__ = ["KINDS", "Plan", "make"]

KINDS = ("none", "fsdp", "tp", "2d")

# Below this many elements a parameter is repeated: gathering it costs more than it frees.
_SMALL = 1 << 14

# A product, or rows of an embedding.
_PRODUCT = re.compile(
    r"%(?P<number>\d+) = "
    r'(?P<body>(?:stablehlo\.dot_general |stablehlo\.convolution\(|"stablehlo\.gather"\()'
    r"(?P<factors>%\w+(?:#\d+)?, %\w+(?:#\d+)?).* -> "
    r"(?P<type>tensor<(?P<dims>(?:\d+x)+)\w+>))"
)
# Another form of the same value.
_MOVED = re.compile(
    r"(?P<result>%\d+) = stablehlo\.(?:transpose|convert|reshape|optimization_barrier) "
    r"(?P<source>%\w+)"
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A mesh, and the rule that lays tensors on it.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    mesh : Mesh
        Its axes are the prime factors of the two logical ones: ``data0``, ``data1`` ... ``model0``.
    batch : int
        The size by which inputs with samples are known.
    """

    kind: str
    mesh: Mesh
    batch: int

    def axis(self, name: str) -> int:
        """Return the size of the logical axis ``"data"`` or ``"model"``."""
        return math.prod(self.mesh.axes[axis] for axis in self._factors(name))

    def _factors(self, name: str) -> list[str]:
        return [axis for axis in self.mesh.axes if axis.startswith(name)]

    def spec(self, slot: Slot) -> tuple[tuple[str, ...], ...]:
        """Return for each dimension of an input or output the axes that cut it."""
        if isinstance(slot, Stacked) and slot.layer is not None:
            return ((), *self.spec(slot.layer))
        cut: list[tuple[str, ...]] = [()] * len(slot.shape)
        if self.kind == "none" or not slot.shape:
            return tuple(cut)
        if slot.kind in ("argument", "result"):
            # A result's batch and length may be one dimension.
            if slot.shape[0] == self.batch or (
                slot.kind == "result" and slot.shape[0] % self.batch == 0
            ):
                cut[0] = self._dividing("data", self.batch)
            if _is_cache(slot):
                cut[1] = self._dividing("model", slot.shape[1])
            return tuple(cut)
        # What tensor parallelism cuts is known by the name, that of an optimizer's state too.
        owner = slot.name.removesuffix(".exp_avg").removesuffix(".exp_avg_sq")
        model = Mesh({"model": self.axis("model")})
        for i, axis in enumerate(spec_for(owner, slot.shape, model)):
            if axis == "model":
                cut[i] = tuple(self._factors("model"))
        if self.kind in ("fsdp", "2d") and math.prod(slot.shape) >= _SMALL:
            self._cut_largest(slot, cut)
        return tuple(cut)

    def _cut_largest(self, slot: Slot, cut: list[tuple[str, ...]]) -> None:
        """Cut over "data" the dimension that takes the most parts, the larger of two equal ones."""
        free = [i for i, axes in enumerate(cut) if not axes]
        parts = {i: self._dividing("data", slot.shape[i]) for i in free}
        best = max(free, key=lambda i: (self._count(parts[i]), slot.shape[i]), default=None)
        if best is not None:
            cut[best] = parts[best]

    def _count(self, axes: Iterable[str]) -> int:
        return math.prod(self.mesh.axes[axis] for axis in axes)

    def _dividing(self, name: str, size: int) -> tuple[str, ...]:
        """Return as many factors of a logical axis as divide `size`."""
        taken = []
        for axis in self._factors(name):
            if size % self.mesh.axes[axis] == 0:
                size //= self.mesh.axes[axis]
                taken.append(axis)
        return tuple(taken)

    def local_bytes(self, slot: Slot) -> int:
        """Return the bytes of an input or output on one device."""
        return math.prod(local_shape(self.mesh, self.spec(slot), slot.shape)) * slot.dtype.itemsize

    def apply(self, program: Lowered | Rolled) -> str:
        """Return a program's text with the shardings of this plan.

        Parameters
        ----------
        program : Lowered or Rolled
            Its activations as `pinned` leaves them.
        """
        if self.kind == "none":
            return program.text

        def written(slots: list[Slot]) -> dict[int, str]:
            return {
                i: sharding(self.mesh, self.spec(slot), len(slot.shape))
                for i, slot in enumerate(slots)
            }

        return annotate(
            program.text,
            written(program.inputs),
            self.mesh.size,
            {i: s for i, s in written(program.outputs).items() if program.outputs[i].alias is None},
        )

    def pinned(self, lowered: Lowered) -> Lowered:
        """Tell the compiler that activations lie as the batch does, product by product.

        From the arguments alone it may find it cheaper to keep parameters where they are and to sum
        up activations over all devices, which is not what any of these plans means.
        """
        data = () if self.kind == "none" else self._dividing("data", self.batch)
        if not data:
            return lowered
        weights = {f"%a{i}" for i, slot in enumerate(lowered.inputs) if slot.kind == "parameter"}
        lines = (self._pin(line, data, weights) for line in lowered.text.splitlines())
        return dataclasses.replace(lowered, text="\n".join(lines) + "\n")

    def _pin(self, line: str, data: tuple[str, ...], weights: set[str]) -> str:
        """Return the line, with a second one if it makes an activation.

        `weights` are the values known to be parameters in some form; it grows.
        """
        moved = _MOVED.match(line)
        if moved is not None and moved["source"] in weights:
            weights.add(moved["result"])
        match = _PRODUCT.fullmatch(line)
        if match is None:
            return line
        # What is neither batched nor has a parameter among its factors is a parameter's gradient.
        is_activation = "batching_dims" in line or not weights.isdisjoint(
            match["factors"].split(", ")
        )
        shape = tuple(map(int, match["dims"].split("x")[:-1]))
        if not is_activation or shape[0] % self.batch:
            return line
        layout = sharding(self.mesh, (data,), len(shape))
        others = ",".join(map(str, range(1, len(shape))))
        number, kind = match["number"], match["type"]
        return (
            f"%u{number} = {match['body']}\n"
            f"%{number} = stablehlo.custom_call @Sharding(%u{number}) "
            f'{{backend_config = "unspecified_dims=[{others}]", mhlo.sharding = "{layout}"}} '
            f": ({kind}) -> {kind}"
        )

    def describe(self) -> str:
        """Return the plan in a few words."""
        if self.kind == "none":
            return "one device"
        return f"{self.kind}: data {self.axis('data')} x model {self.axis('model')}"


def make(kind: str, devices: int, batch: int, model_parallel: int = 0, heads: int = 0) -> Plan:
    """Make a plan.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    devices : int
        How many there are.
    batch : int
        Samples in a step, over all devices.
    model_parallel : int
        Size of the axis "model"; chosen if 0.
    heads : int
        Attention heads for keys and values, which the choice shall divide; 0 if not known.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        If `model_parallel` does not divide the devices, or `kind` has no such axis.
    """
    if kind == "none":
        return Plan(kind, Mesh({}), batch)
    if kind == "fsdp":
        if model_parallel > 1:
            raise ValueError("--shard fsdp has no axis for --model-parallel; use tp or 2d")
        model = 1
    else:
        model = model_parallel or _choose(kind, devices, heads)
    if devices % model:
        raise ValueError(f"--model-parallel {model} does not divide {devices} devices")
    axes = {f"data{i}": f for i, f in enumerate(_prime_factors(devices // model))}
    axes.update({f"model{i}": f for i, f in enumerate(_prime_factors(model))})
    return Plan(kind, Mesh(axes or {"data0": 1}), batch)


def _choose(kind: str, devices: int, heads: int) -> int:
    """Return the largest power of two that divides devices and heads, 8 at most."""
    model = 1
    while model < 8 and devices % (2 * model) == 0 and (not heads or heads % (2 * model) == 0):
        model *= 2
    return model if kind == "tp" or model < devices else max(1, model // 2)


def _prime_factors(number: int) -> list[int]:
    factors, prime = [], 2
    while number > 1:
        while number % prime == 0:
            factors.append(prime)
            number //= prime
        prime += 1
    return factors


def _is_cache(slot: Slot) -> bool:
    return slot.name.startswith("kv.") and len(slot.shape) == 4
