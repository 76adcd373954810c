# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What the engine did: programs compiled and run, cache hits, transfers, fallbacks to the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_tpu import _C


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """How the cache of compiled programs was used.

    Attributes
    ----------
    num_requests : int
        Programs asked for.
    num_hits : int
        Requests answered from memory or disk.
    num_compilations : int
        Requests that had to be compiled.
    """

    num_requests: int
    num_hits: int
    num_compilations: int


def metrics() -> dict[str, Any]:
    """Return counters since the start of the process or the last `reset_metrics`.

    Returns
    -------
    dict
        Counts ``compilations``, ``launches``, ``cache_hits``, ``disk_hits``, ``windows``,
        ``operators``, ``transfers_to_device``, ``transfers_to_host``, ``bytes_to_device``,
        ``bytes_to_host``, ``evictions`` (programs unloaded to make room for others);
        ``compile_seconds``; and, by operator, ``fallbacks`` (calls that ran on
        the CPU) and ``fallback_bytes`` (bytes moved for them).
    """
    return _C._metrics()


def reset_metrics() -> None:
    """Set all counters of `metrics` to 0."""
    _C._reset_metrics()


def get_fallback() -> str:
    """Return what happens when an operator has no lowering: see `set_fallback`."""
    return _C._get_fallback()


def set_fallback(policy: str) -> None:
    """Say what happens when an operator has no lowering for the device.

    Parameters
    ----------
    policy : {"warn", "error", "silent"}
        Run it on the CPU and warn once per operator (the default), raise an error, or run it on
        the CPU and only count it in `metrics`.

    Raises
    ------
    ValueError
        If the policy is none of these.
    """
    if policy not in ("warn", "error", "silent"):
        raise ValueError(f"policy={policy!r} is none of warn, error, silent")
    _C._set_fallback(policy)


def _get_cache_stats() -> CacheStats:
    counters = _C._metrics()
    hits = counters["cache_hits"] + counters["disk_hits"]
    compilations = counters["compilations"]
    return CacheStats(hits + compilations, hits, compilations)


def _clear_cache() -> None:
    _C._clear_program_cache()


def _set_cache_only(enabled: bool = True) -> None:
    _C._cache_only(enabled)
