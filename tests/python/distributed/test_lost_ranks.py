# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""A rank that is killed, stopped or slow, and a store that is gone, are errors that say so."""

from __future__ import annotations

import time
from pathlib import Path

import harness
import pytest
import torch

_SCRIPT = str(Path(__file__).with_name("lost_rank.py"))


def _outcomes(how: str, survivors: list[int], folder: Path) -> list[str]:
    processes = harness.start_ranks([_SCRIPT, how], 3, folder)
    files = [folder / f"outcome{rank}.txt" for rank in survivors]
    deadline = time.monotonic() + 90
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    for process in processes:
        process.kill()
        process.wait()
    missing = [file.name for file in files if not file.exists()]
    prints = [(folder / f"output{rank}.txt").read_text()[-2000:] for rank in range(3)]
    assert not missing, (missing, prints)
    return [file.read_text(encoding="utf-8") for file in files]


@pytest.mark.parametrize("how", ["kill", "stop", "slow"])
def test_missing_rank_is_named(how, tmp_path):
    for outcome in _outcomes(how, [0, 2], tmp_path):
        seconds, message = outcome.split(" ", 1)
        assert float(seconds) < 4 + 3
        assert message.startswith("all_reduce(Float[3, 4]), collective 5 of group")
        assert "rank 1 had not entered it (last seen in collective" in message
    assert torch.load(tmp_path / "checkpoint.pt")["t"].tolist() == [[27.0] * 4] * 3


def test_lost_store_is_named(tmp_path):
    for outcome in _outcomes("store", [1, 2], tmp_path):
        seconds, message = outcome.split(" ", 1)
        assert float(seconds) < 4 + 3
        assert "all_reduce" in message
        assert "store of the group does not answer" in message
