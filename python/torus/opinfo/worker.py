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
from typing import TYPE_CHECKING, Any

from torus.opinfo import judge

if TYPE_CHECKING:
    from torus.opinfo.ranks import Ranks


class _TimeUpError(BaseException):
    """Not an Exception: the code that judges takes those for verdicts."""


def _time_up(*_: Any) -> None:
    raise _TimeUpError


def _judge(
    op: Any, plan: judge.Plan, first_kind: int, seconds: int, ranks: Ranks | None
) -> judge.Verdict:
    signal.alarm(seconds)
    try:
        if ranks is not None:
            from torus.opinfo import sharded

            return sharded.judge(op, plan, ranks)
        if plan.target:
            from torus.opinfo import compiling

            return compiling.judge(op, plan, first_kind)
        return judge.judge(op, plan, first_kind)
    except _TimeUpError:
        return judge.Verdict(judge.op_name(op), "timeout", 0, 1, f"over {seconds} s")
    finally:
        signal.alarm(0)


def _answer(
    ops: list[Any], index: int, plan: judge.Plan, seconds: int, ranks: Ranks | None = None
) -> dict[str, Any]:
    import torch

    torch.tpu.reset_metrics()
    start = time.monotonic()
    row = dataclasses.asdict(_judge(ops[index], plan, index, seconds, ranks))
    row["seconds"] = round(time.monotonic() - start, 2)
    row["fallbacks"] = sorted(torch.tpu.metrics()["fallbacks"])
    return row


def _serve_as_group(plan: judge.Plan, settings: dict[str, Any], place: dict[str, int]) -> None:
    """Judge in step with the other ranks, until the leader's standard input ends."""
    from torus.opinfo import ranks as group
    from torus.opinfo import sharded

    seconds = settings["seconds"]
    if place:
        ranks = group.follow(place["rank"], plan.ranks, place["port"], seconds)
    else:
        ranks = group.lead(plan.ranks, settings)
    sharded.prepare()
    ops = judge.entries(plan.dtype)
    while request := ranks.next_request(None if place else sys.stdin.readline().strip()):
        rows = ranks.conclude(_answer(ops, int(request), plan, seconds, ranks))
        if any(row["verdict"] == "timeout" for row in rows):
            ranks.renew()
        if not place:
            print(json.dumps(sharded.worst(rows)), flush=True)


def main() -> None:
    """Judge until standard input ends."""
    warnings.simplefilter("ignore")
    import torch

    settings = json.loads(sys.argv[1])
    place = {name: settings.pop(name) for name in ("rank", "port") if name in settings}
    plan = judge.Plan(**{name: value for name, value in settings.items() if name != "seconds"})
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _time_up)
    if plan.ranks:
        _serve_as_group(plan, settings, place)
        return
    ops = judge.entries(plan.dtype)
    for line in sys.stdin:
        print(json.dumps(_answer(ops, int(line), plan, settings["seconds"])), flush=True)


if __name__ == "__main__":
    main()
