# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Runs functions in several processes that form one group, as ``torchrun`` would.

A file of cases holds functions marked with ``@case``. One launch runs them all, in order, in every
rank, and says of each case what went wrong in which rank; starting processes costs more than most
cases. After a case that failed anywhere all ranks make a new default group.
"""

from __future__ import annotations

import datetime
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

Case = Callable[[], None]
CASES: dict[str, Case] = {}
_TIMEOUT = datetime.timedelta(seconds=120)


def case(function: Case) -> Case:
    """Mark a function that every rank runs."""
    CASES[function.__name__] = function
    return function


def names_in(file: Path) -> list[str]:
    """List the cases of a file without importing it."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [
        following.split("(")[0].removeprefix("def ")
        for line, following in itertools.pairwise(lines)
        if line == "@case"
    ]


def environment(**extra: str) -> dict[str, str]:
    """Give the environment of a rank: one device, quiet warnings, one thread."""
    own = dict(os.environ)
    own.update({"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo"})
    own.update(extra)
    return own


def start_ranks(script: list[str], size: int, folder: Path) -> list[subprocess.Popen[str]]:
    """Start ``python *script RANK SIZE FOLDER`` once for each rank."""
    processes = []
    for rank in range(size):
        with open(folder / f"output{rank}.txt", "w", encoding="utf-8") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *script, str(rank), str(size), str(folder)],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size)),
                )
            )
    return processes


def wait_for(processes: list[subprocess.Popen[str]], seconds: float) -> None:
    """Wait for all processes; ends those that are still there when the time is over."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_cases(file: Path, size: int, folder: Path, seconds: float = 500) -> dict[str, str]:
    """Run all cases of a file on `size` ranks.

    Returns
    -------
    dict of str to str
        For each case what went wrong; empty if nothing did.
    """
    processes = start_ranks([__file__, str(file)], size, folder)
    wait_for(processes, seconds)
    problems: dict[str, str] = dict.fromkeys(names_in(file), "")
    for rank in range(size):
        result = folder / f"result{rank}.json"
        done = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        output = (folder / f"output{rank}.txt").read_text(encoding="utf-8")[-3000:]
        for name in problems:
            error = done.get(name, f"did not run; the process printed:\n{output}")
            if error:
                problems[name] += f"--- rank {rank}: {error}\n"
    return problems


def _load(file: str) -> dict[str, Case]:
    sys.modules["harness"] = sys.modules["__main__"]
    spec = importlib.util.spec_from_file_location("cases", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module
    spec.loader.exec_module(module)
    return CASES


def _main(file: str, rank: int, size: int, folder: str) -> None:
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", size)
    results: dict[str, str] = {}

    def join(number: int) -> None:
        own = dist.PrefixStore(f"group{number}", store)
        dist.init_process_group("tpu_dist", store=own, rank=rank, world_size=size, timeout=_TIMEOUT)

    join(0)
    for number, (name, function) in enumerate(_load(file).items(), 1):
        try:
            function()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        store.set(f"{number}/{rank}", "failed" if results[name] else "passed")
        states = [store.get(f"{number}/{other}") for other in range(size)]
        Path(folder, f"result{rank}.json").write_text(json.dumps(results), encoding="utf-8")
        if b"failed" in states:
            dist.destroy_process_group()
            join(number)
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
