# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Ahead of time: programs compiled for TPUs that are not there.

The TPU compiler is libtpu (``pip install libtpu``); ``TORUS_LIBTPU_PATH`` names another one.
"""

from torch_tpu.aot import topologies
from torch_tpu.aot.compiling import Compiled, Memory, compile_text
from torch_tpu.aot.errors import CompilationRefused, LibtpuMissing
from torch_tpu.aot.topologies import Topology, describe

__all__ = [
    "CompilationRefused",
    "Compiled",
    "LibtpuMissing",
    "Memory",
    "Topology",
    "compile_text",
    "describe",
    "topologies",
]
