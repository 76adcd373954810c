# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""PyTorch Lightning and Fabric on "tpu".

Lightning chooses among the accelerators it knows by name, and its own "tpu" means ``torch_xla``.
It takes accelerators and strategies that others bring, which is what this module holds::

    from torch_tpu.integrations.lightning import fabric_strategy, trainer_strategy

    trainer = Trainer(strategy=trainer_strategy(precision="bf16-mixed"), max_epochs=3)
    fabric = Fabric(strategy=fabric_strategy(precision="bf16-mixed"))

Importing it also registers the accelerator ``"torus"`` and the strategy ``"single_torus"``, for
configurations that can only hold names: ``Trainer(accelerator="torus", strategy="single_torus")``.
Both packages, ``lightning`` and ``pytorch_lightning``, are served; if both are installed, the one
that was imported before this module.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import torch

__all__ = ["TpuAccelerator", "fabric_strategy", "trainer_strategy"]

_PACKAGES = {"lightning": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}


def _package() -> tuple[str, str]:
    """Name the Trainer's package and Fabric's."""
    known = sorted(_PACKAGES, key=lambda name: name not in sys.modules)
    for name in known:
        if importlib.util.find_spec(name) is not None:
            return "lightning.pytorch" if name == "lightning" else name, _PACKAGES[name]
    raise ImportError("torch_tpu.integrations.lightning needs lightning or pytorch-lightning")


_TRAINER, _FABRIC = _package()
_accelerators = importlib.import_module(f"{_TRAINER}.accelerators")
_strategies = importlib.import_module(f"{_TRAINER}.strategies")
_plugins = importlib.import_module(f"{_TRAINER}.plugins")
_fabric_accelerators = importlib.import_module(f"{_FABRIC}.accelerators")
_fabric_strategies = importlib.import_module(f"{_FABRIC}.strategies")
_fabric_plugins = importlib.import_module(f"{_FABRIC}.plugins")

Device = int | str | list[int]


