# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The program ``torus``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from torus import cli


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
