# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.debug.metrics: the counters of ``torch.tpu.metrics()`` under torch_xla's names."""

from __future__ import annotations

from typing import Any

import torch

_COUNTERS = {
    "UncachedCompile": "compilations",
    "CachedCompile": "cache_hits",
    "MarkStep": "windows",
}
_METRICS = {
    "CompileTime": "compilations",
    "ExecuteTime": "launches",
    "TransferToDeviceTime": "transfers_to_device",
    "TransferFromDeviceTime": "transfers_to_host",
}


def counter_names() -> list[str]:
    """Return the names of the counters."""
    return [*_COUNTERS, *torch.tpu.metrics()["fallbacks"]]


def counter_value(name: str) -> int | None:
    """Return a counter; operators that fell back to the CPU are counters of their own."""
    metrics = torch.tpu.metrics()
    return metrics[_COUNTERS[name]] if name in _COUNTERS else metrics["fallbacks"].get(name)


def metric_names() -> list[str]:
    """Return the names of the metrics."""
    return list(_METRICS)


def metric_data(name: str) -> tuple[int, float, list[Any]] | None:
    """Return how often something happened, its time in ns where that is known, and no samples."""
    metrics = torch.tpu.metrics()
    if name not in _METRICS:
        return None
    seconds = metrics["compile_seconds"] if name == "CompileTime" else 0.0
    return metrics[_METRICS[name]], seconds * 1e9, []


def clear_all() -> None:
    """Set everything to 0."""
    torch.tpu.reset_metrics()


clear_counters = clear_all
clear_metrics = clear_all


def metrics_report() -> str:
    """Return all counters as text."""
    metrics = torch.tpu.metrics()
    lines = [f"Metric: {name}\n  TotalSamples: {metrics[key]}" for name, key in _METRICS.items()]
    lines += [f"Counter: {name}\n  Value: {counter_value(name)}" for name in counter_names()]
    return "\n".join(lines) + "\n"


def short_metrics_report(counter_names: Any = None, metric_names: Any = None) -> str:
    """Return all counters as text."""
    del counter_names, metric_names
    return metrics_report()


def executed_fallback_ops() -> list[str]:
    """Return the operators that ran on the CPU."""
    return list(torch.tpu.metrics()["fallbacks"])
