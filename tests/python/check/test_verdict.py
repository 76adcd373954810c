# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The compiler's words in ours."""

from __future__ import annotations

import pytest
from torus.check import verdict

TOO_LARGE = """\
RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used \
40.50G of 31.25G hbm. Exceeded hbm capacity by 9.25G.

Total hbm usage >= 41.25G:
    reserved          768.00M
    program             8.50G
    arguments          32.00G

Largest program allocations in hbm:

  1. Size: 8.00G
     Operator: op_type="dot_general"
     Shape: f32[2048,1048576]{1,0:T(8,128)}
     Unpadded size: 8.00G
     XLA label: fusion
     Allocation type: HLO temp
     ==========================

  2. Size: 512.00M
     Shape: bf16[4,1000]{1,0:T(8,128)(2,1)}
     Unpadded size: 256.00M
     Allocation type: HLO temp
     ==========================
"""


def test_too_large_for_memory() -> None:
    found = verdict.of_error("RESOURCE_EXHAUSTED", TOO_LARGE)
    assert (found.kind, found.ok) == ("too large", False)
    assert found.needed_bytes == int(40.5 * 2**30)
    assert found.available_bytes == int(31.25 * 2**30)
    assert "40.5 GiB" in found.summary
    assert "--shard" in found.remedy
    first, second = found.allocations
    assert (first.bytes, first.shape[:17]) == (8 << 30, "f32[2048,1048576]")
    assert (second.bytes, second.unpadded_bytes) == (512 << 20, 256 << 20)


def test_too_large_in_the_short_form() -> None:
    found = verdict.of_error(
        "RESOURCE_EXHAUSTED",
        "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (64.00G) exceeds available HBM (31.24G). HLO module: torus.\n",
    )
    assert found.kind == "too large"
    assert found.needed_bytes == 64 << 30
    assert found.available_bytes == int(31.24 * 2**30)


def test_too_large_for_the_core() -> None:
    found = verdict.of_error(
        "RESOURCE_EXHAUSTED",
        "Ran out of memory in memory space vmem. Used 130.00M of 128.00M vmem.",
    )
    assert found.kind == "too large"
    assert "vmem" in found.summary


@pytest.mark.parametrize(
    ("code", "said", "kind", "word"),
    [
        ("UNIMPLEMENTED", "While rewriting computation: f64 is not supported", "refused", "f64"),
        ("INVALID_ARGUMENT", "error: Failed to parse using StableHLO v1.24.0", "refused", "older"),
        ("UNIMPLEMENTED", "something new", "refused", "lacks"),
        ("INTERNAL", "RET_CHECK failure", "refused", "INTERNAL"),
        ("ABORTED", "*** SIGABRT", "crashed", "ended"),
    ],
)
def test_refusals(code: str, said: str, kind: str, word: str) -> None:
    found = verdict.of_error(code, said + "\n=== Source Location Trace ===\nfile.cc:1")
    assert found.kind == kind
    assert word in found.summary
    assert found.detail == said


def test_acceptance() -> None:
    assert verdict.accepted().ok
    assert verdict.accepted().as_json()["kind"] == "fits"
