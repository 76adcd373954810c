# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.utils.utils: the synthetic data of its examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from torch_tpu import compat


class SampleGenerator:
    """Gives the same batch a number of times."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

    def __iter__(self) -> Iterator[Any]:
        return iter([self._data] * self._sample_count)

    def __len__(self) -> int:
        return self._sample_count


def getenv_as(name: str, type: Callable[[Any], Any], defval: Any = None) -> Any:  # noqa: A002
    """Return an environment variable as a bool, number or text."""
    value = os.environ.get(name)
    if value is None:
        return defval
    return type(int(value)) if type is bool else type(value)


__getattr__ = compat.missing("torch_xla.utils.utils")
