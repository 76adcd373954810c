# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Child processes that answer questions with JSON, so that a crash costs one answer.

A worker is a program that reads a request a line from standard input and answers each with a line
of JSON; other lines that it prints are ignored.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


class LostError(Exception):
    """A worker gave no answer.

    Attributes
    ----------
    verdict : str
        "timeout" or "crash".
    """

    def __init__(self, verdict: str, note: str) -> None:
        super().__init__(note)
        self.verdict = verdict


class Worker:
    """One child process and the reading of its answers.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    patience : float
        Seconds to wait for an answer.
    environment : mapping of str to str, optional
        Variables to set on top of this process's.
    start : str
        What a line of JSON that is an answer begins with.
    """

    def __init__(
        self,
        command: Sequence[str],
        patience: float,
        environment: Mapping[str, str] | None = None,
        start: str = "{",
    ) -> None:
        self._patience = patience
        self._start = start.encode()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
        self._rest = b""
        self._closed = False
        self.asked = 0

    def ask(self, request: str) -> Row:
        """Return the answer to a request.

        Raises
        ------
        LostError
            If there is none; the process is gone then.
        """
        self.asked += 1
        try:
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
            row = self._answer()
        except BrokenPipeError:
            row = None
        if row is not None:
            return row
        if self._process.poll() is None and not self._closed:
            self.stop()
            raise LostError("timeout", "stuck in native code")
        raise LostError("crash", f"exit status {self._process.wait()}")

    def _answer(self) -> Row | None:
        """Read lines until one is an answer: what runs in the worker may print too."""
        self._closed = False
        stream = self._process.stdout.fileno()
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                if line.startswith(self._start):
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


def run(
    requests: Iterable[str],
    start: Callable[[], Worker],
    on_row: Callable[[Row], None],
    on_lost: Callable[[str, LostError], Row],
    *,
    jobs: int = 1,
    most: int = 200,
) -> None:
    """Have requests answered by workers.

    Parameters
    ----------
    requests : iterable of str
    start : callable
        Starts a worker.
    on_row : callable
        Called with every answer as it comes, from several threads but never at once.
    on_lost : callable
        Makes an answer for a request whose worker was lost.
    jobs : int
        Workers at a time.
    most : int
        A worker is replaced after so many requests: what it compiled stays in its memory.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for each in requests:
        waiting.put(each)
    lock, stopping = threading.Lock(), threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        worker: Worker | None = None
        try:
            while not stopping.is_set():
                request = waiting.get_nowait()
                worker = worker or start()
                lost = False
                try:
                    row = worker.ask(request)
                except LostError as error:
                    row, lost = on_lost(request, error), True
                with lock:
                    on_row(row)
                if lost or worker.asked >= most:
                    worker.stop()
                    worker = None
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            if worker is not None:
                worker.stop()

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
