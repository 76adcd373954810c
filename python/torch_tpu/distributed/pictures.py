# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Pictures of how tensors lie on devices."""

from __future__ import annotations

import html
import math
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torch_tpu.distributed.spmd import Layout

_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f",
)  # fmt: skip


def visualize_sharding(
    tensor: torch.Tensor, path: str | os.PathLike[str] | None = None, *, show: bool = True
) -> str:
    """Draw which device holds which part of a tensor.

    Dimensions that are cut are drawn, the first two of them as rows and columns; with more, one
    block for each place along the others.

    Parameters
    ----------
    tensor : torch.Tensor
        On device "tpu".
    path : str or path-like, optional
        Where to write the picture as SVG.
    show : bool
        Whether to print the text.

    Returns
    -------
    str
        The picture as text.

    Examples
    --------
    >>> torch.tpu.visualize_sharding(weight)  # doctest: +SKIP
    float32[16, 8] on 8 devices: dimension 0 in 2, dimension 1 in 4
    +---+---+---+---+
    | 0 | 1 | 2 | 3 |
    +---+---+---+---+
    | 4 | 5 | 6 | 7 |
    +---+---+---+---+
    """
    from torch_tpu.distributed.spmd import Layout, layout_of

    layout = layout_of(tensor)
    index = tensor.device.index or 0
    drawn = layout or Layout((index,), (1,) * tensor.dim(), (0,))
    title = _title(tensor, drawn)
    text = "\n".join([title, *_text_blocks(drawn)])
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(_svg(title, drawn))
    if show:
        print(text)
    return text


def _title(tensor: torch.Tensor, layout: Layout) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    what = f"{dtype}{list(tensor.shape)}"
    cuts = [f"dimension {d} in {n}" for d, n in enumerate(layout.parts) if n > 1]
    if len(layout.devices) == 1:
        return f"{what} on tpu:{layout.devices[0]}"
    how = ", ".join(cuts) if cuts else "all of it on each"
    return f"{what} on {len(layout.devices)} devices: {how}"


Block = tuple[str, list[list[str]]]


def _blocks(layout: Layout) -> list[Block]:
    """Return a heading and rows of cells for each place along the dimensions after the second."""
    cut = [d for d, n in enumerate(layout.parts) if n > 1]
    rows, columns, rest = (*cut[:2], None, None)[0], (*cut[:2], None, None)[1], cut[2:]
    blocks: dict[tuple[int, ...], dict[tuple[int, int], str]] = {}
    for place, devices in layout.holders().items():
        row = place[rows] if rows is not None else 0
        column = place[columns] if columns is not None else 0
        outer = tuple(place[d] for d in rest)
        blocks.setdefault(outer, {})[row, column] = _range(devices)
    result = []
    for outer, cells in blocks.items():
        heading = ", ".join(f"dimension {d}: part {p}" for d, p in zip(rest, outer, strict=True))
        height = 1 + max(row for row, _ in cells)
        width = 1 + max(column for _, column in cells)
        table = [[cells[row, column] for column in range(width)] for row in range(height)]
        result.append((heading, table))
    return result


def _range(devices: tuple[int, ...]) -> str:
    """Write device numbers shortly: ``0-3`` or ``0,4``."""
    if len(devices) > 2 and devices == tuple(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}-{devices[-1]}"
    return ",".join(map(str, devices))


def _text_blocks(layout: Layout) -> list[str]:
    lines: list[str] = []
    for heading, table in _blocks(layout):
        width = max(len(cell) for row in table for cell in row) + 2
        rule = "+" + f"{'-' * width}+" * len(table[0])
        lines += [heading] if heading else []
        lines.append(rule)
        for row in table:
            lines += ["|" + "|".join(cell.center(width) for cell in row) + "|", rule]
    return lines


def _svg(title: str, layout: Layout) -> str:
    cell_width, cell_height, margin = 72, 44, 12
    blocks = _blocks(layout)
    names = sorted({cell for _, table in blocks for row in table for cell in row})
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    parts, top = [], margin + 22
    widest = max(len(table[0]) for _, table in blocks) * cell_width
    for heading, table in blocks:
        if heading:
            parts.append(_label(margin, top + 14, heading, 12))
            top += 20
        for r, row in enumerate(table):
            for c, cell in enumerate(row):
                x, y = margin + c * cell_width, top + r * cell_height
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{cell_width}" height="{cell_height}" '
                    f'fill="{colours[cell]}" fill-opacity="0.75" stroke="#333"/>'
                )
                middle = f'x="{x + cell_width / 2}" y="{y + cell_height / 2 + 5}"'
                parts.append(f'<text {middle} text-anchor="middle">{html.escape(cell)}</text>')
        top += len(table) * cell_height + margin
    width = max(widest + 2 * margin, math.ceil(len(title) * 7.2) + 2 * margin)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'font-family="sans-serif" font-size="14">'
    )
    return "\n".join([head, _label(margin, margin + 8, title, 13), *parts, "</svg>\n"])


def _label(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{html.escape(text)}</text>'
