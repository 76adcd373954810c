# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""How eager operators run, and how exact float32 products are.

Results are the same in every eager mode; only when programs are compiled and waited for differs.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from torch_tpu import _C

_Function = TypeVar("_Function", bound=Callable[..., Any])


class EagerMode(enum.Enum):
    """When recorded operators run.

    Attributes
    ----------
    DEBUG
        Each operator at once, and waited for: an error is raised at its own line.
    STRICT
        Each operator at once, not waited for.
    FUSED
        Operators are gathered and run as larger programs. The default.
    DEFER_NEVER_AND_LAUNCH_BLOCKING, DEFER_NEVER, DEFER_AND_FUSE
        The same three, under the names that TorchTPU uses.
    """

    DEBUG = 0
    STRICT = 1
    FUSED = 2
    DEFER_NEVER_AND_LAUNCH_BLOCKING = DEBUG
    DEFER_NEVER = STRICT
    DEFER_AND_FUSE = FUSED


class Precision(enum.Enum):
    """How float32 matrix products are computed on a TPU.

    Attributes
    ----------
    DEFAULT
        One bfloat16 pass; PyTorch calls it ``"medium"``.
    HIGH
        Three bfloat16 passes; ``"high"``.
    HIGHEST
        Six passes, which is float32; ``"highest"``, the default of PyTorch and of this device.
    """

    DEFAULT = "medium"
    HIGH = "high"
    HIGHEST = "highest"


def _to_mode(mode: EagerMode | str | int) -> EagerMode:
    if isinstance(mode, str):
        try:
            return EagerMode[mode.upper()]
        except KeyError:
            raise ValueError(f"{mode!r} is none of debug, strict, fused") from None
    return EagerMode(mode)


def get_eager_mode() -> EagerMode:
    """Return the mode in force in the calling thread."""
    return EagerMode(_C._get_mode())


class set_eager_mode:  # noqa: N801
    """Set the eager mode, for good or for a block.

    Called alone, it sets the mode of the process. As a context manager or decorator it sets the
    mode of the calling thread for as long as the block runs, and nothing else.

    Parameters
    ----------
    mode : EagerMode or str
        A member or its name in any case, such as ``"strict"``.

    Raises
    ------
    ValueError
        If there is no such mode.

    Examples
    --------
    >>> torch.tpu.set_eager_mode("strict")  # doctest: +SKIP
    >>> with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):  # doctest: +SKIP
    ...     model(x)
    """

    def __init__(self, mode: EagerMode | str | int) -> None:
        self.mode = _to_mode(mode)
        self._overrides: list[int] = []
        self._previous_override = _C._set_thread_mode(-1)
        self._previous_mode = _C._get_mode()
        self._is_call = True
        _C._set_mode(self.mode.value)
        # Inside a block the thread's own mode hides that of the process: change both.
        if self._previous_override >= 0:
            _C._set_thread_mode(self.mode.value)

    def _undo_call(self) -> None:
        """Take back what making the object did, now that it proves to be for a block."""
        if self._is_call:
            self._is_call = False
            _C._set_mode(self._previous_mode)
            _C._set_thread_mode(self._previous_override)

    def __enter__(self) -> set_eager_mode:
        self._undo_call()
        self._overrides.append(_C._set_thread_mode(self.mode.value))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _C._set_thread_mode(self._overrides.pop())

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function so that each call of it runs in the mode."""
        self._undo_call()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            previous = _C._set_thread_mode(self.mode.value)
            try:
                return function(*args, **kwargs)
            finally:
                _C._set_thread_mode(previous)

        return wrapper  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"torch.tpu.set_eager_mode({self.mode})"


class precision:  # noqa: N801
    """Context manager that sets how float32 matrix products are computed.

    It sets `torch.set_float32_matmul_precision`, which belongs to the process, and restores it.

    Parameters
    ----------
    value : Precision or str
        A member, its name, or PyTorch's name for it.
    """

    def __init__(self, value: Precision | str) -> None:
        if isinstance(value, str) and value.upper() in Precision.__members__:
            value = Precision[value.upper()]
        self.value = Precision(value)
        self._previous: list[str] = []

    def __enter__(self) -> precision:
        self._previous.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(self.value.value)
        return self

    def __exit__(self, *exc_info: object) -> None:
        torch.set_float32_matmul_precision(self._previous.pop())


def mode_from_environment(environment: Mapping[str, str]) -> tuple[int, str]:
    """Read the mode to start with.

    Parameters
    ----------
    environment : mapping of str to str
        Read: ``TORUS_EAGER_MODE`` (``debug``, ``strict``, ``fused``) and, where it is not set,
        ``TORCH_TPU_LAUNCH_BLOCKING`` and ``TORCH_TPU_DEFER_AND_FUSE`` (also without ``TORCH_``).

    Returns
    -------
    mode : int
        Value of an `EagerMode`.
    error : str
        What is wrong with the variables; empty if nothing is.
    """
    named = environment.get("TORUS_EAGER_MODE", "").strip()
    if named:
        try:
            return _to_mode(named).value, ""
        except ValueError:
            message = f"TORUS_EAGER_MODE={named!r} is none of debug, strict, fused."
            return EagerMode.FUSED.value, message
    if _flag(environment, "TPU_LAUNCH_BLOCKING"):
        return EagerMode.DEBUG.value, ""
    if _flag(environment, "TPU_DEFER_AND_FUSE") is False:
        return EagerMode.STRICT.value, ""
    return EagerMode.FUSED.value, ""


def _flag(environment: Mapping[str, str], name: str) -> bool | None:
    text = environment.get(f"TORCH_{name}", environment.get(name, "")).strip().lower()
    return None if not text else text not in ("0", "false", "no", "off")
