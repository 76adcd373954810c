# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Plots and words of the report."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from torus.check import plot, report
from torus.check.measure import Result
from torus.check.verdict import accepted, of_error

NAMESPACE = "{http://www.w3.org/2000/svg}"


def results() -> list[Result]:
    """Make one that fits and one that does not."""
    common = {"capacity_bytes": 32 << 30, "flops": 1e12, "intensity": 100.0}
    fits = Result(
        *("v6e:2x2", "TPU v6 lite", 4, 4, 1, "one device", accepted()),
        **common,
        argument_bytes=8 << 30,
        temporary_bytes=4 << 30,
        peak_bytes=12 << 30,
        compiler_seconds=2e-3,
    )
    said = "exceeds: total memory required (64.00G) exceeds available HBM (31.24G)"
    large = of_error("RESOURCE_EXHAUSTED", said)
    return [fits, Result("v6e:4x4", "TPU v6 lite", 16, 16, 1, "one device", large, **common)]


def test_plots_are_svg_and_name_what_they_show() -> None:
    for drawing in (plot.memory(results()), plot.roofline(results())):
        root = ElementTree.fromstring(drawing)
        words = [text.text for text in root.iter(f"{NAMESPACE}text")]
        assert "v6e:2x2" in words
        assert "v6e:4x4" in words
    widths = [
        float(bar.get("width"))
        for bar in ElementTree.fromstring(plot.memory(results())).iter(f"{NAMESPACE}rect")
        if bar.get("height") == "22.0"
    ]
    assert widths[0] == pytest.approx(2 * widths[2], abs=0.2)  # arguments, temporaries
    assert max(widths) == widths[-1]  # what does not fit


def test_lines_leave_out_what_is_not_positive() -> None:
    drawing = plot.lines({"a": [(1, 10), (4, 100)], "none": [(1, 0)]}, "chips", "bytes")
    root = ElementTree.fromstring(drawing)
    assert len(root.findall(f"{NAMESPACE}circle")) == 2
    assert plot.lines({"none": [(1, 0)]}, "chips", "bytes") == ""
    assert plot.roofline([]) == ""


def test_words() -> None:
    assert report.as_bytes(3 << 29) == "1.5 GiB"
    assert report.as_flops(4.294e9) == "4.29 G"
    assert report.as_flops(12) == "12"
    seconds = [report.as_seconds(value) for value in (None, 2.5, 0.0049, 3e-6, 5e-10)]
    assert seconds == ["-", "2.5 s", "4.9 ms", "3 µs", "0.5 ns"]
