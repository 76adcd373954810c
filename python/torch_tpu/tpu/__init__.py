# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The module ``torch.tpu``: devices, streams, memory, random numbers and modes.

It has what ``torch.cuda`` has, as far as it makes sense here, and `torch.accelerator` works too.
Nothing opens the devices unless its description says so.
"""

# PyTorch and its libraries read the names with an underscore.
# ruff: noqa: F401

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from torch_tpu.distributed.pictures import visualize_sharding
from torch_tpu.tpu import _utils, memory, random, streams
from torch_tpu.tpu.devices import (
    DeviceProperties,
    _exchange_device,
    _get_device,
    _is_compiled,
    _is_in_bad_fork,
    _lazy_init,
    _maybe_exchange_device,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_tpu.tpu.diagnostics import (
    CacheStats,
    _clear_cache,
    _get_cache_stats,
    _set_cache_only,
    get_fallback,
    metrics,
    reset_metrics,
    set_fallback,
)
from torch_tpu.tpu.explanations import Compilation, ExplainReport, explain
from torch_tpu.tpu.graphs import (
    TPUGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from torch_tpu.tpu.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from torch_tpu.tpu.modes import EagerMode, Precision, get_eager_mode, precision, set_eager_mode
from torch_tpu.tpu.random import (
    _get_generator,
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.tpu.streams import (
    Event,
    Stream,
    StreamContext,
    _set_stream_by_id,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "CacheStats",
    "Compilation",
    "DeviceProperties",
    "EagerMode",
    "Event",
    "ExplainReport",
    "Precision",
    "Stream",
    "StreamContext",
    "TPUGraph",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "explain",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_eager_mode",
    "get_fallback",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "metrics",
    "precision",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_metrics",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_fallback",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "visualize_sharding",
]

# Submodules that are imported when first asked for.
_LAZY = ("compiler", "optimizers")


class _TpuModule(ModuleType):
    """Adds attributes that are computed, and written, to the module."""

    @property
    def eager_mode(self) -> EagerMode:
        """The mode in force in the calling thread; setting it sets that of the process."""
        return get_eager_mode()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode | str) -> None:
        set_eager_mode(mode)

    @property
    def allow_excess_precision(self) -> bool:
        """Always False: intermediate results are never kept in a wider dtype than written."""
        return False

    @allow_excess_precision.setter
    def allow_excess_precision(self, allow: bool) -> None:
        if allow:
            raise NotImplementedError("Torus rounds every intermediate result to its own dtype")

    @property
    def _initialized(self) -> bool:
        # torch.utils.checkpoint reads it to decide whether to keep the device's random state.
        return is_initialized()

    def __getattr__(self, name: str) -> Any:
        if name in _LAZY:
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


sys.modules[__name__].__class__ = _TpuModule
