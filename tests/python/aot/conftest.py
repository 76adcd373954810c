# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The tests here need the TPU compiler, which needs no TPU."""

from __future__ import annotations

import pytest
from torch_tpu.aot import topologies


@pytest.fixture
def libtpu() -> None:
    """Skip the test where libtpu is not installed."""
    if not topologies.is_available():
        pytest.skip("libtpu is not installed (pip install libtpu; no TPU is needed)")
