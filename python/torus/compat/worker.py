# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Child process that runs architectures, each in a process of its own.

``python -m torus.compat.worker SETTINGS``, where the settings are those of `Settings` as JSON.
Requests come on standard input, one a line, as JSON: ``name``, and the ``stages`` to run, among
"forward", "generate", "train", "denoise" and "compile for TOPOLOGY". For each it prints a line of
JSON. PyTorch and Transformers are imported once, and the process is copied for each request: a
crash or a stage that takes too long is its verdict.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import pathlib
import re
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from typing import Any

Row = dict[str, Any]

_MOST_BYTES = 12 << 30
_MODULES = {
    "transformers": (
        "transformers.modeling_utils",
        "transformers.generation",
        "transformers.models.auto.modeling_auto",
    ),
    "diffusers": ("diffusers", "diffusers.models"),
}
_FATAL = re.compile(r"^F\d{4} |Check failed|LLVM ERROR|terminate called|Fatal")
_BUILD = "build"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
# A stage may take so many times its limit on the clock.
_PATIENCE = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes
    ----------
    mode : str
        "eager" (windows of operators), "strict" (one operator at a time), or "compile".
    seconds : float
        Limit for each stage, in processor time; in a busy machine it may take ten times as long.
    prelude : str
        File of Python to run before the device is used; empty for none.
    attention : str
        Implementation of attention in Transformers' models; empty for the library's choice.
    """

    mode: str = "eager"
    seconds: float = 60.0
    prelude: str = ""
    attention: str = ""


def _run(request: Row, settings: Settings, out: int) -> None:
    """Run the stages of one architecture and write what comes out as it comes."""

    def tell(row: Row) -> None:
        os.write(out, (json.dumps(row) + "\n").encode())

    from torus.compat import cases, stages

    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    tell({"begin": _BUILD})
    try:
        case = cases.load(request["name"], settings.attention)
    except Exception as error:  # whatever a constructor raises
        verdict = "no model" if type(error).__name__ == "NoModelError" else "cpu"
        tell({"end": _BUILD, "verdict": verdict, "note": stages.as_error(error)})
        return
    tell({"end": _BUILD, "verdict": "match", **case.describe()})
    for number, stage in enumerate(request["stages"]):
        tell({"begin": stage})
        if number == 0:
            _prepare_device(settings)
        tell({"end": stage, **_run_stage(case, stage, settings)})


def _run_stage(case: Any, stage: str, settings: Settings) -> Row:
    from torus.compat import stages

    if not case.has(stage):
        return {"verdict": "none"}
    try:
        return case.run(stage, settings.mode == "compile").row()
    except Exception as error:  # whatever a backend may raise is its verdict
        return stages.failed(error).row()


def _prepare_device(settings: Settings) -> None:
    import torch

    if settings.prelude:
        source = pathlib.Path(settings.prelude).read_text("utf-8")
        exec(compile(source, settings.prelude, "exec"), {"__name__": "__prelude__"})
        return
    torch.tpu.set_eager_mode("strict" if settings.mode == "strict" else "fused")
    torch.tpu.set_fallback("silent")


class _Run:
    """The copied process of one architecture, seen from outside."""

    def __init__(self, request: Row, settings: Settings) -> None:
        self._seconds = settings.seconds
        self._row: Row = {"name": request["name"], "mode": settings.mode, "stages": {}}
        self._stage = _BUILD
        self._rest = b""
        self._reader, writer = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = os.fork()
        if self._child == 0:
            os.close(self._reader)
            _be_the_child(request, settings, writer, self._errors.fileno())
        os.close(writer)

    def row(self) -> Row:
        """Read until the process ends or takes too long."""
        start = time.monotonic()
        late = self._read()
        if late:
            os.kill(self._child, signal.SIGKILL)
        _, status = os.waitpid(self._child, 0)
        os.close(self._reader)
        if late:
            self._lose("timeout", f"over {self._seconds:.0f} s")
        elif status:
            self._lose("crash", f"{_describe(status)}{self._last_words()}")
        self._errors.close()
        self._row["seconds"] = round(time.monotonic() - start, 1)
        return self._row

    def _read(self) -> bool:
        """Return whether a stage took too long."""
        used, start = _processor_seconds(self._child), time.monotonic()
        while True:
            late = time.monotonic() - start > _PATIENCE * self._seconds
            if late or _processor_seconds(self._child) - used > self._seconds:
                return True
            if not select.select([self._reader], [], [], 1.0)[0]:
                continue
            block = os.read(self._reader, 65536)
            if not block:
                return False
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            used, start = _processor_seconds(self._child), time.monotonic()

    def _take(self, message: Row) -> None:
        if "begin" in message:
            self._stage = message["begin"]
            return
        stage = message.pop("end")
        if stage == _BUILD:
            self._row |= message
        else:
            self._row["stages"][stage] = message

    def _last_words(self) -> str:
        """Return the line of standard error that says why the process ended, or the last."""
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        fatal = [line for line in lines if _FATAL.search(line)]
        return "".join(f": {line[:300]}" for line in (fatal or lines)[-1:])

    def _lose(self, verdict: str, note: str) -> None:
        from torus.compat import stages

        lost = {"verdict": verdict, "note": note}
        if stages.is_of_plugin(note):
            lost["verdict"] = "plugin"
        if self._stage == _BUILD:
            self._row |= {"verdict": "cpu", "note": f"{verdict} while building: {note}"}
        else:
            self._row["stages"][self._stage] = lost


def _processor_seconds(process: int) -> float:
    """Return the processor time of a child process, of all its threads."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text("ascii")
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _be_the_child(request: Row, settings: Settings, writer: int, errors: int) -> None:
    """Never returns. Of what the architecture prints, only errors are kept."""
    code = 1
    try:
        # Not to outlive the process that watches the time.
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream, target in enumerate((nowhere, nowhere, errors)):
            os.dup2(target, stream)
        _run(request, settings, writer)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    """Run architectures until standard input ends."""
    settings = Settings(**json.loads(sys.argv[1]))
    warnings.simplefilter("ignore")
    for name, value in (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_VERBOSITY", "error")):
        os.environ.setdefault(name, value)
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        # Before the process is copied, so that it is done once.
        for module in _MODULES[request["name"].partition("/")[0]]:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        print(json.dumps(_Run(request, settings).row()), flush=True)


if __name__ == "__main__":
    main()
