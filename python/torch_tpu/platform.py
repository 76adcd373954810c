# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Chooses the PJRT plugin: which file, why, or what is missing.

Nothing is loaded here. A plugin is code that will run in this process, so only two kinds of files
qualify: a path the user names, which must be absolute, and a file of an installed package. The
working directory is never searched, even where Python has it on its path.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_GOOGLE_VENDOR = "0x1ae0"
# TPU v2 and v3, v4, v5p, v5e, v6e, v7x. The vendor also makes network cards and disks.
_TPU_DEVICES = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})
_ACCELERATOR_CLASS = "0x12"  # PCI base class "processing accelerator"

_LIBTPU = (("libtpu", "libtpu/libtpu.so"),)
_CPU_PLUGINS = (
    ("xla-cpu-pjrt", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"),
    ("lammps-jax-pjrt-cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"),
)
_CUDA_PLUGINS = (
    ("jax-cuda13-pjrt", "jax_plugins/xla_cuda13/xla_cuda_plugin.so"),
    ("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
)
_MAX_CPU_DEVICES = 128  # torch.device holds the index in a signed byte


class Platform(NamedTuple):
    """A choice of plugin.

    Attributes
    ----------
    name : str
        ``"tpu"``, ``"cpu"``, ``"cuda"``, ``"plugin"`` (a path of the user's), or ``"none"``.
    plugin_path : str
        Absolute path of the plugin; empty when there is an error.
    is_cpu : bool
        Whether the plugin runs programs on the host's CPU.
    cpu_device_count : int
        How many devices a CPU plugin shall show; 0 for other plugins.
    error : str
        Why there is no plugin and what to do about it; empty when there is one.
    reason : str
        What led to this choice, for ``torus doctor``.
    package : str
        Distribution the plugin comes from; empty for a path of the user's.
    """

    name: str
    plugin_path: str = ""
    is_cpu: bool = False
    cpu_device_count: int = 0
    error: str = ""
    reason: str = ""
    package: str = ""


@functools.lru_cache(maxsize=1)
def current() -> Platform:
    """Return this process's choice, made from the environment when first asked for."""
    return select(os.environ)


def select(environment: Mapping[str, str]) -> Platform:
    """Choose a plugin.

    Parameters
    ----------
    environment : mapping of str to str
        Read: ``TORUS_PLATFORM`` (``auto``, ``cpu``, ``tpu``, ``cuda``, or an absolute path),
        ``TORUS_CPU_DEVICES``, ``TPU_LIBRARY_PATH``.

    Returns
    -------
    Platform
        Never raises; `Platform.error` says what is wrong.
    """
    wanted = environment.get("TORUS_PLATFORM", "").strip() or "auto"
    choosers = {"auto": _select_auto, "cpu": _select_cpu, "tpu": _select_tpu, "cuda": _select_cuda}
    if wanted in choosers:
        return choosers[wanted](environment)
    if "/" in wanted or wanted.endswith(".so"):
        return _select_path(wanted, environment)
    return Platform(
        "none",
        error=f"TORUS_PLATFORM={wanted!r} is not known. Use auto, cpu, tpu, cuda, or the absolute "
        "path of a PJRT plugin.",
        reason=f"TORUS_PLATFORM={wanted}",
    )


def _select_auto(environment: Mapping[str, str]) -> Platform:
    evidence = find_tpu_hardware()
    if evidence:
        return _libtpu(environment, evidence)
    reason = "no TPU hardware found"
    return _select_cpu(environment)._replace(reason=f"{reason}, so the CPU plugin")


def _select_tpu(environment: Mapping[str, str]) -> Platform:
    evidence = find_tpu_hardware()
    if evidence or environment.get("TPU_LIBRARY_PATH"):
        return _libtpu(environment, f"TORUS_PLATFORM=tpu, {evidence or 'TPU_LIBRARY_PATH is set'}")
    return Platform(
        "none",
        error="TORUS_PLATFORM=tpu, but this machine shows no TPU (no such PCI device, no "
        "/dev/accel*). In a container, pass the devices through; to run on the CPU instead, set "
        "TORUS_PLATFORM=cpu; to try a libtpu all the same, set TPU_LIBRARY_PATH to its absolute "
        "path.",
        reason="TORUS_PLATFORM=tpu",
    )


def find_libtpu(environment: Mapping[str, str]) -> tuple[str, str]:
    """Find the TPU compiler, which works without a TPU.

    Parameters
    ----------
    environment : mapping of str to str
        Read: ``TORUS_LIBTPU_PATH``, ``TPU_LIBRARY_PATH``.

    Returns
    -------
    path : str
        Absolute path of libtpu; empty when there is an error.
    error : str
        What is missing and what to do about it; empty when there is a path.
    """
    for variable in ("TORUS_LIBTPU_PATH", "TPU_LIBRARY_PATH"):
        named = environment.get(variable, "")
        if named:
            error = _path_error(variable, named)
            return ("" if error else named), error
    _, path = _find_installed(_LIBTPU)
    if path:
        return path, ""
    return "", (
        "The TPU compiler libtpu is not installed. Run pip install libtpu (no TPU is needed for "
        "it), or set TORUS_LIBTPU_PATH to the absolute path of a libtpu.so."
    )


def _libtpu(environment: Mapping[str, str], reason: str) -> Platform:
    named = environment.get("TPU_LIBRARY_PATH", "")
    if named:
        error = _path_error("TPU_LIBRARY_PATH", named)
        found = ("", "" if error else named)
    else:
        found = _find_installed(_LIBTPU)
        error = (
            ""
            if found[1]
            else f"A TPU is there ({reason}) but libtpu is not installed. Run pip install libtpu, "
            "or set TORUS_PLATFORM=cpu to run on the CPU."
        )
    return Platform("tpu" if not error else "none", found[1], False, 0, error, reason, found[0])


def _select_cpu(environment: Mapping[str, str]) -> Platform:
    reason = "TORUS_PLATFORM=cpu"
    package, path = _find_installed(_CPU_PLUGINS)
    count, error = _cpu_device_count(environment)
    if not path:
        error = (
            "No PJRT plugin for the CPU is installed. Run pip install xla-cpu-pjrt, or set "
            "TORUS_PLATFORM to the absolute path of a plugin."
        )
    if error:
        return Platform("none", error=error, reason=reason)
    return Platform("cpu", path, True, count, "", reason, package)


def _select_cuda(environment: Mapping[str, str]) -> Platform:
    del environment
    package, path = _find_installed(_CUDA_PLUGINS)
    error = (
        ""
        if path
        else "TORUS_PLATFORM=cuda, but no PJRT plugin for CUDA is installed. Run pip install "
        "jax-cuda12-pjrt or jax-cuda13-pjrt, whichever fits the driver."
    )
    name = "none" if error else "cuda"
    return Platform(name, path, False, 0, error, "TORUS_PLATFORM=cuda", package)


def _select_path(path: str, environment: Mapping[str, str]) -> Platform:
    reason = "TORUS_PLATFORM names a path"
    error = _path_error("TORUS_PLATFORM", path)
    is_cpu = "cpu" in os.path.basename(path).lower()
    count = 0
    if is_cpu and not error:
        count, error = _cpu_device_count(environment)
    if error:
        return Platform("none", error=error, reason=reason)
    return Platform("plugin", path, is_cpu, count, "", reason)


def _path_error(variable: str, path: str) -> str:
    if not os.path.isabs(path):
        return (
            f"{variable}={path!r} is not an absolute path. A plugin is never looked for in the "
            "working directory: give the full path."
        )
    if not os.path.isfile(path):
        return f"{variable}={path!r}: there is no such file. Correct the path or unset {variable}."
    return ""


def _cpu_device_count(environment: Mapping[str, str]) -> tuple[int, str]:
    text = environment.get("TORUS_CPU_DEVICES", "").strip() or "1"
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _MAX_CPU_DEVICES:
        return int(text), ""
    return 0, (
        f"TORUS_CPU_DEVICES={text!r} is not a number of devices. Set it to an integer from 1 to "
        f"{_MAX_CPU_DEVICES}, or unset it for one device."
    )


def find_tpu_hardware(pci_folder: str = "/sys/bus/pci/devices", device_folder: str = "/dev") -> str:
    """Look for a TPU without touching it.

    Parameters
    ----------
    pci_folder, device_folder : str
        Where the kernel lists PCI devices and device nodes.

    Returns
    -------
    str
        What was found, in words; empty when there is no TPU.
    """
    for name in _list_folder(pci_folder):
        folder = os.path.join(pci_folder, name)
        if _read(os.path.join(folder, "vendor")) != _GOOGLE_VENDOR:
            continue
        device = _read(os.path.join(folder, "device"))
        base_class = _read(os.path.join(folder, "class"))[: len(_ACCELERATOR_CLASS)]
        if device in _TPU_DEVICES or base_class == _ACCELERATOR_CLASS:
            return f"PCI device {name} is a TPU ({_GOOGLE_VENDOR}:{device})"
    for name in _list_folder(device_folder):
        # Drivers of other accelerators use the folder /dev/accel; those of TPUs, plain nodes.
        if name.startswith("accel") and name[len("accel") :].isdigit():
            return f"{os.path.join(device_folder, name)} exists"
    return ""


def _list_folder(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _find_installed(candidates: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return (distribution, absolute path) of the first candidate that is installed."""
    folders = _trusted_folders()
    for package, relative in candidates:
        for folder in folders:
            path = os.path.join(folder, relative)
            if os.path.isfile(path):
                return package, path
    return "", ""


def _trusted_folders() -> list[str]:
    """List Python's search path without the working directory.

    ``python -c``, ``python -m`` and ``PYTHONPATH=.`` put it there. It stays only if it is where
    packages are installed.
    """
    installed = {os.path.realpath(sysconfig.get_path(key)) for key in ("purelib", "platlib")}
    try:
        untrusted = {os.path.realpath(os.getcwd())} - installed
    except OSError:  # the working directory was removed
        untrusted = set()
    return [
        folder
        for folder in sys.path
        if os.path.isabs(folder) and os.path.realpath(folder) not in untrusted
    ]
