# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Wraps a function of PyTorch where no hook would do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap_once(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Put a function in the place of another, which it gets as its first argument.

    Parameters
    ----------
    owner : module or type
        What holds the function.
    name : str
        The attribute's name.

    Returns
    -------
    callable
        A decorator for the wrapper ``wrapper(original, *args, **kwargs)``. What is wrapped already
        stays as it is.
    """

    def decorate(wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        if hasattr(original, "__torus__"):
            return

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        wrapped.__torus__ = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)

    return decorate
