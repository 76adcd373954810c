# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Plots as SVG: memory against capacity, the roofline, scaling. No library, no scripts."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Iterable, Sequence

from torus.check import chips
from torus.check.measure import Result
from torus.check.report import as_bytes, as_flops

__all__ = ["lines", "memory", "roofline"]

_COLOURS = ("#2f6fb3", "#d1862b", "#4f9d69", "#a0527e", "#7a7a7a", "#8c6d31")
_TEXT = "font-family='system-ui, sans-serif' font-size='12'"
_GREY = "#767676"


def _text(
    x: float, y: float, words: str, anchor: str = "start", colour: str = "currentColor"
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{colour}'>"
        f"{html.escape(words)}</text>"
    )


def _rect(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{height:.1f}' "
        f"fill='{colour}'><title>{html.escape(title)}</title></rect>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _GREY, dash: str = "") -> str:
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    return (
        f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'{dashes}/>"
    )


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' "
        f"width='{width:.0f}' height='{height:.0f}' role='img' aria-label='{html.escape(label)}' "
        f"{_TEXT}>{''.join(parts)}</svg>"
    )


# ---- memory ----


def memory(results: Sequence[Result]) -> str:
    """Draw what fills the memory of a device on each topology, against what there is."""
    left, width, bar, gap = 130, 560, 22, 18
    most = max((max(_needed(r), r.capacity_bytes) for r in results), default=0) or 1
    scale = width / most
    parts = _legend(left, ("arguments", "outputs", "temporaries", "code"))
    y = 34.0
    for result in results:
        parts.append(_text(left - 8, y + 15, result.topology, "end"))
        x = float(left)
        for size, colour, name in _pieces(result):
            parts.append(_rect(x, y, size * scale, bar, colour, f"{name}: {as_bytes(size)}"))
            x += size * scale
        if result.capacity_bytes:
            edge = left + result.capacity_bytes * scale
            parts.append(_line(edge, y - 4, edge, y + bar + 4, "#c0392b"))
        parts.append(_text(x + 6, y + 15, as_bytes(_needed(result)), colour=_GREY))
        y += bar + gap
    parts.append(_text(left, y + 6, "red: capacity of one device", colour=_GREY))
    return _svg(left + width + 90, y + 20, "memory of one device", parts)


def _needed(result: Result) -> int:
    return result.peak_bytes or result.verdict.needed_bytes


def _pieces(result: Result) -> list[tuple[int, str, str]]:
    if not result.verdict.ok:
        return [(result.verdict.needed_bytes, "#c77", "needed")]
    outputs = result.output_bytes - result.alias_bytes
    sizes = (result.argument_bytes, outputs, result.temporary_bytes, result.code_bytes)
    names = ("arguments", "outputs", "temporaries", "code")
    return list(zip(sizes, _COLOURS, names, strict=False))


def _legend(x: float, names: Sequence[str]) -> list[str]:
    parts = []
    for name, colour in zip(names, _COLOURS, strict=False):
        parts += [_rect(x, 8, 12, 12, colour, name), _text(x + 17, 18, name)]
        x += 34 + 7 * len(name)
    return parts


# ---- logarithmic plots ----


