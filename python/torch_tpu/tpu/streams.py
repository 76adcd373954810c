# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Streams and events of the device, as `torch.Stream` and `torch.Event` of type "tpu"."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.tpu._utils import Device, _get_device_index
from torch_tpu.tpu.devices import device as device_context

_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)


class Stream(torch.Stream):
    """A queue of work on a device.

    Parameters
    ----------
    device : torch.device, str, int or None
        Where; the current device by default.
    priority : int
        Accepted; streams have no priorities.
    stream_id, device_index, device_type : int, optional
        An existing stream, as `torch.Stream` names it.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: int) -> Stream:
        """Make a stream, or a handle of an existing one when `stream_id` is given."""
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("tpu", index), priority=priority)

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device={self.device}, stream_id={self.stream_id})"


class _EventType(type):
    """Makes every `torch.Event` of a device "tpu" an instance of `Event`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "tpu"


class Event(metaclass=_EventType):
    """A point in a stream that others can wait for.

    Calling it makes a `torch.Event`: streams and other events take that exact type only.

    Parameters
    ----------
    enable_timing : bool
        Whether `elapsed_time` may be asked for.
    blocking, interprocess : bool
        As for `torch.Event`.
    device : torch.device, str, int or None
        Where; the current device by default.
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        *,
        device: Device = None,
    ) -> torch.Event:
        """Make an event; nothing is recorded yet."""
        return torch.Event(
            torch.device("tpu", _get_device_index(device, optional=True)),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device: Device = None) -> Stream:
    """Return the calling thread's current stream on a device."""
    return _wrap(torch._C._accelerator_getStream(_get_device_index(device, optional=True)))


def default_stream(device: Device = None) -> Stream:
    """Return the stream that a device starts with."""
    index = _get_device_index(device, optional=True)
    return Stream(stream_id=0, device_index=index, device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream, and its device, the current one of the calling thread.

    Prefer the context manager `stream`. None changes nothing.
    """
    if stream is not None:
        torch._C._accelerator_setStream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


class StreamContext:
    """Context manager that makes a stream, and its device, the current one.

    Parameters
    ----------
    stream : torch.Stream or None
        None changes nothing.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[Stream, Stream]] = []

    def __enter__(self) -> Any:
        if self.stream is None:
            return self
        # The stream's own device may have another current stream than the current device has.
        on_current_device = current_stream()
        with device_context(self.stream.device):
            on_its_device = current_stream()
        self._previous.append((on_its_device, on_current_device))
        set_stream(self.stream)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.stream is not None:
            for previous in self._previous.pop():
                set_stream(previous)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context manager that makes a stream the current one; None changes nothing."""
    return StreamContext(stream)
