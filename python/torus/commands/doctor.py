# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Say what Torus found on this machine, try it, and name the remedy for what is wrong.

Examples
--------
  torus doctor                      what is installed, what a TPU program would run on
  torus doctor --json > report.json the same for a bug report
  TORUS_PLATFORM=cpu torus doctor   try the CPU plugin, whatever else is there

Exit status 0: a small program ran on the device. 1: it did not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import metadata
from typing import Any

from torus.commands.cache import cache_folder

HELP = "show versions, plugin and devices, and run a small self-check"

_PACKAGES = ("torus-tpu", "torch", "xla-cpu-pjrt", "libtpu", "numpy")
_DISABLED = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Examine the machine and print what was found.

    Returns
    -------
    int
        0 if the self-check passed, else 1.
    """
    report = examine()
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)
    return 0 if report["ok"] else 1


def examine() -> dict[str, Any]:
    """Collect the facts; never raises.

    Returns
    -------
    dict
        ``ok`` (bool), ``problem`` (str, empty if there is none), ``versions`` (dict), and as far
        as the device came up: ``platform``, ``reason``, ``plugin``, ``platform_version``,
        ``api_version``, ``devices`` (list of dict), ``mode``, ``cache_folder``, ``self_check``.
    """
    report: dict[str, Any] = {
        "ok": False,
        "problem": "",
        "versions": {"python": sys.version.split()[0], **_package_versions()},
        "cache_folder": cache_folder(os.environ) or "none: the cache is off",
    }
    try:
        _load(report)
        _describe(report)
        _check(report)
    except Exception as error:  # whatever is wrong is what the user came to read
        report["problem"] = str(error) or type(error).__name__
    return report


def _package_versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _load(report: dict[str, Any]) -> None:
    """Import the backend by itself, so that its own error is seen, not PyTorch's about it."""
    os.environ[_DISABLED] = "0"
    import torch_tpu
    from torch_tpu import platform

    del torch_tpu
    chosen = platform.current()
    report.update(platform=chosen.name, reason=chosen.reason, plugin=chosen.plugin_path)


def _describe(report: dict[str, Any]) -> None:
    """Open the devices and describe them."""
    from torch_tpu import _C, tpu

    report["mode"] = tpu.eager_mode.name.lower()
    tpu.init()
    report["platform_version"] = _C._platform_version()
    report["api_version"] = ".".join(str(part) for part in _C._api_version())
    report["devices"] = [
        {
            "device": f"tpu:{index}",
            "name": tpu.get_device_name(index),
            "memory_free": tpu.mem_get_info(index)[0],
            "memory_total": tpu.mem_get_info(index)[1],
        }
        for index in range(tpu.device_count())
    ]


def _check(report: dict[str, Any]) -> None:
    """Add two tensors on each device and compare with the CPU."""
    import torch

    left, right = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 0.5)
    for entry in report["devices"]:
        device = entry["device"]
        result = (left.to(device) + right.to(device)).cpu()
        if not torch.equal(result, left + right):
            raise RuntimeError(f"{device} added two tensors and gave a wrong result: {result}")
    report["self_check"] = f"2x3 addition on {len(report['devices'])} device(s): correct"
    report["ok"] = True


def _print_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(report):
        table.add_row(name, escape(value))
    console = Console()
    console.print(table)
    if report["ok"]:
        console.print("\n[green]Everything works.[/green]")
    else:
        console.print(f"\n[red]Problem:[/red] {escape(report['problem'])}")


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = list(report["versions"].items())
    titles = {
        "platform": "platform",
        "reason": "chosen because",
        "plugin": "plugin",
        "platform_version": "plugin version",
        "api_version": "PJRT API",
        "mode": "eager mode",
        "cache_folder": "cache folder",
        "self_check": "self-check",
    }
    rows += [(title, str(report[key])) for key, title in titles.items() if report.get(key)]
    for entry in report.get("devices", []):
        size = f"{entry['memory_total'] / 2**30:.1f} GiB"
        rows.append((entry["device"], f"{entry['name']}, {size}"))
    return rows