class TpuAccelerator(_accelerators.Accelerator):
    """Device "tpu" as Lightning sees an accelerator."""

    def setup_device(self, device: torch.device) -> None:
        """Make `device` the current one.

        Raises
        ------
        ValueError
            If it is not a device "tpu".
        """
        if device.type != "tpu":
            raise ValueError(f"TpuAccelerator got device {device} instead of tpu")
        torch.accelerator.set_device_index(device)

    def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
        """Return the memory statistics of `device`, in bytes."""
        return torch.tpu.memory_stats(device)

    def teardown(self) -> None:
        """Free the memory that is kept for reuse."""
        torch.tpu.empty_cache()

    @staticmethod
    def parse_devices(devices: Device) -> list[int]:
        """Turn a count, a list of indices or a string of either into a list of indices.

        Raises
        ------
        ValueError
            If a device is named that is not there.
        """
        count = torch.tpu.device_count()
        if isinstance(devices, str):
            numbers = [int(part) for part in devices.split(",") if part.strip()]
            devices = numbers if "," in devices else numbers[0]
        if isinstance(devices, int):
            devices = list(range(count if devices == -1 else devices))
        absent = [index for index in devices if not 0 <= index < count]
        if absent:
            raise ValueError(f"devices={devices}: there are {count} devices tpu")
        return list(devices)

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Name the devices of a list of indices."""
        return [torch.device("tpu", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Return 1: a process drives one device."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Return whether a device is present."""
        return torch.tpu.is_available()

    @staticmethod
    def name() -> str:
        """Return the name of the registration."""
        return "torus"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Register the accelerator."""
        accelerator_registry.register(cls.name(), cls, description="device tpu, by Torus")


def _precision(plugins: Any, precision: str) -> Any:
    """Make the plugin that Lightning would make for `precision`, with autocast on "tpu"."""
    if precision in ("bf16-mixed", "16-mixed"):
        return plugins.MixedPrecision(precision, device="tpu")
    if precision in ("bf16-true", "16-true"):
        return plugins.HalfPrecision(precision)
    if precision in ("64", "64-true"):
        return plugins.DoublePrecision()
    if precision not in ("32", "32-true"):
        known = "32-true, 64-true, bf16-mixed, bf16-true, 16-mixed, 16-true"
        raise ValueError(f"precision={precision!r} is none of {known}")
    return plugins.Precision()


class _SingleDevice(_strategies.SingleDeviceStrategy):
    strategy_name = "single_torus"

    def __init__(self, precision: str = "32-true", device: int = 0) -> None:
        super().__init__(
            device=torch.device("tpu", device),
            accelerator=TpuAccelerator(),
            precision_plugin=_precision(_plugins, precision),
        )


class _FabricSingleDevice(_fabric_strategies.SingleDeviceStrategy):
    def __init__(self, precision: str = "32-true", device: int = 0) -> None:
        super().__init__(
            device=torch.device("tpu", device),
            accelerator=TpuAccelerator(),
            precision=_precision(_fabric_plugins, precision),
        )


class _OneDeviceEach:
    """What both strategies for several processes share: a process has one device, number 0."""

    @property
    def root_device(self) -> torch.device:
        return torch.device("tpu", 0)

    def determine_ddp_device_ids(self) -> None:
        return None

    def _determine_ddp_device_ids(self) -> None:
        return None


class _Parallel(_OneDeviceEach, _strategies.DDPStrategy):
    def __init__(self, precision: str, processes: int, **options: Any) -> None:
        super().__init__(
            accelerator=TpuAccelerator(),
            parallel_devices=[torch.device("tpu", 0)] * processes,
            precision_plugin=_precision(_plugins, precision),
            process_group_backend="tpu_dist",
            **options,
        )


class _FabricParallel(_OneDeviceEach, _fabric_strategies.DDPStrategy):
    def __init__(self, precision: str, processes: int, **options: Any) -> None:
        super().__init__(
            accelerator=TpuAccelerator(),
            parallel_devices=[torch.device("tpu", 0)] * processes,
            precision=_precision(_fabric_plugins, precision),
            process_group_backend="tpu_dist",
            **options,
        )


def trainer_strategy(
    precision: str = "32-true", processes: int = 1, device: int = 0, **options: Any
) -> Any:
    """Make a strategy for ``Trainer(strategy=...)``.

    Parameters
    ----------
    precision : str
        As the Trainer takes it: ``32-true``, ``64-true``, ``bf16-mixed``, ``bf16-true``,
        ``16-mixed`` or ``16-true``. Leave the Trainer's own ``precision`` unset.
    processes : int
        How many processes of this host train together, each on one device. Lightning starts them,
        or ``torchrun`` does.
    device : int
        The device of a single process.
    **options
        Further arguments of Lightning's ``DDPStrategy``, for several processes.

    Returns
    -------
    Strategy
        It brings the accelerator and the precision with it.

    Raises
    ------
    ValueError
        If `precision` is unknown.
    """
    if processes == 1:
        return _SingleDevice(precision, device)
    return _Parallel(precision, processes, **options)


def fabric_strategy(
    precision: str = "32-true", processes: int = 1, device: int = 0, **options: Any
) -> Any:
    """Make a strategy for ``Fabric(strategy=...)``.

    Parameters
    ----------
    precision, processes, device, **options
        As in `trainer_strategy`.

    Returns
    -------
    Strategy
        It brings the accelerator and the precision with it.

    Raises
    ------
    ValueError
        If `precision` is unknown.
    """
    if processes == 1:
        return _FabricSingleDevice(precision, device)
    return _FabricParallel(precision, processes, **options)


def _register() -> None:
    for registry in (
        _accelerators.AcceleratorRegistry,
        _fabric_accelerators.ACCELERATOR_REGISTRY,
    ):
        if TpuAccelerator.name() not in registry:
            TpuAccelerator.register_accelerators(registry)
    name = _SingleDevice.strategy_name
    for registry, strategy in (
        (_strategies.StrategyRegistry, _SingleDevice),
        (_fabric_strategies.STRATEGY_REGISTRY, _FabricSingleDevice),
    ):
        if name not in registry:
            registry.register(name, strategy, description="one device tpu, by Torus")


_register()
