# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The ``torch-tpu`` variant of the layers that Torus ships."""

from . import layers

__all__ = ["layers"]
