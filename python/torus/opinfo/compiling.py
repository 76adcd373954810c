# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Ask the TPU compiler whether it takes an operator's programs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch_tpu import _C, aot

from torus.opinfo.judge import Plan, Verdict, op_name, samples, side_of


def judge(op: Any, plan: Plan, first_kind: int = 0) -> Verdict:
    """Compile the programs of an operator's samples for `plan.target`.

    Parameters
    ----------
    op : OpInfo
        An entry of the operator database.
    plan : Plan
    first_kind : int
        With `plan.views`: where the cycle of kinds begins.

    Returns
    -------
    Verdict
        "pass" if the compiler takes all of them, "error" with its words if not, "skipped" if the
        operator has no lowering.
    """
    found = Verdict(op_name(op))
    dtype = getattr(torch, plan.dtype)
    grad = plan.backward and op.supports_autograd and dtype.is_floating_point
    for number, sample in enumerate(samples(op, dtype, grad, plan.samples, found)):
        _judge_sample(op, sample, plan, grad, first_kind + number, found)
    if found.tried == 0 and found.verdict == "pass":
        found.verdict = "skipped" if found.note else "nosample"
    return found


def _judge_sample(
    op: Any, sample: Any, plan: Plan, grad: bool, first_kind: int, found: Verdict
) -> None:
    try:
        side = side_of(op, sample, "tpu", plan, grad, first_kind)
        text = _program_of(op, side, grad)
    except Exception as error:  # what is not lowered is judged elsewhere
        found.note = found.note or " ".join(f"not lowered: {error}".split())[:200]
        return
    if text is None:
        return
    found.tried += 1
    try:
        _compile(text, plan.target)
        found.passed += 1
    except aot.CompilationRefused as error:
        if found.verdict == "pass":
            found.note = ""
        found.fail("error", f"{error.code}: {error}")


def _program_of(op: Any, side: Any, grad: bool) -> str | None:
    """Return the sample as one program; None if it does nothing on the device."""

    def run() -> list[Any]:
        side.run(op, None)
        return side.outputs + (side.gradients() if grad else [])

    # Samples of random operators seed the generator, which a program cannot.
    unseeded = mock.patch.object(
        invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs)
    )
    try:
        with unseeded:
            return aot.lower(run, for_tpu=True).text
    except ValueError:
        return None
    except aot.NotLowered:
        return _last_program_of(run)


def _last_program_of(run: Callable[[], list[Any]]) -> str | None:
    """Run what waits for its own results, as that does whose size depends on values."""
    torch.tpu.synchronize()
    _C._clear_program_cache()
    before = _C._metrics()["compilations"]
    kept = run()
    torch.tpu.synchronize()
    del kept
    return _C._last_program_text() if _C._metrics()["compilations"] > before else None


def _compile(text: str, target: str) -> None:
    """Compile, unless the same program was compiled before."""
    digest = hashlib.sha256(text.encode()).digest()
    if (digest, target) in _accepted():
        return
    aot.compile_text(text, target, serialize=False, timeout=_SECONDS)
    _accepted().add((digest, target))


_SECONDS = 300


@functools.cache
def _accepted() -> set[tuple[bytes, str]]:
    return set()
