# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.amp.syncfree: PyTorch's optimizers, which never wait here."""

from torch.optim import SGD, Adam, AdamW  # noqa: F401
