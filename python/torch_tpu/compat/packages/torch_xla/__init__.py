# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla's names on device "tpu"; see `torch_tpu.compat`.

Each docstring says what differs from torch_xla. The rest is in torch_xla's own documentation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch_tpu import compat, training

__version__ = "2.9.0+torus"


def device(index: int | None = None) -> torch.device:
    """Return device "tpu", or one of several."""
    return torch.device("tpu") if index is None else torch.device("tpu", index)


def devices() -> list[torch.device]:
    """Return the devices of this process."""
    return [torch.device("tpu", index) for index in range(torch.tpu.device_count())]


def real_devices() -> list[str]:
    """Return the names of the devices."""
    return [torch.tpu.get_device_name(index) for index in range(torch.tpu.device_count())]


def device_count() -> int:
    """Return the number of devices of this process."""
    return torch.tpu.device_count()


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run the closures of the step. Nothing else needs a step's end; `wait` waits."""
    del reset_scope
    if wait:
        torch.tpu.synchronize()
    from torch_xla.core.xla_model import _run_step_closures

    _run_step_closures()


def step() -> Any:
    """Return a context that ends in `sync`."""
    return compile()


def compile(  # noqa: A001
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
) -> Any:
    """Wrap a function, or be a context: its operators run as fused mode sees fit, then `sync`."""
    del full_graph, name, max_different_graphs

    @contextlib.contextmanager
    def scope() -> Any:
        try:
            yield
        finally:
            sync()

    return scope() if f is None else scope()(f)


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed the generator of the device."""
    del device
    torch.tpu.manual_seed(seed)


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Call a function in one process per device, see `torch_tpu.training.launch`."""
    training.launch(fn, args, 1 if debug_single_process else None, start_method=start_method)


from torch_xla import runtime  # noqa: E402, F401

__getattr__ = compat.missing("torch_xla")
