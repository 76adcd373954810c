# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""One contender of the benchmarks: a process that builds cases and times rounds on request.

Requests and answers are lines of JSON. It needs only the standard library and the contender's own
packages, for it also runs in environments in which Torus is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


class Backend:
    """What the cases ask of a contender.

    Attributes
    ----------
    device : str
        Where tensors go.
    """

    device = "cpu"

    def sync(self) -> None:
        """Wait for the device."""

    def counters(self) -> dict[str, int]:
        """Return ``compilations`` and ``launches`` so far, as far as they are known."""
        return {}

    def trainer(self, model: Any, kind: str, data: tuple[Any, Any], loss: Any) -> Any:
        """Return a function that runs one training step as one program, or None."""
        del model, kind, data, loss


class TorchCpu(Backend):
    """PyTorch on the CPU, operator by operator."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)


class Torus(Backend):
    """The device of this project, in one eager mode."""

    device = "tpu"

    def __init__(self, mode: str) -> None:
        import torch

        self._torch = torch
        torch.tpu.set_eager_mode(mode)

    def sync(self) -> None:
        self._torch.tpu.synchronize()

    def counters(self) -> dict[str, int]:
        counted = self._torch.tpu.metrics()
        return {
            "compilations": counted["compilations"] + counted["disk_hits"],
            "launches": counted["launches"],
        }

    def trainer(self, model: Any, kind: str, data: tuple[Any, Any], loss: Any) -> Any:
        from torch_tpu.tpu import optimizers

        made = optimizers.Sgd(lr=0.05) if kind == "SGD" else optimizers.AdamW(lr=1e-3)
        trainer = optimizers.SingleTraceTrainer(model, made, loss_fn=loss)
        return lambda: trainer.step(*data)


class Prelude(Backend):
    """A device loaded by a Python file, which may define ``set_mode(name)``, ``sync()``,
    ``compilations()`` and ``make_step(model, kind, x, y, loss)``."""  # noqa: D205, D209

    def __init__(self, path: str, device: str, mode: str) -> None:
        import torch

        self.device = device
        self._torch = torch
        self._names: dict[str, Any] = {"__name__": "prelude", "torch": torch, "device": device}
        if path:
            with open(path, encoding="utf-8") as file:
                exec(compile(file.read(), path, "exec"), self._names)
        if mode and "set_mode" in self._names:
            self._names["set_mode"](mode)
        elif mode:
            torch.tpu.set_eager_mode(getattr(torch.tpu.EagerMode, mode.upper()))

    def sync(self) -> None:
        own = self._names.get("sync")
        (own or self._torch.accelerator.synchronize)()

    def counters(self) -> dict[str, int]:
        own = self._names.get("compilations")
        if own is not None:
            return {"compilations": int(own())}
        try:
            return {"compilations": int(self._torch.tpu._get_cache_stats().num_compilations)}
        except AttributeError:
            return {}

    def trainer(self, model: Any, kind: str, data: tuple[Any, Any], loss: Any) -> Any:
        make = self._names.get("make_step")
        return make(model, kind, *data, loss) if make is not None else None


class Jax(Backend):
    """JAX on the CPU."""

    def __init__(self) -> None:
        import jax

        self._compilations = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, *_: Any, **__: Any) -> None:
        self._compilations += event == "/jax/core/compile/backend_compile_duration"

    def counters(self) -> dict[str, int]:
        return {"compilations": self._compilations}


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after}


class Session:
    """The case at hand."""

    def __init__(self, backend: Backend, cases: dict[str, Any]) -> None:
        self._backend = backend
        self._cases = cases
        self._run: Callable[[], object] = lambda: None
        self._units = 1

    def _pass(self) -> tuple[float, dict[str, int]]:
        before = self._backend.counters()
        begin = time.perf_counter()
        self._run()
        self._backend.sync()
        seconds = time.perf_counter() - begin
        return seconds / self._units, _difference(self._backend.counters(), before)

    def prepare(self, case: str) -> dict[str, Any]:
        if case not in self._cases:
            return {"skipped": "no such case here"}
        built = self._cases[case](self._backend)
        if built is None:
            return {"skipped": "not possible here"}
        self._run, self._units = built
        first, counted = self._pass()
        second, counted_again = self._pass()
        return {
            "first": {"seconds": first, **counted},
            "second": {"seconds": second, **counted_again},
            "units": self._units,
        }

    def round(self, passes: int) -> dict[str, Any]:
        timed = [self._pass() for _ in range(passes)]
        best = min(seconds for seconds, _ in timed)
        return {"seconds": best, "units": self._units, **timed[-1][1]}

    def memory(self, steps: int, warm: int) -> dict[str, Any]:
        """Return resident bytes after some training steps and at the end."""
        run, _ = self._cases["mlp_adamw"](self._backend)
        taken = []
        done = 0
        for target in (warm, steps):
            while done < target:
                run()
                done += self._units_of("mlp_adamw")
            self._backend.sync()
            taken.append(_resident_bytes())
        return {"warm": taken[0], "end": taken[1]}

    def _units_of(self, case: str) -> int:
        from torch_cases import UNITS

        return UNITS[case]


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _make_backend(args: argparse.Namespace) -> Backend:
    if args.kind == "cpu":
        return TorchCpu(args.threads)
    if args.kind == "torus":
        return Torus(args.mode)
    if args.kind == "jax":
        return Jax()
    return Prelude(args.prelude, args.device, args.mode)


def _answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    do = request["do"]
    if do == "prepare":
        return session.prepare(request["case"])
    if do == "round":
        return session.round(request["passes"])
    if do == "memory":
        return session.memory(request["steps"], request["warm"])
    raise ValueError(f"unknown request {do!r}")


def main() -> None:
    """Answer requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["torus", "cpu", "jax", "prelude"])
    parser.add_argument("--mode", default="")
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--prelude", default="")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    # Libraries print what they like: the answers have a stream of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begin = time.perf_counter()
    backend = _make_backend(args)
    if args.kind == "jax":
        from jax_cases import CASES
    else:
        from torch_cases import CASES
    session = Session(backend, CASES)
    print(json.dumps({"ready": time.perf_counter() - begin}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = _answer(session, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
