# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Compilation of StableHLO for devices that need not be there."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Mapping

from torch_tpu.aot import worker as workers
from torch_tpu.aot.errors import CompilationRefused
from torch_tpu.aot.sharding import free_results
from torch_tpu.aot.topologies import check_name

__all__ = ["Compiled", "Memory", "compile_text"]

_MEMORY = ("argument", "output", "alias", "temporary", "code")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a program takes on each device.

    Attributes
    ----------
    argument_bytes, output_bytes : int
        Of what goes in and comes out.
    alias_bytes : int
        Of the outputs, those that lie in the memory of arguments.
    temporary_bytes : int
        Of intermediate results.
    code_bytes : int
        Of the program itself.
    peak_bytes : int or None
        The most in use at a time, arguments included; None if the compiler does not tell.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    code_bytes: int
    peak_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """All that must be held: arguments, outputs outside of them, temporaries, code."""
        outputs = self.output_bytes - self.alias_bytes
        return self.argument_bytes + outputs + self.temporary_bytes + self.code_bytes


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled for a topology.

    Attributes
    ----------
    topology : str
        For which devices.
    memory : Memory or None
        On each device; None if the compiler does not tell.
    cost : dict of str to float
        What the compiler's cost model says of one device's part: ``"flops"``, ``"bytes accessed"``
        (both counts), ``"optimal_seconds"`` and others.
    serialized : bytes
        What a client on such devices loads; empty if not asked for.
    optimized : bytes
        The program after the compiler's work, an ``HloModuleProtoWithConfig``; empty if not given.
    seconds : float
        That the compilation took.
    options : dict of str to str
        Those given to the compiler.
    num_partitions, num_replicas : int
        Over how many devices the program is spread, and how often.
    """

    topology: str
    memory: Memory | None
    cost: dict[str, float]
    serialized: bytes
    optimized: bytes
    seconds: float
    options: dict[str, str]
    num_partitions: int = 1
    num_replicas: int = 1


def compile_text(
    text: str,
    topology: str,
    *,
    num_partitions: int = 1,
    num_replicas: int = 1,
    shardy: bool = False,
    options: Mapping[str, bool | int | float | str] | None = None,
    serialize: bool = True,
    timeout: float | None = None,
) -> Compiled:
    """Compile a StableHLO program with the TPU compiler, without a TPU.

    The compiler runs in a process of its own, which stays for the next program.

    Parameters
    ----------
    text : str
        A module, or a single ``func.func public @main``.
    topology : str
        See `torch_tpu.aot.topologies.describe`.
    num_partitions : int
        Over how many devices one run of the program is spread, as the ``mhlo.sharding`` attributes
        of its arguments and results say. The compiler chooses for results without one.
    num_replicas : int
        How many copies run, each on its own data.
    shardy : bool
        Whether the shardings are ``sdy.sharding`` attributes instead.
    options : mapping of str to bool, int, float or str
        Compiler options, such as ``{"xla_tpu_scoped_vmem_limit_kib": 65536}``.
    serialize : bool
        Whether the executable itself is wanted.
    timeout : float, optional
        Seconds after which the compilation is given up.

    Returns
    -------
    Compiled

    Raises
    ------
    CompilationRefused
        If the compiler does not take the program, or the program does not fit into the memory of
        the device.
    LibtpuMissing
        If libtpu is not installed.
    TimeoutError
        If it takes longer than `timeout`.
    """
    written = {key: _option_text(value) for key, value in (options or {}).items()}
    lines = [
        ("topology", check_name(topology)),
        ("partitions", str(num_partitions)),
        ("replicas", str(num_replicas)),
        ("shardy", str(int(shardy))),
        *_free_lines(text, num_partitions),
        *(("option", f"{key}={value}") for key, value in written.items()),
    ]
    with tempfile.TemporaryDirectory(prefix="torus-aot-") as name:
        folder = pathlib.Path(name)
        (folder / "text").write_text(text, "utf-8")
        lines += [("text", str(folder / "text")), ("optimized", str(folder / "optimized"))]
        if serialize:
            lines.append(("serialized", str(folder / "serialized")))
        fields = _request(lines, topology, timeout)
        answer = dict(fields)
        return Compiled(
            topology=topology,
            memory=_memory(answer),
            cost=_cost(fields),
            serialized=_read(folder / "serialized"),
            optimized=_read(folder / "optimized"),
            seconds=float(answer["seconds"]),
            options=written,
            num_partitions=num_partitions,
            num_replicas=num_replicas,
        )


def _free_lines(text: str, num_partitions: int) -> list[tuple[str, str]]:
    if num_partitions == 1:
        return []
    flags = "".join("01"[is_free] for is_free in free_results(text))
    return [("free", flags)] if flags else []


def _request(lines: list[tuple[str, str]], topology: str, timeout: float | None) -> workers.Fields:
    try:
        fields = workers.shared().request(lines, timeout)
    except workers.WorkerDied as error:
        raise CompilationRefused(
            f"The compiler for {topology} ended in the middle of the compilation. It printed: "
            f"{_last_lines(str(error))}",
            code="ABORTED",
            detail=str(error),
            topology=topology,
        ) from None
    answer = dict(fields)
    code = answer["status"].decode()
    if code != "OK":
        detail = answer["message"].decode(errors="replace")
        said = detail.split("=== Source Location Trace")[0].strip()
        raise CompilationRefused(
            f"{_MEANINGS.get(code, 'The TPU compiler refuses the program')} ({topology}): {said}",
            code=code,
            detail=detail,
            topology=topology,
        )
    return fields


_MEANINGS = {
    "RESOURCE_EXHAUSTED": "The program does not fit into the memory of a device",
    "UNIMPLEMENTED": "The TPU compiler cannot do what the program asks for",
}


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-12:]) or "nothing"


def _option_text(value: bool | int | float | str) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if ";" in text or not text.isprintable():
        raise ValueError(f"a compiler option is a single line without ';', got {value!r}")
    return text


def _memory(answer: Mapping[str, bytes]) -> Memory | None:
    if "argument_bytes" not in answer:
        return None
    peak = int(answer["peak_bytes"]) if "peak_bytes" in answer else None
    return Memory(*(int(answer[f"{name}_bytes"]) for name in _MEMORY), peak)


def _cost(fields: workers.Fields) -> dict[str, float]:
    pairs = (value.decode().split(" ", 1) for key, value in fields if key == "cost")
    return {name: float(number) for number, name in pairs}


def _read(path: pathlib.Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
