# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.distributed.parallel_loader: batches on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_tpu import compat, training

import torch_xla


class MpDeviceLoader(training.DeviceLoader):
    """A loader whose batches are on the device; each next one ends a step.

    The sizes of queues and numbers of threads that torch_xla takes are accepted and not used.
    """

    def __init__(self, loader: Any, device: Any, input_sharding: Any = None, **unused: Any) -> None:
        del unused
        super().__init__(loader, device, input_sharding)

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch
            torch_xla.sync()


class ParallelLoader:
    """A loader for the one device of this process."""

    def __init__(self, cpu_loader: Any, devices: list[Any], **options: Any) -> None:
        if len(devices) != 1:
            raise NotImplementedError("ParallelLoader: one process has one device here")
        self._loader = MpDeviceLoader(cpu_loader, devices[0], **options)

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """Return the loader."""
        del device
        return self._loader

    def close(self) -> None:
        """Do nothing."""


__getattr__ = compat.missing("torch_xla.distributed.parallel_loader")
