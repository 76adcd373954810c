# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Random numbers: one default generator per device.

A seed set before the devices are open is kept and counts when they open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import torch

from torch_tpu import _C
from torch_tpu.tpu._utils import Device, _device_count, _get_device_index
from torch_tpu.tpu.devices import init, is_initialized

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

_SEED_LIMITS = (-(2**63), 2**64 - 1)


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generators by device index, made when asked for."""

    def __getitem__(self, index: int) -> torch.Generator:  # type: ignore[override]
        init()  # first, so that a missing plugin is told as such
        if not 0 <= index < len(self):
            raise IndexError(f"there is no default generator for tpu:{index}")
        return _C._default_generator(index)

    def __len__(self) -> int:
        return _device_count()

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<default generators of {len(self)} tpu devices>"


default_generators = _DefaultGenerators()


def _get_generator(device: Device = None) -> torch.Generator:
    return default_generators[_get_device_index(device, optional=True)]


def get_rng_state(device: Device = "tpu") -> torch.Tensor:
    """Return the state of a device's default generator as a CPU tensor of bytes.

    Opens the devices.
    """
    return _get_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all default generators, by device index."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Device = "tpu") -> None:
    """Set the state of a device's default generator. Opens the devices.

    Parameters
    ----------
    new_state : torch.Tensor
        Bytes from `get_rng_state`.
    device : torch.device, str, int or None
        The current device by default.
    """
    _get_generator(device).set_state(new_state.cpu())


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all default generators, by device index."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator.

    Before the devices are open the seed is kept for all of them. Without a plugin, or in a forked
    process, nothing happens.
    """
    if is_initialized():
        _get_generator().manual_seed(int(seed))
    else:
        manual_seed_all(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generators of all devices, open or not.

    Parameters
    ----------
    seed : int
        From ``-2**63`` to ``2**64 - 1``; a negative one counts from the top, as in PyTorch.

    Raises
    ------
    RuntimeError
        If the seed is out of range.
    """
    seed = int(seed)
    if not _SEED_LIMITS[0] <= seed <= _SEED_LIMITS[1]:
        raise RuntimeError(f"Overflow when unpacking long: the seed {seed} is out of range")
    if not _C._is_in_bad_fork():
        _C._manual_seed_all(seed if seed >= 0 else seed + _SEED_LIMITS[1])


def seed() -> None:
    """Seed the current device's default generator with a random number."""
    manual_seed(_random_seed())


def seed_all() -> None:
    """Seed the default generators of all devices with one random number."""
    manual_seed_all(_random_seed())


def initial_seed() -> int:
    """Return the seed of the current device's default generator. Opens the devices."""
    return _get_generator().initial_seed()


def _random_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")
