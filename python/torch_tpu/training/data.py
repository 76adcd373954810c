# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Batches on their way to the device, checkpoints on their way back, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu.training.sharding import ShardingSpec
from torch_tpu.training.workers import is_main


def to_device(data: Any, device: Any = "tpu") -> Any:
    """Move every tensor of nested lists, tuples and dicts to a device."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), data)


class DeviceLoader:
    """A data loader whose batches are on the device.

    The next batch is on its way while the current one is used.

    Parameters
    ----------
    loader : iterable
        Gives batches of nested lists, tuples and dicts of tensors.
    device : torch.device or str
        Where they go.
    sharding : ShardingSpec or mapping from str to ShardingSpec, optional
        How each tensor is divided over a mesh; a mapping names the entries of batches that are
        dicts. A tensor of another rank than its spec is left whole.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any = "tpu",
        sharding: ShardingSpec | Mapping[str, ShardingSpec] | None = None,
    ) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.sharding = sharding

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        waiting: list[Any] = []
        for batch in self.loader:
            waiting.append(self._move(batch))
            if len(waiting) > 1:
                yield waiting.pop(0)
        yield from waiting

    def _move(self, batch: Any) -> Any:
        batch = to_device(batch, self.device)
        if self.sharding is None:
            return batch
        if isinstance(self.sharding, Mapping):
            return {
                name: self.sharding[name].apply(value) if name in self.sharding else value
                for name, value in batch.items()
            }
        return pytree.tree_map_only(torch.Tensor, self.sharding.apply, batch)


def save(data: Any, file: Any, main_only: bool = True, per_host: bool = True) -> None:
    """Save an object with its tensors on the CPU, so that any machine can load it.

    Parameters
    ----------
    data : object
        Nested containers of tensors and anything else that ``torch.save`` takes.
    file : str, path or file object
        Where to; another one in each process if `main_only` is False.
    main_only : bool
        Whether only the first process writes.
    per_host : bool
        Whether that is the first one of each host rather than of the job.
    """
    if not main_only or is_main(local=per_host):
        torch.save(to_device(data, "cpu"), file)


class RateTracker:
    """How many items a second, since the last question and since the beginning.

    Parameters
    ----------
    smoothing : float
        Weight of the previous rate in the next one, from 0 to 1.
    """

    def __init__(self, smoothing: float = 0.4) -> None:
        self._smoothing = smoothing
        self._start = self._last = time.perf_counter()
        self._rate: float | None = None
        self._total = 0.0
        self._recent = 0.0

    def add(self, count: float) -> None:
        """Count items."""
        self._recent += count
        self._total += count

    def rate(self) -> float:
        """Return the smoothed rate, items a second, and begin the next interval."""
        now = time.perf_counter()
        if now <= self._last:
            return self._rate or 0.0
        current = self._recent / (now - self._last)
        old = current if self._rate is None else self._rate
        self._rate = (1 - self._smoothing) * current + self._smoothing * old
        self._last, self._recent = now, 0.0
        return self._rate

    def global_rate(self) -> float:
        """Return items a second since the beginning."""
        seconds = time.perf_counter() - self._start
        return self._total / seconds if seconds > 0 else 0.0
