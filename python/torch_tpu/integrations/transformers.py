# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What the Trainer of Transformers keeps in a checkpoint for CUDA, kept for "tpu".

The Trainer saves the random state of the devices it knows, so that a run with dropout that goes on
from a checkpoint draws what the whole run would have drawn. A callback does it for "tpu"::

    trainer = Trainer(
        args=TrainingArguments(..., restore_callback_states_from_checkpoint=True),
        callbacks=[DeviceRandomState()],
    )
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.trainer_callback import ExportableState, TrainerCallback

__all__ = ["DeviceRandomState"]


class DeviceRandomState(TrainerCallback, ExportableState):
    """Saves the random state of all devices with a checkpoint, and restores it on resuming.

    Attributes
    ----------
    saved : list of list of int or None
        The states that a checkpoint brought, one for each device, as bytes.
    """

    saved: list[list[int]] | None = None

    def state(self) -> dict[str, Any]:
        """Return what the checkpoint keeps."""
        states = [state.tolist() for state in torch.tpu.get_rng_state_all()]
        return {"args": {}, "attributes": {"saved": states}}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Restore the states, if a checkpoint brought any."""
        if self.saved is not None:
            states = [torch.tensor(state, dtype=torch.uint8) for state in self.saved]
            torch.tpu.set_rng_state_all(states[: torch.tpu.device_count()])
            self.saved = None
