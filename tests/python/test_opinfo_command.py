# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The command ``torus opinfo``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from torus.opinfo import judge, pool, report


def run_opinfo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torus", "opinfo", *arguments],
        env={**os.environ, "TORUS_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_verdicts_journal_and_report(tmp_path) -> None:
    journal, page = tmp_path / "verdicts.jsonl", tmp_path / "opinfo.md"
    common = ("--only", "neg,tensor_split", "--samples", "2", "--resume", str(journal))
    first = run_opinfo(*common, "--backward", "--json")
    assert first.returncode == 0, first.stdout + first.stderr
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert [(row["op"], row["verdict"]) for row in rows] == [
        ("neg", "pass"),
        ("tensor_split", "pass"),
    ]
    assert all(row["backward"] and row["passed"] == row["tried"] > 0 for row in rows)

    # What the file holds is not run again, even with half a line at its end.
    with journal.open("a") as file:
        file.write('{"op": "ne')
    kept = journal.read_text()
    again = run_opinfo(*common, "--backward", "--report", str(page))
    assert again.returncode == 0, again.stdout + again.stderr
    assert journal.read_text() == kept
    assert "float32, gradient: 2 of 2 pass" in again.stdout
    assert "| float32, gradient | 3 | 2 | 100.0% |" in page.read_text()

    more = run_opinfo(*common, "--dtype", "int64")
    assert more.returncode == 0, more.stdout + more.stderr
    assert len(journal.read_text().splitlines()) == 5
    assert json.loads(journal.read_text().splitlines()[-1])["dtype"] == "int64"


def test_distributed_tensors() -> None:
    """Sums over cut dimensions, matrix products and pieces of what lies on two processes."""
    names = "add,sum,softmax,matmul,split,nn.functional.layer_norm,nn.functional.linear"
    result = run_opinfo("--dtensor", "2", "--only", names, "--samples", "2", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["verdict"] for row in rows} == {"pass"}
    assert {row["op"].split(".")[0] for row in rows} >= {"add", "sum", "softmax", "matmul", "split"}
    assert sum(row["tried"] for row in rows) >= 50


def test_a_rank_that_is_gone_costs_one_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, sys\n"
        "from torus.opinfo import sharded, worker\n"
        "judged = sharded.judge\n"
        "def judge(op, plan, ranks):\n"
        "    if op.name == 'add' and ranks.rank == 1: sys.exit(3)\n"
        "    return judged(op, plan, ranks)\n"
        "sharded.judge = judge\n"
        "worker.main()\n"
    )
    monkeypatch.setattr(pool, "_WORKER", [sys.executable, str(script)])
    ops = {op.name: index for index, op in enumerate(judge.entries("float32"))}
    rows: list[pool.Row] = []
    operators = [(ops[name], name) for name in ("add", "neg")]
    pool.run(judge.Plan(samples=1, ranks=2), operators, rows.append, seconds=20)
    assert [row["verdict"] for row in rows] == ["crash", "pass"]


def test_wrong_usage() -> None:
    for arguments, text in (("--only", "nonesuch"), "nonesuch"), (("--dtype", "float3"), "float3"):
        result = run_opinfo(*arguments)
        assert result.returncode == 2
        assert text in result.stderr
        assert "Traceback" not in result.stderr


def test_a_crash_costs_one_verdict(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    if line == '1\\n': os._exit(9)\n"
        "    print('something that an operator prints')\n"
        "    print(json.dumps({'op': line.strip(), 'verdict': 'pass'}), flush=True)\n"
    )
    monkeypatch.setattr(pool, "_WORKER", [sys.executable, str(script)])
    rows: list[pool.Row] = []
    pool.run(judge.Plan(), [(0, "a"), (1, "b"), (2, "c")], rows.append)
    assert [row["verdict"] for row in rows] == ["pass", "crash", "pass"]
    assert "9" in rows[1]["note"]


def test_report_names_what_remains() -> None:
    plan = {"dtype": "bool", "backward": False, "views": True, "fallback": "silent"}
    rows = [
        {"op": "a", "verdict": "pass", "passed": 2, "tried": 2, "note": "", **plan},
        {"op": "b", "verdict": "wrong", "passed": 1, "tried": 2, "note": "x | y", **plan},
        {"op": "c", "verdict": "skipped", "passed": 0, "tried": 0, "note": "random", **plan},
    ]
    page = report.render(rows, "versions")
    assert "| bool, views, CPU fallback allowed | 4 | 1 | 1 | 1 | 50.0% |" in page
    assert "| `b` | bool, views, CPU fallback allowed | wrong | 1/2 | x \\| y |" in page
    assert "`c`" not in page
