# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The processes that are compared, as `run.py` sees them."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class Contender:
    """A process that runs cases; started when first asked, and again after it has died.

    Parameters
    ----------
    name : str
        As reports call it.
    command : sequence of str
        What to start.
    environment : mapping of str to str
        Variables added to those of this process.
    timeout : float
        Seconds after which a request is given up and the process killed.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> dict[str, Any] | None:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=HERE,
        )
        return self._read()

    def _read(self) -> dict[str, Any] | None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(self._timeout):
                self.stop()
                return {"error": f"no answer within {self._timeout:.0f} s"}
        line = process.stdout.readline()
        if line:
            return json.loads(line)
        self.stop()
        return {"error": f"the process ended with status {process.returncode}"}

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer; failures are answers with ``error``."""
        if self._process is None:
            ready = self._start()
            if ready is None or "error" in ready:
                return ready or {"error": "cannot be started"}
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            return {"error": "the process is gone"}
        return self._read() or {"error": "no answer"}

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None and process.poll() is not None:
                stream.close()
        process.kill()
        process.wait()


class Floor(Contender):
    """The C loop: it has one case."""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Answer as a worker would."""
        if request.get("case", "add_and_wait") != "add_and_wait":
            return {"skipped": "no such case here"}
        if self._process is None:
            self._start()
        times = [self._time(100) for _ in range(int(request.get("passes", 1)))]
        if None in times:
            return {"error": "the C loop failed"}
        counted = {"seconds": min(t for t in times if t is not None), "units": 100}
        return {"first": counted, "second": counted, "units": 100, **counted}

    def _start(self) -> dict[str, Any] | None:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return None

    def _time(self, count: int) -> float | None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        line = process.stdout.readline()
        return float(line) if line else None


def _worker(python: str, *arguments: str) -> list[str]:
    return [python, str(HERE / "worker.py"), *arguments]


def make_floor(folder: Path, timeout: float) -> Contender | None:
    """Build the C loop against the installed library; None where that is not possible."""
    import torch_tpu
    from torch_tpu import platform

    places = [Path(p) for p in torch_tpu.__path__]
    places += [Path(p) / "torch_tpu" for p in sys.path if p]
    library = next((p / "libtorus.so" for p in places if (p / "libtorus.so").exists()), None)
    include = HERE.parent / "include"
    chosen = platform.current()
    if library is None or chosen.error or not include.is_dir():
        return None
    program = folder / "floor"
    built = subprocess.run(
        ["cc", "-O2", "-std=c17", "-D_GNU_SOURCE", f"-I{include}", str(HERE / "floor.c"),
         str(library.resolve()), f"-Wl,-rpath,{library.resolve().parent}", "-o", str(program)],
        capture_output=True,
        check=False,
    )  # fmt: skip
    if built.returncode != 0:
        return None
    return Floor("C loop", [str(program), chosen.plugin_path], {}, timeout)


def make_contenders(
    folder: Path,
    modes: Sequence[str],
    threads: int,
    peer_prelude: str,
    peer_modes: Sequence[str],
    timeout: float,
) -> list[Contender]:
    """Return those that can run here; torch on the CPU, the reference, comes first.

    ``TORUS_BENCH_PEER_PYTHON`` names the Python of an environment in which another backend for
    device "tpu" runs, ``TORUS_BENCH_JAX_PYTHON`` one that has JAX.
    """
    cache = {"TORUS_CACHE_DIR": str(folder / "cache")}
    own = sys.executable
    made = [Contender("torch CPU", _worker(own, "cpu", f"--threads={threads}"), {}, timeout)]
    for mode in modes:
        command = _worker(own, "torus", f"--mode={mode}")
        made.append(Contender(f"torus {mode}", command, cache, timeout))
    if peer := os.environ.get("TORUS_BENCH_PEER_PYTHON"):
        for mode in peer_modes:
            command = _worker(peer, "prelude", f"--mode={mode}", f"--prelude={peer_prelude}")
            made.append(Contender(f"peer {mode}", command, {}, timeout))
    if jax := os.environ.get("TORUS_BENCH_JAX_PYTHON"):
        environment = {"JAX_PLATFORMS": "cpu"}
        made.append(Contender("JAX", _worker(jax, "jax"), environment, timeout))
    floor = make_floor(folder, timeout)
    return made + ([floor] if floor is not None else [])


_SECOND_PROCESS = """
import time
import torch
import torch._dynamo  # PyTorch imports it, for a second, when the first optimizer is made
import torch.nn.functional as F
from torch import nn
loaded = time.perf_counter()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(32, 64).to("tpu"), torch.randint(0, 10, (32,)).to("tpu")
for _ in range(5):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
loss = loss.item()
done = time.perf_counter()
import json
print(json.dumps({"seconds": done - loaded, "compilations": torch.tpu.metrics()["compilations"]}))
"""


def time_second_process(folder: Path) -> dict[str, Any]:
    """Run one script in two processes that share an empty cache folder.

    Returns
    -------
    dict
        ``compilations`` of each, and ``ratio``: the second's seconds from after the imports to its
        result over the first's.
    """
    environment = {**os.environ, "TORUS_CACHE_DIR": str(folder / "second")}
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _SECOND_PROCESS],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return {"error": done.stderr.strip()[-300:]}
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        time.sleep(0.1)
    return {
        "compilations": [run["compilations"] for run in runs],
        "ratio": runs[1]["seconds"] / runs[0]["seconds"],
    }
