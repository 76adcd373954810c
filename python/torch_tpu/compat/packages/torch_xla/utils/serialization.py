# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.utils.serialization: checkpoints with a file for each tensor."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch_tpu import training


class TensorReference:
    """Stands for a tensor that is in a file of its own; torch_xla wrote them."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Save data in one file."""
    training.save(data, path, master_only, not global_master)


def load(path: str) -> Any:
    """Load what `save` or torch_xla's own has written.

    The file may hold any Python object, so load only files that you trust.
    """
    data = torch.load(path, weights_only=False)

    def read(reference: TensorReference) -> torch.Tensor:
        name = f"tensor_{reference.tid}.pt"
        return torch.load(os.path.join(f"{path}.tensors", name), weights_only=True)

    return pytree.tree_map_only(TensorReference, read, data)
