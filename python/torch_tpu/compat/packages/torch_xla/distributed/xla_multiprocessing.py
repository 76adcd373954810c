# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.distributed.xla_multiprocessing: starting processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_tpu import compat, training
from torch_tpu.training import SerialExecutor as MpSerialExecutor  # noqa: F401


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Call a function in one process per device, see `torch_tpu.training.launch`."""
    return training.launch(fn, args, nprocs, start_method=start_method, join=join, daemon=daemon)


class MpModelWrapper:
    """A model that is made once and moved in each process."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def to(self, device: Any) -> torch.nn.Module:
        """Move the model."""
        return self._model.to(device)


__getattr__ = compat.missing("torch_xla.distributed.xla_multiprocessing")
