# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Ahead of time: models without memory, programs without running them, for TPUs that are not there.

`abstract` makes tensors that have a shape and a dtype and nothing else, so that a model of any size
can be built here; `lower` turns a function of such (or of real) tensors into one StableHLO program;
`compile_text` hands one to the TPU compiler, which is libtpu (``pip install libtpu``;
``TORUS_LIBTPU_PATH`` names another one).
"""

from __future__ import annotations

from torch_tpu.aot import topologies
from torch_tpu.aot.capture import (
    Lowered,
    Missing,
    NotLowered,
    Returned,
    Slot,
    abstract,
    abstract_like,
    is_abstract,
    lower,
)
from torch_tpu.aot.compiling import Compiled, Memory, compile_text
from torch_tpu.aot.errors import CompilationRefused, LibtpuMissing
from torch_tpu.aot.topologies import Topology, describe

__all__ = [
    "CompilationRefused",
    "Compiled",
    "LibtpuMissing",
    "Lowered",
    "Memory",
    "Missing",
    "NotLowered",
    "Returned",
    "Slot",
    "Topology",
    "abstract",
    "abstract_like",
    "compile_text",
    "describe",
    "is_abstract",
    "lower",
    "topologies",
]
