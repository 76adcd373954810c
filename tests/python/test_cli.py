# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The program ``torus``."""

from __future__ import annotations

import argparse
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import time

import pytest
from torus import cli
from torus.commands import cache


def run_torus(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torus", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_doctor_finds_all_well() -> None:
    result = run_torus("doctor", TORUS_CPU_DEVICES="2", TORUS_PLATFORM="cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "xla_cpu_pjrt.so" in result.stdout.replace("\n", "")
    assert "Everything works." in result.stdout


def test_doctor_as_json() -> None:
    result = run_torus("doctor", "--json", TORUS_CPU_DEVICES="2", TORUS_PLATFORM="cpu")
    report = json.loads(result.stdout)
    assert report["ok"]
    assert [entry["device"] for entry in report["devices"]] == ["tpu:0", "tpu:1"]
    assert report["versions"]["torch"]
    assert report["mode"] in ("debug", "strict", "fused")
    assert "correct" in report["self_check"]


def test_doctor_tells_the_problem() -> None:
    result = run_torus("doctor", "--json", TORUS_PLATFORM="/no/such/plugin.so")
    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert not report["ok"]
    assert "/no/such/plugin.so" in report["problem"]
    table = run_torus("doctor", TORUS_PLATFORM="/no/such/plugin.so")
    assert table.returncode == 1
    assert "Problem:" in table.stdout


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["surgeon"]):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments)
        assert exit_info.value.code == 2
    assert "doctor" in capsys.readouterr().err


# ---- torus cache ----


@pytest.fixture
def programs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Make a cache of three programs, used 1, 2 and 3 hours ago, and files that are none."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("TORUS_CACHE_DIR", str(folder))
    monkeypatch.delenv("TORUS_CACHE", raising=False)
    monkeypatch.delenv("TORUS_CACHE_LIMIT", raising=False)
    for hours, name in ((1, "a" * 32), (2, "b" * 32), (3, "c" * 32)):
        content = struct.pack("=5Q", 0x3153555249544F54, 0xABCDEF, 8, 952, 0) + bytes(960)
        put_file(folder / f"{name}.program", content, hours)
    for name in ("notes.txt", "short.program"):
        put_file(folder / name, b"mine", 100)
    put_file(folder / ".new-aB3xY_", b"half", 100)
    (folder / ("d" * 32 + ".program")).symlink_to(folder / "notes.txt")
    return folder


def put_file(path: pathlib.Path, content: bytes, hours: int) -> None:
    path.write_bytes(content)
    used = time.time() - hours * 3600
    os.utime(path, (used, used))


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name[:9] for path in folder.iterdir())


OTHERS = ["ddddddddd", "notes.txt", "short.pro"]


def test_cache_list(programs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "list"]) == 0
    text = capsys.readouterr().out
    positions = [text.index(letter * 12) for letter in "abc"]
    assert positions == sorted(positions)
    assert "3 programs, 2.9 KiB of 4.0 GiB" in text
    assert cli.main(["cache", "list", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["count"], report["bytes"], report["folder"]) == (3, 3000, str(programs))
    assert [entry["name"][0] for entry in report["entries"]] == ["a", "b", "c"]
    assert report["entries"][0]["identity"] == "0000000000abcdef"
    assert report["entries"][0]["size_bytes"] == 1000


def test_cache_size(programs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "size", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "folder": str(programs),
        "count": 3,
        "bytes": 3000,
        "limit_bytes": 4 << 30,
    }


def test_cache_prune(programs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "prune"]) == 0
    assert names(programs) == ["aaaaaaaaa", "bbbbbbbbb", "ccccccccc", *OTHERS]
    assert cli.main(["cache", "prune", "--limit", "2KiB", "--json"]) == 0
    assert names(programs) == ["aaaaaaaaa", "bbbbbbbbb", *OTHERS]
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["removed"], report["freed_bytes"], report["count"]) == (1, 1000, 2)
    assert cli.main(["cache", "prune", "--limit", "0"]) == 0
    assert names(programs) == OTHERS


def test_cache_clear(programs: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert cli.main(["cache", "clear"]) == 2
    assert len(names(programs)) == 7
    assert cli.main(["cache", "clear", "--yes"]) == 0
    assert names(programs) == OTHERS
    assert cli.main(["cache", "clear"]) == 0


def test_cache_without_a_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORUS_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.delenv("TORUS_CACHE", raising=False)
    assert cli.main(["cache", "list"]) == 0
    assert "0 programs" in capsys.readouterr().out
    monkeypatch.setenv("TORUS_CACHE", "0")
    assert cli.main(["cache", "size"]) == 2
    assert "TORUS_CACHE=0" in capsys.readouterr().err


def test_cache_finds_what_the_engine_wrote(tmp_path: pathlib.Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "TORUS_PLATFORM": "cpu"}
    variables = {name: text for name, text in os.environ.items() if name != "TORUS_CACHE_DIR"}
    code = "import torch; torch.ones(3, 3, device='tpu').sin().cpu()"
    subprocess.run([sys.executable, "-c", code], env={**variables, **env}, check=True, timeout=300)
    result = subprocess.run(
        [sys.executable, "-m", "torus", "cache", "list", "--json"],
        env={**variables, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    report = json.loads(result.stdout)
    assert report["count"] >= 1
    assert all(entry["identity"] for entry in report["entries"])


def test_sizes_in_words() -> None:
    for text, size in (
        ("0", 0),
        ("512", 512),
        ("2KiB", 2048),
        ("1.5 GB", 3 << 29),
        ("3m", 3 << 20),
    ):
        assert cache.parse_size(text) == size
    for text in ("", "GiB", "-1", "1 parsec"):
        with pytest.raises(argparse.ArgumentTypeError):
            cache.parse_size(text)
    assert [cache.format_size(n) for n in (5, 2048, 3 << 29)] == ["5 B", "2.0 KiB", "1.5 GiB"]
