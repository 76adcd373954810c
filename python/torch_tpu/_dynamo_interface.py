# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What Dynamo asks of the device."""

from __future__ import annotations

from typing import Any

from torch._dynamo import device_interface

from torch_tpu import tpu


class _TpuInterface(device_interface.DeviceInterface):
    """What Dynamo asks a device while it traces.

    PyTorch brings an interface of this name that assumes one device, no streams and no float64;
    this one answers for the device as it is.
    """

    device = tpu.device
    Event = tpu.Event
    Stream = tpu.Stream

    class Worker:
        """Answers that must not need the device itself, for processes that only compile."""

        @staticmethod
        def set_device(device: int) -> None:
            """Do nothing: no worker opens the device."""

        @staticmethod
        def current_device() -> int:
            """Return the index of the current device."""
            return tpu.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            """Return the properties of a device."""
            return tpu.get_device_properties(device)

    current_device = staticmethod(tpu.current_device)
    set_device = staticmethod(tpu.set_device)
    exchange_device = staticmethod(tpu._exchange_device)
    maybe_exchange_device = staticmethod(tpu._maybe_exchange_device)
    device_count = staticmethod(tpu.device_count)
    is_available = staticmethod(tpu.is_available)
    stream = staticmethod(tpu.stream)
    current_stream = staticmethod(tpu.current_stream)
    set_stream = staticmethod(tpu.set_stream)
    _set_stream_by_id = staticmethod(tpu._set_stream_by_id)
    synchronize = staticmethod(tpu.synchronize)
    memory_allocated = staticmethod(tpu.memory_allocated)

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Return the number of the current stream."""
        return tpu.current_stream(device_idx).stream_id

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """Return an empty string: no kernel is chosen by capability."""
        del device
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Return True."""
        return tpu.is_bf16_supported(including_emulation)


def register() -> None:
    """Make Dynamo use the interface below; harmless the second time."""
    # Asking for any interface makes PyTorch register its own first, so that ours stays.
    device_interface.get_interface_for_device("cpu")
    device_interface.register_interface_for_device("tpu", _TpuInterface)
