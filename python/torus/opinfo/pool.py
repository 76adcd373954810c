# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Spread operators over child processes, so that a crash costs one verdict."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from torus.opinfo.judge import Plan, Verdict

Row = dict[str, Any]

_WORKER = [sys.executable, "-m", "torus.opinfo.worker"]
# Compiled programs stay in a child's memory: it is replaced after this many operators.
_OPERATORS_PER_CHILD = 200
# What a child may take beyond the limit that it watches itself, stuck in native code; generous,
# because the first answer includes the start of the interpreter.
_GRACE_SECONDS = 120


class _Child:
    """One worker process and the reading of its answers."""

    def __init__(self, plan: Plan, seconds: int, fallback: str) -> None:
        settings = json.dumps({**dataclasses.asdict(plan), "seconds": seconds})
        self._patience = seconds + _GRACE_SECONDS
        self._process = subprocess.Popen(
            [*_WORKER, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TORUS_FALLBACK": fallback},
        )
        self._rest = b""
        self.judged = 0

    def judge(self, index: int, name: str) -> Row:
        """Return the verdict about an operator; after "crash" or "timeout" the child is gone."""
        self.judged += 1
        try:
            self._process.stdin.write(f"{index}\n".encode())
            self._process.stdin.flush()
            row = self._answer()
        except BrokenPipeError:
            row = None
        if row is not None:
            return row
        if self._process.poll() is None and not self._closed:
            self.stop()
            return _row(Verdict(name, "timeout", 0, 1, "stuck in native code"))
        return _row(Verdict(name, "crash", 0, 1, f"exit status {self._process.wait()}"))

    def _answer(self) -> Row | None:
        """Read lines until one is a verdict: operators may print too."""
        self._closed = False
        stream = self._process.stdout.fileno()
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                if line.startswith(b'{"op"'):
                    return json.loads(line)
                continue
            if not select.select([stream], [], [], self._patience)[0]:
                return None
            block = os.read(stream, 65536)
            if not block:
                self._closed = True
                return None
            self._rest += block

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def _row(verdict: Verdict) -> Row:
    return {**dataclasses.asdict(verdict), "seconds": 0.0, "fallbacks": []}


def run(
    plan: Plan,
    operators: Iterable[tuple[int, str]],
    on_row: Callable[[Row], None],
    *,
    jobs: int = 1,
    seconds: int = 60,
    fallback: str = "error",
) -> None:
    """Judge operators in child processes.

    Parameters
    ----------
    plan : Plan
    operators : iterable of (int, str)
        Position in ``judge.entries(plan.dtype)``, and name.
    on_row : callable
        Called with every verdict as it comes, from several threads but never at once.
    jobs : int
        Processes at a time.
    seconds : int
        Limit for one operator.
    fallback : str
        "error" or "silent": what happens to operators that have no lowering.
    """
    waiting: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for each in operators:
        waiting.put(each)
    lock, stopping = threading.Lock(), threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        child: _Child | None = None
        try:
            while not stopping.is_set():
                index, name = waiting.get_nowait()
                child = child or _Child(plan, seconds, fallback)
                row = child.judge(index, name)
                with lock:
                    on_row(row)
                lost = row["verdict"] in ("crash", "timeout")
                if lost or child.judged >= _OPERATORS_PER_CHILD:
                    child.stop()
                    child = None
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            if child is not None:
                child.stop()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stopping.set()
    if failures:
        raise failures[0]
