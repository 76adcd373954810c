# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The command ``torus migrate`` on files and folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from torus import cli

OLD = "import torch\nimport torch_xla.core.xla_model as xm\n\nd = xm.xla_device()\n"
NEW = 'import torch\n\nd = torch.device("tpu")\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project with a file to migrate, one with something left to do, and others."""
    (tmp_path / "package").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "package" / "train.py").write_text(OLD)
    (tmp_path / "package" / "hard.py").write_text(
        "import torch_xla.core.xla_model as xm\nxm.send(x, 0)\n"
    )
    (tmp_path / "package" / "plain.py").write_text("print('nothing to do')\n")
    (tmp_path / ".venv" / "library.py").write_text(OLD)
    (tmp_path / "broken.py").write_text("import torch_xla\ndef f(:\n")
    (tmp_path / "requirements.txt").write_text("numpy\ntorch_xla[tpu]==2.5\n")
    (tmp_path / "run.sh").write_text("export PJRT_DEVICE=TPU\npython package/train.py\n")
    (tmp_path / "book.ipynb").write_text('{"source": ["import torch_xla\\n"]}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_diff_is_a_patch_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["migrate", "package/train.py"]) == 0
    output = capsys.readouterr()
    assert '+d = torch.device("tpu")' in output.out
    assert "1 file would change, 0 left to do" in output.err
    assert (project / "package" / "train.py").read_text() == OLD
    (project / "a.patch").write_text(output.out)
    subprocess.run(["patch", "-p1", "-i", "a.patch"], check=True, capture_output=True)
    assert (project / "package" / "train.py").read_text() == NEW


def test_what_is_left_is_listed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["migrate", "."]) == 1
    listed = capsys.readouterr().err
    for place, word in (
        ("./package/hard.py:2:1: xm.send", "torch.distributed.send"),
        ("./broken.py:2:1: syntax error", "libcst"),
        ("./requirements.txt:2:1: torch_xla", "torus-tpu"),
        ("./run.sh:1:8: PJRT_DEVICE", "TORUS_PLATFORM"),
        ("./book.ipynb:1:1: notebook", "nbconvert"),
    ):
        lines = [line for line in listed.splitlines() if place in line]
        assert len(lines) == 1, listed
        assert word in lines[0]
    assert ".venv" not in listed


def test_write_and_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = project / "package" / "train.py"
    program.chmod(0o755)
    assert cli.main(["migrate", "--write", "--json", "."]) == 1
    report = json.loads(capsys.readouterr().out)
    assert program.read_text() == NEW
    assert program.stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir("package")) == ["hard.py", "plain.py", "train.py"]
    by_path = {file["path"]: file for file in report["files"]}
    assert by_path["./package/train.py"]["written"]
    assert by_path["./package/train.py"]["complete"]
    assert not by_path["./package/hard.py"]["complete"]
    assert "./package/plain.py" not in by_path
    assert {"path": "./package/hard.py", "line": 2, "column": 1, "name": "xm.send"}.items() <= next(
        row for row in report["todo"] if row["name"] == "xm.send"
    ).items()
    # A second time there is nothing to write.
    assert cli.main(["migrate", "--write", "--json", "."]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not any(file["changed"] for file in report["files"])


def test_line_ends_and_encodings_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    windows, latin, mark = (tmp_path / f"{name}.py" for name in ("windows", "latin", "mark"))
    windows.write_bytes(OLD.replace("\n", "\r\n").encode())
    latin.write_bytes(f"# -*- coding: latin-1 -*-\n# caf\xe9\n{OLD}".encode("latin-1"))
    mark.write_bytes(b"\xef\xbb\xbf" + OLD.encode())
    assert cli.main(["migrate", "--write", str(tmp_path)]) == 0
    assert windows.read_bytes() == NEW.replace("\n", "\r\n").encode()
    assert latin.read_bytes() == f"# -*- coding: latin-1 -*-\n# caf\xe9\n{NEW}".encode("latin-1")
    assert mark.read_bytes() == b"\xef\xbb\xbf" + NEW.encode()


def test_unreadable_files_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "noise.py").write_bytes(b"# \xff\xfe torch_xla\n")
    assert cli.main(["migrate", str(tmp_path)]) == 1
    assert "noise.py:1:1: unreadable" in capsys.readouterr().err


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["migrate", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_colours(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["migrate", "--color", "always", "package/train.py"]) == 0
    assert "\x1b[32m+d = torch.device" in capsys.readouterr().out
    assert cli.main(["migrate", "--color", "never", "package/train.py"]) == 0
    assert "\x1b[" not in capsys.readouterr().out


def test_without_libcst(tmp_path: Path) -> None:
    code = "import sys; sys.modules['libcst'] = None; from torus import cli; "
    result = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(cli.main(['migrate', '.']))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 2
    assert "pip install 'torus-tpu[migrate]'" in result.stderr
