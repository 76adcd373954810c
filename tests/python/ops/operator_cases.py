# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Which call reaches which lowering: samples of PyTorch's OpInfo, and hand-written calls.

A *case* is one sample of one OpInfo, run forward or with gradients. ``coverage.json`` lists few
cases that together reach nearly every operator of the table; ``tools/record_operator_coverage.py``
writes it. `HAND` has a call for each of the others.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

COVERAGE_FILE = pathlib.Path(__file__).with_name("coverage.json")


@dataclasses.dataclass(frozen=True)
class Case:
    """One sample of an OpInfo; `operators` are the lowerings it is there for."""

    op: str
    variant: str
    dtype: str
    sample: int
    backward: bool
    operators: tuple[str, ...] = ()

    def __str__(self) -> str:
        suffix = "-grad" if self.backward else ""
        return f"{self.op}{'.' if self.variant else ''}{self.variant}-{self.dtype}{suffix}"


def load_cases() -> list[Case]:
    """Read ``coverage.json``."""
    content = json.loads(COVERAGE_FILE.read_text())
    return [Case(**{**row, "operators": tuple(row["operators"])}) for row in content["cases"]]


# ---- the table ----


def _schemas(base: str) -> list[torch.FunctionSchema]:
    return torch._C._jit_get_schemas_for_operator(f"aten::{base}")


def _overload(schema: torch.FunctionSchema) -> str:
    name = schema.name.removeprefix("aten::")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _is_out_of(out: torch.FunctionSchema, functional: torch.FunctionSchema) -> bool:
    own, other = functional.arguments, out.arguments
    if len(other) <= len(own) or not all(a.is_out for a in other[len(own) :]):
        return False
    return all(
        not b.is_out and str(a.type) == str(b.type) for a, b in zip(own, other, strict=False)
    )


@functools.cache
def native_operators() -> dict[str, frozenset[str]]:
    """Each operator of the table with the overloads that its lowering serves."""
    import torch_tpu._C

    table: dict[str, frozenset[str]] = {}
    for name, _family in torch_tpu._C._operators():
        base, _, overload = name.partition(".")
        served = {name}
        functional = next((s for s in _schemas(base) if _overload(s) == name), None)
        if not base.endswith("_"):
            served.add(f"{base}_.{overload}" if overload else f"{base}_")
        if functional is not None:
            served.update(_overload(s) for s in _schemas(base) if _is_out_of(s, functional))
        table[name] = frozenset(served)
    return table


@functools.cache
def _operator_of() -> dict[str, str]:
    return {o: name for name, overloads in native_operators().items() for o in overloads}


def exists(name: str) -> bool:
    """Tell whether PyTorch has this overload, so that a misspelt operator is noticed."""
    return any(_overload(s) == name for s in _schemas(name.partition(".")[0]))


class Recorder:
    """Collects in `operators` which lowerings the calls inside ``with`` reach."""

    def __init__(self) -> None:
        self.operators: set[str] = set()

    def __enter__(self) -> Recorder:
        torch.tpu.reset_metrics()
        config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
        self._profile = torch.autograd.profiler.profile(experimental_config=config)
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)
        fallen_back = {
            _operator_of().get(name.removeprefix("aten::"))
            for name in torch.tpu.metrics()["fallbacks"]
        }
        for event in self._profile.kineto_results.events():
            if not event.name().startswith("aten::"):
                continue
            base, overload = event.name().removeprefix("aten::"), event.overload_name()
            operator = _operator_of().get(f"{base}.{overload}" if overload else base)
            if operator is not None and operator not in fallen_back:
                self.operators.add(operator)


# ---- OpInfo ----


@functools.cache
def op_infos() -> dict[tuple[str, str], Any]:
    """Map (name, variant) to OpInfo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {(o.name, o.variant_test_name): o for o in op_db}


def samples(case: Case) -> Iterator[Any]:
    """Samples of the case's OpInfo on the CPU, the same in every run."""
    torch.manual_seed(0)
    info = op_infos()[case.op, case.variant]
    return iter(info.sample_inputs("cpu", getattr(torch, case.dtype), requires_grad=case.backward))


def sample_of(case: Case) -> Any:
    """Make the sample of the case."""
    return next(itertools.islice(samples(case), case.sample, None))


def on_device(tree: Any, device: str) -> Any:
    """Copy tensors, and devices named among arguments, to `device`; leaves require grad again."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        is_cpu = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu")
        return torch.device(device) if is_cpu else leaf

    return tree_map(move, tree)


def run(case: Case, sample: Any, device: str) -> list[Any]:
    """Run the sample on the device.

    Returns
    -------
    list
        Results, then gradients of the sum of the real ones. Tensors stay on the device.
    """
    info = op_infos()[case.op, case.variant]
    torch.manual_seed(0)
    arguments = on_device((sample.input, sample.args, sample.kwargs), device)
    result = info(arguments[0], *arguments[1], **arguments[2])
    if case.backward and sample.output_process_fn_grad:
        result = sample.output_process_fn_grad(result)
    results = tree_leaves(result)
    if not case.backward:
        return results
    outputs = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not outputs or not inputs:
        return results
    total = sum((x.real if x.is_complex() else x).sum() for x in outputs)
    return [*results, *torch.autograd.grad(total, inputs, allow_unused=True)]


# ---- calls that no OpInfo makes ----

HAND: dict[str, Callable[[str], Any]] = {}
