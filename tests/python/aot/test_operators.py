# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""A part of what ``torus opinfo --compile-for`` does: the TPU compiler takes the programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from torus.opinfo import compiling, judge

# One of each kind of program: pointwise, product, sort, loop, convolution, scatter, random numbers,
# and a transform.
NAMES = (
    "add",
    "matmul",
    "sort",
    "cumsum",
    "linalg.qr",
    "nn.functional.conv2d",
    "scatter_reduce.amax",
    "bernoulli",
    "fft.rfft",
)

pytestmark = pytest.mark.usefixtures("libtpu")


@pytest.mark.parametrize("target", ["v6e:2x2", "tpu7x:2x2x1"])
@pytest.mark.parametrize("name", NAMES)
def test_operators_compile(name: str, target: str) -> None:
    plan = judge.Plan(samples=1, target=target)
    (op,) = (op for op in judge.entries("float32") if judge.op_name(op) == name)
    verdict = compiling.judge(op, plan)
    assert (verdict.verdict, verdict.note) == ("pass", "")
    assert verdict.passed == verdict.tried == 1


def test_the_command_says_for_what_it_compiled() -> None:
    command = [sys.executable, "-m", "torus", "opinfo", "--json", "--samples", "1"]
    result = subprocess.run(
        # The second waits for its own result.
        [*command, "--only", "neg,nonzero", "--compile-for", "v6e:2x2,tpu7x:2x2x1"],
        env={**os.environ, "TORUS_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["op"], row["verdict"], row["target"]) for row in rows] == [
        ("neg", "pass", "v6e:2x2"),
        ("nonzero", "pass", "v6e:2x2"),
        ("neg", "pass", "tpu7x:2x2x1"),
        ("nonzero", "pass", "tpu7x:2x2x1"),
    ]
