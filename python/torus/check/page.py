# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

import html

from torus.check import chips, plot
from torus.check.report import Report, as_bytes, rows

__all__ = ["render"]

_STYLE = """\
body { font-family: system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  line-height: 1.45; color-scheme: light; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left; white-space: pre }
.fits { color: #2e7d32 } .bad { color: #c0392b }
figure { margin: 1.5rem 0; overflow-x: auto } figcaption { color: #666 }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem }
"""


def render(report: Report) -> str:
    """Return the page.

    Parameters
    ----------
    report : Report
        What was found.
    """
    title = html.escape(f"torus check {report.model}")
    request = ", ".join(f"{name} {value}" for name, value in report.request.items())
    parts = [
        "<!doctype html>",
        f"<html lang='en'><head><meta charset='utf-8'><title>{title}</title>",
        "<meta name='viewport' content='width=device-width'>",
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(report.model)}</h1>",
        f"<p>{html.escape(request)}</p>",
        _problems(report),
        _table(report),
        _figure(plot.memory(report.results), "Memory of one device, as the compiler lays it out."),
        _figure(
            plot.roofline(report.results),
            "Roof: published peaks of one device. Point: flops of the step over the compiler's "
            "estimate of its time, or the roof where it gives none.",
        ),
        _largest(report),
        _hints(report),
        _sources(report),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _figure(drawing: str, caption: str) -> str:
    if not drawing:
        return ""
    return f"<figure>{drawing}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _problems(report: Report) -> str:
    found = [f"<p class='bad'>{html.escape(report.problem)}</p>"] if report.problem else []
    found += [f"<p class='bad'>{html.escape(str(m))}</p>" for m in report.missing]
    for result in report.results:
        if not result.verdict.ok:
            words = html.escape(f"{result.topology}: {result.verdict.summary}")
            found.append(f"<p class='bad'>{words}. {html.escape(result.verdict.remedy)}</p>")
            if result.verdict.detail:
                detail = html.escape(result.verdict.detail[:4000])
                found.append(
                    f"<details><summary>the compiler's words</summary><pre>{detail}</pre></details>"
                )
    return "\n".join(found)


def _table(report: Report) -> str:
    if not report.results:
        return ""
    heads = "".join(f"<th>{html.escape(r.topology)}</th>" for r in report.results)
    lines = []
    for title, cells in rows(report.results):
        marked = "".join(f"<td{_mark(title, cell)}>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><td>{html.escape(title)}</td>{marked}</tr>")
    return f"<table><tr><th>on each device</th>{heads}</tr>{''.join(lines)}</table>"


def _mark(title: str, cell: str) -> str:
    if title != "verdict":
        return ""
    return f" class='{'fits' if cell == 'fits' else 'bad'}'"


def _largest(report: Report) -> str:
    if report.analysis is None or not report.analysis.largest:
        return ""
    lines = "".join(
        f"<tr><td>{html.escape(t.what)}</td><td>{' x '.join(map(str, t.shape))}</td>"
        f"<td>{t.dtype}</td><td>{as_bytes(t.bytes)}</td><td>{t.count}</td></tr>"
        for t in report.analysis.largest
    )
    head = (
        "<tr><th>largest values</th><th>shape</th><th>dtype</th><th>bytes</th><th>count</th></tr>"
    )
    return f"<table>{head}{lines}</table>"


def _hints(report: Report) -> str:
    if not report.hints:
        return ""
    items = "".join(f"<li>{html.escape(hint)}</li>" for hint in report.hints)
    return f"<h2>Hints</h2><ul>{items}</ul>"


def _sources(report: Report) -> str:
    used = {chips.of_topology(r.topology) for r in report.results}
    named = sorted((c for c in used if c is not None), key=lambda c: c.name)
    items = "".join(f"<li>{c.name}: <a href='{c.source}'>{c.source}</a></li>" for c in named)
    return f"<h2>Published peaks</h2><ul>{items}</ul>" if items else ""
