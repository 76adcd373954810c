# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Layers of Torus for the ``kernels`` library, in the form of a local kernel repository.

``kernels`` takes the build variant ``torch-tpu`` on this backend. The folder `REPOSITORY` holds
one; it can be copied to the Hub as it is. Layers of a model that carry a name of `LAYERS` are
replaced so::

    from kernels import Mode, kernelize, use_kernel_mapping
    from torch_tpu.integrations.kernels import layer_mapping

    with use_kernel_mapping(layer_mapping()):
        model = kernelize(model, mode=Mode.TRAINING)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["LAYERS", "REPOSITORY", "layer_mapping"]

REPOSITORY = Path(__file__).with_name("kernel_layers")
"""The folder of the kernel repository."""

LAYERS = (
    "RMSNorm",
    "ScaledDotProductAttention",
    "SiluAndMul",
    "SiLU",
    "GeLU",
    "GeluTanh",
    "NewGELU",
)
"""The layers it holds; the names are those that models of the Hub use."""


def layer_mapping(*names: str) -> dict[str, dict[str, Any]]:
    """Map names of layers to the layers that Torus ships for device "tpu".

    Parameters
    ----------
    *names : str
        Names out of `LAYERS`; all if none is given.

    Returns
    -------
    dict
        What ``kernels.use_kernel_mapping`` and ``kernels.register_kernel_mapping`` take.

    Raises
    ------
    ValueError
        If a name is not in `LAYERS`.
    ImportError
        If the package ``kernels`` is not installed.
    """
    unknown = sorted(set(names) - set(LAYERS))
    if unknown:
        raise ValueError(f"no layer {', '.join(unknown)}; there are {', '.join(LAYERS)}")
    from kernels import LocalLayerRepository

    return {
        name: {"tpu": LocalLayerRepository(REPOSITORY, layer_name=name)} for name in names or LAYERS
    }
