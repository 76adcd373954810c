# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.utils.checkpoint: PyTorch's own."""

from torch.utils.checkpoint import checkpoint  # noqa: F401
