# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Figures of a few layers extended to many."""

from __future__ import annotations

import pathlib

import pytest
from torus.check import extrapolate, source
from torus.check.measure import Result, Traffic
from torus.check.verdict import accepted

CONFIGS = pathlib.Path(__file__).parents[3] / "examples" / "configs"


def result(layers: int, peak: int) -> Result:
    """Make figures that grow with the layers."""
    return Result(
        *("tpu7x:2x2x1", "TPU7x", 4, 8, 8, "fsdp", accepted()),
        capacity_bytes=1000,
        peak_bytes=peak,
        argument_bytes=10 + 3 * layers,
        flops=5.0 * layers,
        compiler_seconds=0.5 * layers,
        compile_seconds=7.0,
        exchanges=[Traffic("all-gather", 1 + 7 * layers, 100 * layers, 90.0 * layers)],
    )


def test_a_straight_line() -> None:
    made = extrapolate.extend(result(2, 120), result(4, 140), (2, 4), 32)
    assert (made.argument_bytes, made.peak_bytes) == (10 + 96, 420)
    assert (made.flops, made.compiler_seconds) == (160.0, 16.0)
    assert made.exchanges == [Traffic("all-gather", 225, 3200, 2880.0)]
    assert made.compile_seconds == 14.0
    assert made.extended_from == (2, 4)
    assert made.verdict.ok


def test_the_verdict_goes_by_the_extended_peak() -> None:
    made = extrapolate.extend(result(2, 300), result(4, 500), (2, 4), 32)
    assert made.verdict.kind == "too large"
    assert "2 and 4 layers" in made.verdict.summary
    assert made.verdict.needed_bytes == 3300


def test_nothing_shrinks_with_more_layers() -> None:
    made = extrapolate.extend(result(1, 500), result(2, 450), (1, 2), 80)
    assert made.peak_bytes == 450


def test_models_of_fewer_layers() -> None:
    large = source.find(str(CONFIGS / "gemma-3-27b.json"))
    assert extrapolate.layer_count(large) == 62
    small = extrapolate.with_layers(large, 6)
    assert small.config.num_hidden_layers == len(small.config.layer_types) == 6
    assert large.config.num_hidden_layers == 62
    with pytest.raises(source.SourceError, match="--layers"):
        extrapolate.layer_count(source.Source("f", "function", None, lambda dtype: None))
