# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Child process: judges the operators whose numbers come on standard input, one a line.

``python -m torus.opinfo.worker '{"dtype": ..., "seconds": ...}'``. For each it prints one line of
JSON: the fields of a `Verdict`, ``seconds``, and ``fallbacks``, the operators that ran on the CPU.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
import warnings
from typing import Any

from torus.opinfo import judge


class _TimeUpError(BaseException):
    """Not an Exception: the code that judges takes those for verdicts."""


def _time_up(*_: Any) -> None:
    raise _TimeUpError


def _judge(op: Any, plan: judge.Plan, first_kind: int, seconds: int) -> judge.Verdict:
    signal.alarm(seconds)
    try:
        if plan.target:
            from torus.opinfo import compiling

            return compiling.judge(op, plan, first_kind)
        return judge.judge(op, plan, first_kind)
    except _TimeUpError:
        return judge.Verdict(judge.op_name(op), "timeout", 0, 1, f"over {seconds} s")
    finally:
        signal.alarm(0)


def main() -> None:
    """Judge until standard input ends."""
    warnings.simplefilter("ignore")
    import torch

    settings = json.loads(sys.argv[1])
    seconds = settings.pop("seconds")
    plan = judge.Plan(**settings)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _time_up)
    ops = judge.entries(plan.dtype)
    for line in sys.stdin:
        index = int(line)
        torch.tpu.reset_metrics()
        start = time.monotonic()
        row = dataclasses.asdict(_judge(ops[index], plan, index, seconds))
        row["seconds"] = round(time.monotonic() - start, 2)
        row["fallbacks"] = sorted(torch.tpu.metrics()["fallbacks"])
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
