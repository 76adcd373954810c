# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The process in which a TPU compiler runs.

libtpu is a large library that takes over its process, and some programs make it abort. So it is
loaded by a small program of its own, ``torus-compile``, kept alive for the next compilation; when
it dies, that is an exception here and the next request starts another one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import IO

from torch_tpu import platform
from torch_tpu.aot.errors import LibtpuMissing

__all__ = ["Fields", "Worker", "WorkerDied", "shared"]

Fields = list[tuple[str, bytes]]

# Without these libtpu asks the metadata server of a cloud machine who it is, refuses to run beside
# another process that has loaded it, and leaves logs in /tmp.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}
_LOG_TAIL = 4000


class WorkerDied(RuntimeError):  # noqa: N818
    """The compiling process ended in the middle of a request; the text is what it printed last."""


class Worker:
    """One compiling process, started at its first request.

    Parameters
    ----------
    plugin_path : str
        Absolute path of the compiler's library.
    """

    def __init__(self, plugin_path: str) -> None:
        self.plugin_path = plugin_path
        self._lock = threading.Lock()  # one request at a time
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()
        self._rest = b""  # of the answers, what has been read but not yet used

    def request(self, lines: Iterable[tuple[str, str]], timeout: float | None = None) -> Fields:
        """Send a request and return the fields of the answer.

        Parameters
        ----------
        lines : iterable of (str, str)
            Keys and values, as ``worker/compile.c`` lists them.
        timeout : float, optional
            Seconds after which the process is killed.

        Returns
        -------
        list of (str, bytes)
            In the order of the answer; the first is ``status``.

        Raises
        ------
        WorkerDied
            If the process ends before it has answered.
        TimeoutError
            If it takes longer than `timeout`.
        """
        text = "".join(f"{key} {value}\n" for key, value in lines) + "\n"
        with self._lock:
            process = self._start()
            deadline = None if timeout is None else time.monotonic() + timeout
            try:
                assert process.stdin is not None
                process.stdin.write(text.encode())
                process.stdin.flush()
                return self._read_answer(process, deadline)
            except (BrokenPipeError, EOFError):
                raise WorkerDied(self._bury()) from None
            except BaseException:  # a half-read answer would be taken for the next one
                self._bury()
                raise

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._bury()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # after a fork: the pipes belong to the parent
            self._process, self._owner, self._rest = None, os.getpid(), b""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._bury()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [program_path(), self.plugin_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,  # Ctrl-C is answered here, not by the compiler
        )
        return self._process

    def _read_answer(self, process: subprocess.Popen[bytes], deadline: float | None) -> Fields:
        fields: Fields = []
        with selectors.DefaultSelector() as selector:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                header = self._take(selector, process, deadline, None)
                if header == b"end":
                    return fields
                name, size = header.split(b" ")
                value = self._take(selector, process, deadline, int(size) + 1)[:-1]
                fields.append((name.decode(), value))

    def _take(
        self,
        selector: selectors.BaseSelector,
        process: subprocess.Popen[bytes],
        deadline: float | None,
        size: int | None,
    ) -> bytes:
        """Take `size` bytes of the answer, or a line without its end."""
        while True:
            found = self._rest.find(b"\n") if size is None else size
            if 0 <= found <= len(self._rest) - (size is None):
                taken, self._rest = self._rest[:found], self._rest[found + (size is None) :]
                return taken
            left = None if deadline is None else deadline - time.monotonic()
            if not selector.select(None if left is None else max(left, 0)):
                raise TimeoutError("the compiler took longer than it was given")
            assert process.stdout is not None
            more = os.read(process.stdout.fileno(), 1 << 20)
            if not more:
                raise EOFError
            self._rest += more

    def _bury(self) -> str:
        """End the process and return the end of what it printed."""
        process, log = self._process, self._log
        self._process, self._log, self._rest = None, None, b""
        tail = ""
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # the other end is gone
                        pipe.close()
        if log is not None:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
            tail = log.read().decode(errors="replace")
            log.close()
        return tail


def program_path() -> str:
    """Return where ``torus-compile`` is.

    Raises
    ------
    FileNotFoundError
        If the native part was built without it.
    """
    spec = importlib.util.find_spec("torch_tpu._C")
    origin = spec.origin if spec and spec.origin else __file__
    folders = [os.path.dirname(origin), os.path.dirname(os.path.realpath(origin))]
    for folder in folders:
        path = os.path.join(folder, "torus-compile")
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(
        f"The program torus-compile is not in {folders[0]}: reinstall torus-tpu (from a checkout: "
        "make build)."
    )


_shared: dict[str, Worker] = {}
_shared_lock = threading.Lock()


def shared() -> Worker:
    """Return this process's worker for the installed libtpu.

    Raises
    ------
    LibtpuMissing
        If there is no libtpu.
    """
    path, error = platform.find_libtpu(os.environ)
    if error:
        raise LibtpuMissing(error)
    with _shared_lock:
        if path not in _shared:
            _shared[path] = Worker(path)
            atexit.register(_shared[path].close)
        return _shared[path]