@dataclasses.dataclass
class _Frame:
    """A plot area with two logarithmic axes."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 80
    top: float = 30
    width: float = 540
    height: float = 300

    def x(self, value: float) -> float:
        low, high = (math.log10(v) for v in self.x_range)
        return self.left + (math.log10(value) - low) / (high - low) * self.width

    def y(self, value: float) -> float:
        low, high = (math.log10(v) for v in self.y_range)
        return self.top + self.height - (math.log10(value) - low) / (high - low) * self.height

    def axes(self, x_title: str, y_title: str, spell: Callable[[float], str]) -> list[str]:
        bottom = self.top + self.height
        parts = []
        for value in _decades(self.x_range):
            parts.append(_line(self.x(value), self.top, self.x(value), bottom, "#ddd"))
            parts.append(_text(self.x(value), bottom + 16, f"{value:g}", "middle", _GREY))
        for value in _decades(self.y_range):
            parts.append(
                _line(self.left, self.y(value), self.left + self.width, self.y(value), "#ddd")
            )
            parts.append(_text(self.left - 6, self.y(value) + 4, spell(value), "end", _GREY))
        parts.append(_text(self.left + self.width / 2, bottom + 34, x_title, "middle"))
        parts.append(_text(self.left, self.top - 12, y_title))
        return parts


def _decades(span: tuple[float, float]) -> list[float]:
    low, high = math.ceil(math.log10(span[0])), math.floor(math.log10(span[1]))
    return [10.0**k for k in range(low, high + 1)]


def _around(values: Iterable[float]) -> tuple[float, float]:
    """Return the decades around positive values."""
    found = [v for v in values if v > 0] or [1.0]
    low = 10.0 ** math.floor(math.log10(min(found)) - 0.01)
    return low, 10.0 ** math.ceil(math.log10(max(found)) + 0.01)


def roofline(results: Sequence[Result]) -> str:
    """Draw for each topology the roof of one device and where the step stands under it.

    The point's height is what the step would reach at the compiler's estimate of its time; without
    one it stands on the roof.
    """
    shown = [r for r in results if r.intensity and chips.of_topology(r.topology)]
    if not shown:
        return ""
    peaks = [_roof(r) for r in shown]
    xs = _around([r.intensity for r in shown] + [peak / band for peak, band in peaks])
    tops = [peak for peak, _ in peaks]
    frame = _Frame(xs, _around([min(xs[0] * band, p) for p, band in peaks] + tops))
    parts = frame.axes(
        "flops per byte of memory traffic", "flops per second of one device", as_flops
    )
    for i, (result, (peak, band)) in enumerate(zip(shown, peaks, strict=True)):
        colour = _COLOURS[i % len(_COLOURS)]
        ridge = min(max(peak / band, xs[0]), xs[1])
        parts.append(
            _line(
                frame.x(xs[0]),
                frame.y(xs[0] * band),
                frame.x(ridge),
                frame.y(min(peak, ridge * band)),
                colour,
            )
        )
        parts.append(_line(frame.x(ridge), frame.y(peak), frame.x(xs[1]), frame.y(peak), colour))
        parts += _point(frame, result, min(peak, result.intensity * band), colour, i)
    return _svg(frame.left + frame.width + 30, frame.top + frame.height + 50, "roofline", parts)


def _roof(result: Result) -> tuple[float, float]:
    """Return flops and bytes a second of one device."""
    chip = chips.of_topology(result.topology)
    assert chip is not None
    share = result.chips / result.devices
    return chip.bf16_flops * share, chip.hbm_bandwidth * share


def _point(frame: _Frame, result: Result, roof: float, colour: str, i: int) -> list[str]:
    reached = result.flops / result.compiler_seconds if result.compiler_seconds else roof
    reached = max(min(reached, frame.y_range[1]), frame.y_range[0])
    x, y = frame.x(result.intensity), frame.y(reached)
    title = f"{result.topology}: {as_flops(reached)}flops/s"
    return [
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='5' fill='{colour}'><title>{html.escape(title)}"
        "</title></circle>",
        _text(frame.left + 10, frame.top + 16 + 16 * i, result.topology, colour=colour),
    ]


def lines(
    series: dict[str, list[tuple[float, float]]],
    x_title: str,
    y_title: str,
    spell: Callable[[float], str] = as_bytes,
) -> str:
    """Draw values over counts, both logarithmic.

    Parameters
    ----------
    series : dict of str to list of (float, float)
        Named curves; values that are not positive are left out.
    x_title, y_title : str
        What the axes are.
    spell : callable
        Writes a value of the second axis.
    """
    kept = {n: [(x, y) for x, y in points if y > 0] for n, points in series.items()}
    points = [point for curve in kept.values() for point in curve]
    if not points:
        return ""
    frame = _Frame(_around(x for x, _ in points), _around(y for _, y in points))
    parts = frame.axes(x_title, y_title, spell)
    for i, (name, curve) in enumerate(kept.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        places = [(frame.x(x), frame.y(y)) for x, y in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = " stroke-dasharray='5 4'" if "estimate" in name else ""
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}'{dash}/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in places]
        parts.append(_text(frame.left + 10, frame.top + 16 + 16 * i, name, colour=colour))
    return _svg(frame.left + frame.width + 30, frame.top + frame.height + 50, y_title, parts)
