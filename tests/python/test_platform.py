# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Which plugin is chosen, and that none comes from the working directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch_tpu import _loader, platform


def make_pci_device(folder: Path, vendor: str, device: str, pci_class: str) -> None:
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("class", pci_class)):
        (folder / name).write_text(value + "\n")


@pytest.mark.parametrize(
    ("vendor", "device", "pci_class", "found"),
    [
        ("0x1ae0", "0x0063", "0x088000", True),
        ("0x1ae0", "0x00ff", "0x120000", True),
        ("0x1ae0", "0x0042", "0x020000", False),
        ("0x10de", "0x0063", "0x030000", False),
    ],
)
def test_pci_scan(tmp_path: Path, vendor: str, device: str, pci_class: str, found: bool) -> None:
    make_pci_device(tmp_path / "pci" / "0000:00:05.0", vendor, device, pci_class)
    evidence = platform.find_tpu_hardware(str(tmp_path / "pci"), str(tmp_path))
    assert bool(evidence) == found


def test_device_nodes(tmp_path: Path) -> None:
    (tmp_path / "accel").mkdir()
    assert platform.find_tpu_hardware(str(tmp_path / "none"), str(tmp_path)) == ""
    (tmp_path / "accel0").touch()
    assert "accel0" in platform.find_tpu_hardware(str(tmp_path / "none"), str(tmp_path))


def test_auto_without_hardware_takes_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_tpu_hardware", lambda: "")
    chosen = platform.select({"TORUS_CPU_DEVICES": "4"})
    assert (chosen.name, chosen.is_cpu, chosen.cpu_device_count) == ("cpu", True, 4)
    assert os.path.isabs(chosen.plugin_path)


def test_auto_with_hardware_takes_libtpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "find_tpu_hardware", lambda: "a TPU")
    monkeypatch.setattr(platform, "_trusted_folders", lambda: [str(tmp_path)])
    assert "pip install libtpu" in platform.select({}).error
    library = tmp_path / "libtpu" / "libtpu.so"
    library.parent.mkdir()
    library.touch()
    chosen = platform.select({})
    assert (chosen.name, chosen.plugin_path, chosen.is_cpu) == ("tpu", str(library), False)
    assert platform.select({"TPU_LIBRARY_PATH": str(library)}).plugin_path == str(library)
    assert "absolute" in platform.select({"TPU_LIBRARY_PATH": "libtpu.so"}).error


def test_missing_packages_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_tpu_hardware", lambda: "")
    monkeypatch.setattr(platform, "_trusted_folders", list)
    assert "pip install xla-cpu-pjrt" in platform.select({}).error
    assert "jax-cuda12-pjrt" in platform.select({"TORUS_PLATFORM": "cuda"}).error
    assert "TORUS_PLATFORM=cpu" in platform.select({"TORUS_PLATFORM": "tpu"}).error


@pytest.mark.parametrize("count", ["0", "-1", "129", "two", "1.5", "²"])
def test_device_counts_that_are_refused(count: str) -> None:
    chosen = platform.select({"TORUS_PLATFORM": "cpu", "TORUS_CPU_DEVICES": count})
    assert "TORUS_CPU_DEVICES" in chosen.error
    assert chosen.plugin_path == ""


def test_path_of_the_user(tmp_path: Path) -> None:
    plugin = tmp_path / "my_cpu_plugin.so"
    plugin.touch()
    chosen = platform.select({"TORUS_PLATFORM": str(plugin), "TORUS_CPU_DEVICES": "2"})
    assert chosen == platform.Platform(
        "plugin", str(plugin), True, 2, "", "TORUS_PLATFORM names a path"
    )


def test_working_directory_is_not_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted = tmp_path / "xla_plugins" / "xla_cpu_pjrt" / "xla_cpu_pjrt.so"
    planted.parent.mkdir(parents=True)
    planted.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend("")
    assert platform.select({"TORUS_PLATFORM": "cpu"}).plugin_path != str(planted)


def test_version_check() -> None:
    _loader.check_torch_version("2.13.0+cpu", "2.13.1")
    _loader.check_torch_version("2.13.0", "")
    with pytest.raises(ImportError, match=r"2\.13\.0.*2\.14\.1.*pip install torch==2\.13\.0"):
        _loader.check_torch_version("2.14.1", "2.13.0+cpu")
