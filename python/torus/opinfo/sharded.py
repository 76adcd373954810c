# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Compare one operator on distributed tensors (DTensor) on "tpu" with the plain operator.

A sample's tensors are laid on a mesh of processes in every way that cuts them evenly, as PyTorch's
own test of DTensor does. What counts is each way that gives the plain operator's result on the CPU
with Gloo.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map

from torus.opinfo import judge as plain
from torus.opinfo.ranks import Ranks

# At most so many ways of laying out one sample, chosen at random but always the same.
_MOST_LAYOUTS = 24
# With these their results are those of no dropout, on every rank.
_DROPOUTS = frozenset(
    [
        "nn.functional.alpha_dropout",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout",
    ]
)


def prepare() -> None:
    """Give the operator database sizes that divide among the ranks, as PyTorch's test does."""
    from torch.testing._internal import common_methods_invocations as samples

    samples.L, samples.M, samples.S, samples.XS = 24, 12, 4, 2


def judge(op: Any, plan: plain.Plan, ranks: Ranks) -> plain.Verdict:
    """Run the samples of an operator on distributed tensors; all ranks call it.

    Parameters
    ----------
    op : OpInfo
        An element of `torus.opinfo.judge.entries`.
    plan : Plan
    ranks : Ranks

    Returns
    -------
    Verdict
        Its samples are ways of laying a sample out. "nosample" if none gives the right result on
        the CPU.
    """
    found = plain.Verdict(plain.op_name(op))
    if op.name in plain.UNCOMPARED - _DROPOUTS:
        found.verdict, found.note = "skipped", "random or uninitialised"
        return found
    grad = plan.backward and op.supports_autograd
    sample_iterator = plain.samples(op, getattr(torch, plan.dtype), grad, plan.samples, found)
    for sample in sample_iterator:
        if op.name in _DROPOUTS:
            sample.kwargs["p"] = 0.0
        _judge_sample(_Sample(op, sample, plan, grad), ranks, found)
    if found.tried == 0 and found.verdict == "pass":
        found.verdict = "nosample"
    return found


@dataclasses.dataclass
class _Sample:
    """A sample, and what the plain operator makes of it on the CPU."""

    op: Any
    sample: Any
    plan: plain.Plan
    grad: bool

    def __post_init__(self) -> None:
        free = self.op.name in plain.FREE_SIGNS
        self._process = self.sample.output_process_fn_grad if self.grad or free else None
        self._expected = plain.side_of(self.op, self.sample, "cpu", self.plan, self.grad, 0)

    def run_plain(self) -> bool:
        """Compute what is expected; False if the CPU does not take the sample."""
        try:
            self._expected.run(self.op, self._process)
            self._gradients = self._expected.gradients() if self.grad else []
        except Exception:
            return False
        return True

    def layouts(self, mesh: DeviceMesh) -> list[tuple[Any, ...]]:
        """Return ways of laying the sample's tensors on a mesh, a placement for each tensor."""
        converter = _converter(mesh, self._expected.tree)
        tensors = [x for x in tree_leaves(self._expected.tree) if isinstance(x, torch.Tensor)]
        choices = [converter.gen_sharding_choices_for_arg(x) for x in tensors]
        total = math.prod(map(len, choices))
        chosen = random.Random(0).sample(range(total), min(total, _MOST_LAYOUTS))
        return [tuple(_digits(number, choices)) for number in sorted(chosen)]

    def check(self, mesh: DeviceMesh, layout: tuple[Any, ...]) -> None:
        """Run it on a mesh and compare; raises what is wrong with it."""
        side = plain.side_of(self.op, self.sample, mesh.device_type, self.plan, self.grad, 0)
        converter = _converter(mesh, side.tree)
        converter.sharding_combs = iter([layout])
        tree, _ = next(converter)
        if not converter.successful():
            raise TypeError("not every tensor of the sample can be distributed")
        placed = dataclasses.replace(side, tree=tree)
        placed.run(self.op, self._whole)
        actual = dataclasses.replace(self._expected, outputs=placed.outputs)
        plain.check_outputs(
            plain.elements_at(self.op, actual), plain.elements_at(self.op, self._expected)
        )
        if self.grad:
            plain.check_gradients([_full(g) for g in placed.gradients()], self._gradients)

    def _whole(self, result: Any) -> Any:
        whole = tree_map(_full, result)
        return self._process(whole) if self._process else whole


def _digits(number: int, choices: list[Any]) -> Iterator[Any]:
    for each in choices:
        number, place = divmod(number, len(each))
        yield each[place]


def _converter(mesh: DeviceMesh, tree: Any) -> Any:
    from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter

    return DTensorConverter(mesh, tree, {})


def _full(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def _judge_sample(sample: _Sample, ranks: Ranks, found: plain.Verdict) -> None:
    if not sample.run_plain():
        return
    meshes = [init_device_mesh(device, (ranks.size,)) for device in ("cpu", "tpu")]
    for layout in sample.layouts(meshes[0]):
        check = functools.partial(sample.check, layout=layout)
        start = time.monotonic()
        if _outcome(check, meshes, 0, ranks)[0] != "pass":
            if any(ranks.tell(time.monotonic() - start > ranks.collective_timeout.total_seconds())):
                return  # it hangs on the CPU, most likely in the other layouts too
            continue
        found.tried += 1
        verdict, note = _outcome(check, meshes, 1, ranks)
        if verdict == "pass":
            found.passed += 1
        else:
            placements = ", ".join(map(str, layout))
            found.fail(verdict, f"{note} ({placements})")


def _outcome(
    check: Callable[[DeviceMesh], None], meshes: list[DeviceMesh], which: int, ranks: Ranks
) -> tuple[str, str]:
    """Return the first verdict among the ranks that is no "pass", and its reason."""
    try:
        check(meshes[which])
        own = ("pass", "")
    except AssertionError as error:
        own = ("wrong", str(error))
    except Exception as error:  # whatever a backend may raise is its verdict
        own = ("error", f"{type(error).__name__}: {error}")
    all_of_them = ranks.tell(own)
    verdicts = [verdict for verdict, _ in all_of_them]
    if "error" in verdicts and verdicts.count("error") < ranks.size:
        ranks.renew()
        meshes[:] = [init_device_mesh(mesh.device_type, (ranks.size,)) for mesh in meshes]
    return next(((v, n) for v, n in all_of_them if v != "pass"), ("pass", ""))


def worst(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the rank that was least content; ranks disagree if one ran out of time."""
    return max(rows, key=lambda row: row["verdict"] == "timeout")
