# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Helpers that the test files share."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

# Nothing here needs the network, and a library that tries it should fail rather than wait.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]

_OWN_VARIABLES = ("TORUS_", "TORCH_TPU_", "TPU_", "ACCELERATE_", "TORCH_DEVICE_BACKEND")
_KEPT = ("TORUS_CACHE_DIR",)


@pytest.fixture(params=["debug", "strict", "fused"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test in each eager mode; the mode holds in every thread of the process."""
    previous = torch.tpu.eager_mode
    torch.tpu.set_eager_mode(request.param)
    yield request.param
    torch.tpu.synchronize()
    torch.tpu.set_eager_mode(previous)


@pytest.fixture
def run_python(tmp_path) -> RunPython:
    """Return a function that runs code in a fresh interpreter.

    ``run_python(code, env=None, check=True, timeout=300)`` starts from this environment without
    the variables that configure the device, adds `env` to it, and works in an empty folder. With
    `check`, a failing program fails the test and shows its output.
    """

    def run(
        code: str, env: Mapping[str, str] | None = None, check: bool = True, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT or not name.startswith(_OWN_VARIABLES)
        }
        environment.update(env or {})
        result = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and result.returncode != 0:
            pytest.fail(
                f"exit status {result.returncode}\n--- stdout\n{result.stdout}"
                f"\n--- stderr\n{result.stderr}"
            )
        return result

    return run


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Any]], Any]:
    """Return a function that computes something once for all processes of a test run.

    ``once(name, make)`` returns what ``make()``, called in the process that came first, returned;
    it must be fit for JSON. The others wait.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def compute(name: str, make: Callable[[], Any]) -> Any:
        kept = folder / f"{name}.json"
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(make()), "utf-8")
        return json.loads(kept.read_text("utf-8"))

    return compute
