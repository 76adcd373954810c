# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.experimental: the eager mode."""

from torch_tpu import compat

from torch_xla.experimental.eager import eager_mode  # noqa: F401

__getattr__ = compat.missing("torch_xla.experimental")
