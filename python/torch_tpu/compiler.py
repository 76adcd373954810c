# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The ``torch.compile`` backend named ``"tpu"``.

PyTorch finds it through the entry point group ``torch_dynamo_backends`` when a program first asks
for it, so none of this costs anything before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo import device_interface

from torch_tpu import tpu

__all__ = ["tpu_backend"]

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def tpu_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Run a captured graph on the device.

    The graph is made functional and differentiated ahead of time, then each call runs its
    operators through the same recording engine as eager code: in fused mode the engine compiles
    and caches them as whole programs. There is no second compiler behind this backend.

    Parameters
    ----------
    gm : torch.fx.GraphModule
        The graph that Dynamo captured.
    example_inputs : sequence of torch.Tensor
        Its inputs, usually fake tensors.
    mode : str, optional
        A mode of `torch.compile`. Checked; all of them do the same here.
    options : mapping, optional
        Options of `torch.compile`. Accepted and not used.
    **kwargs
        Accepted for other callers of Dynamo backends.

    Returns
    -------
    callable
        Takes the graph's inputs and returns its outputs.

    Raises
    ------
    ValueError
        If `mode` is not a mode of `torch.compile`.
    TypeError
        If `options` is not a mapping.
    """
    del kwargs
    if mode is not None and mode not in _MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(_MODES)}")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping, not {type(options).__name__}")

    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    compile_ahead = aot_autograd(
        fw_compiler=_run_operators,
        bw_compiler=_run_operators,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return compile_ahead(gm, example_inputs)


def _run_operators(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Turn a functional graph into a callable that frees each input as soon as it may."""
    from functorch.compile import make_boxed_func

    del example_inputs
    return make_boxed_func(gm.forward)


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


def _register_interface() -> None:
    # Asking for any interface makes PyTorch register its own first, so that ours stays.
    device_interface.get_interface_for_device("cpu")
    device_interface.register_interface_for_device("tpu", _TpuInterface)


_register_interface()
