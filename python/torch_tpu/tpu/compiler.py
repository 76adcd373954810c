# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The module ``torch.tpu.compiler``: the backend of ``torch.compile``, imported when asked for."""

from torch_tpu.compiler import tpu_backend

__all__ = ["tpu_backend"]
