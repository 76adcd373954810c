# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Accelerate, and with it the Trainer of Transformers, over several processes on "tpu".

In one process Accelerate needs nothing: it takes the device from ``ACCELERATE_TORCH_DEVICE``, which
is set where a device is present. Under a launcher it looks for the kinds of accelerators it knows,
finds none, and lets each process train alone. It does take a process group that exists already, and
its way for hosts (``cpu=True``) makes no assumption about the device of the model. `initialize`
uses just that. A program that should not be changed is started through this module::

    accelerate launch --multi_gpu --num_processes 4 -m torch_tpu.integrations.accelerate train.py
    torchrun --nproc-per-node 4 -m torch_tpu.integrations.accelerate train.py --epochs 3

The state then calls itself ``MULTI_CPU``, which means data parallelism here; its device is "tpu".
The Trainer makes a state of its own unless it is asked to take the one that is there::

    TrainingArguments(..., accelerator_config={"use_configured_state": True})
"""

from __future__ import annotations

import os
import runpy
import sys
from datetime import timedelta
from typing import Any

__all__ = ["DeviceRandomState", "initialize", "is_launched", "main"]

_BACKEND = "tpu_dist"


def is_launched() -> bool:
    """Return whether a launcher (``accelerate launch``, ``torchrun``) started this process."""
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def initialize(timeout: timedelta | None = None, **options: Any) -> bool:
    """Make the process group that Accelerate will use, before it makes its state.

    Call it once, before ``Accelerator()``, ``PartialState()`` or ``TrainingArguments(...)``. In a
    process that no launcher started it does nothing.

    Parameters
    ----------
    timeout : timedelta, optional
        How long a collective may wait for the other processes; PyTorch's default if not given.
    **options
        Further arguments of `torch.distributed.init_process_group`.

    Returns
    -------
    bool
        Whether a process group is there.

    Raises
    ------
    RuntimeError
        If Accelerate made its state already.

    Examples
    --------
    >>> from torch_tpu.integrations import accelerate as torus_accelerate
    >>> torus_accelerate.initialize()
    False
    """
    if not is_launched():
        return False
    import torch.distributed as dist
    from accelerate import PartialState

    if PartialState._shared_state:
        raise RuntimeError(
            "torch_tpu.integrations.accelerate.initialize() must be called before Accelerate makes "
            "its state: put it in front of Accelerator(), PartialState() and TrainingArguments()."
        )
    os.environ["ACCELERATE_TORCH_DEVICE"] = "tpu"
    # The variable would be read again at each look at the state, and then contradict its device.
    os.environ["ACCELERATE_USE_CPU"] = "false"
    if not dist.is_initialized():
        arguments = options if timeout is None else {"timeout": timeout, **options}
        dist.init_process_group(_BACKEND, **arguments)
    # Whatever makes the state first finds it as it should be.
    PartialState(cpu=True)
    return True


class DeviceRandomState:
    """The random state of all devices "tpu", for ``accelerator.register_for_checkpointing``.

    ``save_state`` keeps the random state of the devices Accelerate knows; registered, this object
    keeps ours with it, so that dropout goes on after ``load_state`` as it would have.

    Examples
    --------
    >>> accelerator.register_for_checkpointing(DeviceRandomState())  # doctest: +SKIP
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the states, one for each device."""
        import torch

        return {"states": torch.tpu.get_rng_state_all()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        import torch

        torch.tpu.set_rng_state_all(state["states"][: torch.tpu.device_count()])


def main() -> None:
    """Run the program named on the command line after `initialize`.

    Raises
    ------
    SystemExit
        If no program was named, or the program ends so.
    """
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m torch_tpu.integrations.accelerate PROGRAM [ARGUMENT...]")
    del sys.argv[0]
    initialize()
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        _leave()


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
