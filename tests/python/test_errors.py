# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Mistakes raise what they raise on the CPU, say where, and leave the process usable."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F


def still_works() -> bool:
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    return (x @ x.t() + 1).tolist() == [[6, 15], [15, 51]]


def raised(run: Callable[[], object]) -> Exception | None:
    try:
        run()
        torch.tpu.synchronize()
    except Exception as error:
        return error
    return None


def matrix(device: str, rows: int = 3, columns: int = 4) -> torch.Tensor:
    return torch.arange(float(rows * columns), device=device).reshape(rows, columns)


def whole(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


# ---- shapes and types ----

# name: what to do on a device, words of which one must be in the message
MISTAKES: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "add": (lambda d: matrix(d) + matrix(d, 2, 5), ("size",)),
    "add_ shape": (lambda d: matrix(d)[0].add_(matrix(d)), ("shape", "size")),
    "matmul": (lambda d: matrix(d) @ matrix(d), ("3x4",)),
    "mm rank": (lambda d: torch.mm(matrix(d), matrix(d)[0]), ("matri", "2D", "2-D")),
    "bmm": (lambda d: torch.bmm(matrix(d)[None], matrix(d)[None]), ("batch", "size", "shape")),
    "linear": (lambda d: F.linear(matrix(d), matrix(d, 2, 3)), ("3x4",)),
    "addmm": (lambda d: torch.addmm(matrix(d), matrix(d), matrix(d)), ("3x4",)),
    "matmul dtype": (lambda d: matrix(d) @ matrix(d).t().double(), ("dtype", "float", "same")),
    "cat": (lambda d: torch.cat([matrix(d), matrix(d, 2, 5)]), ("size",)),
    "cat empty": (lambda d: torch.cat([]), ("non-empty", "empty")),
    "stack": (lambda d: torch.stack([matrix(d), matrix(d, 2, 5)]), ("equal size", "size")),
    "view": (lambda d: matrix(d).view(5), ("shape",)),
    "view strides": (lambda d: matrix(d).t().view(12), ("view size",)),
    "expand": (lambda d: matrix(d).expand(3, 5), ("expanded size", "size")),
    "dim": (lambda d: matrix(d).sum(2), ("Dimension out of range",)),
    "negative dim": (lambda d: matrix(d).softmax(-3), ("Dimension out of range",)),
    "transpose": (lambda d: matrix(d).transpose(0, 2), ("Dimension out of range",)),
    "permute": (lambda d: matrix(d).permute(0, 0), ("duplicate", "repeated", "unique")),
    "repeated dim": (lambda d: matrix(d).sum((0, 0)), ("multiple times", "appears")),
    "select": (lambda d: matrix(d).select(0, 3), ("out of range",)),
    "integer": (lambda d: matrix(d)[3], ("out of bounds",)),
    "too many": (lambda d: matrix(d)[0, 0, 0], ("too many indices",)),
    "narrow": (lambda d: matrix(d).narrow(0, 2, 2), ("exceeds", "start")),
    "mask shape": (lambda d: matrix(d)[torch.ones(2, 4, dtype=torch.bool, device=d)], ("mask",)),
    "float index": (lambda d: matrix(d)[torch.ones(2, device=d)], ("tensors used as indices",)),
    "item": (lambda d: matrix(d).item(), ("elements",)),
    "bool of many": (lambda d: bool(matrix(d)), ("ambiguous",)),
    "conv": (
        lambda d: F.conv2d(torch.ones(1, 3, 5, 5, device=d), torch.ones(2, 4, 3, 3, device=d)),
        ("channels",),
    ),
    "conv kernel": (
        lambda d: F.conv2d(torch.ones(1, 1, 2, 2, device=d), torch.ones(1, 1, 3, 3, device=d)),
        ("Kernel size", "kernel"),
    ),
    "layer norm": (lambda d: F.layer_norm(matrix(d), (5,)), ("normalized_shape",)),
    "batch norm": (
        lambda d: F.batch_norm(matrix(d), torch.ones(5, device=d), torch.ones(5, device=d)),
        ("running_mean",),
    ),
    "cross entropy": (lambda d: F.cross_entropy(matrix(d), whole(d, 0, 1)), ("batch_size", "size")),
    "gather rank": (lambda d: matrix(d).gather(0, whole(d, 0)), ("dimension", "size")),
    "index_select": (lambda d: matrix(d).index_select(0, whole(d, 0)[None]), ("vector",)),
    "embedding type": (lambda d: F.embedding(torch.ones(2, device=d), matrix(d)), ("indices",)),
    "negative size": (lambda d: torch.ones(-1, device=d), ("negative",)),
    "topk": (lambda d: matrix(d).topk(5), ("out of range", "range")),
    "chunk": (lambda d: matrix(d).chunk(0), ("chunk",)),
    "max of none": (lambda d: torch.ones(0, device=d).max(), ("numel", "dimension", "empty")),
    "argmax of none": (lambda d: torch.ones(0, 3, device=d).argmax(0), ("size 0", "zero", "empty")),
    "int += float": (lambda d: whole(d, 1, 2).add_(1.5), ("can't be cast",)),
    "int /= int": (lambda d: whole(d, 1, 2).div_(2), ("can't be cast",)),
    "int = sqrt": (lambda d: whole(d, 1, 2).sqrt_(), ("can't be cast",)),
    "bool += int": (lambda d: (whole(d, 1) > 0).add_(2), ("can't be cast",)),
    "float += complex": (lambda d: matrix(d).add_(1j), ("can't be cast",)),
    "int out": (
        lambda d: torch.add(matrix(d), 1, out=torch.empty(3, 4, dtype=torch.int32, device=d)),
        ("can't be cast",),
    ),
    "mean of int": (lambda d: whole(d, 1, 2).mean(), ("floating point", "dtype")),
    "softmax of int": (lambda d: whole(d, 1, 2).softmax(0), ("implemented for", "dtype")),
    "bool minus": (lambda d: (whole(d, 1) > 0) - (whole(d, 1) > 0), ("bool",)),
    "bitwise float": (lambda d: matrix(d) & matrix(d), ("implemented for", "dtype", "Float")),
    "complex compare": (lambda d: matrix(d) * 1j < 1, ("implemented for", "omplex")),
    "backward of many": (
        lambda d: (torch.ones(2, device=d, requires_grad=True) * 2).backward(),
        ("scalar",),
    ),
    "leaf in place": (
        lambda d: torch.ones(2, device=d, requires_grad=True).add_(1),
        ("leaf",),
    ),
    "changed since": (
        lambda d: changed_since_saved(d),
        ("modified by an inplace operation",),
    ),
}


def changed_since_saved(device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    y = x.exp()
    z = y.sum()
    y.add_(1)
    z.backward()


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    run, words = MISTAKES[name]
    expected = raised(lambda: run("cpu"))
    assert expected is not None
    for mode in ("fused", "strict", "debug"):
        with torch.tpu.set_eager_mode(mode):
            actual = raised(lambda: run("tpu"))
            assert actual is not None, f"CPU: {expected!r}"
            assert isinstance(actual, type(expected)), f"{actual!r} is not {expected!r}"
            message = str(actual).lower()
            assert any(word.lower() in message for word in words), f"{actual!r}, CPU: {expected!r}"
            assert still_works()


# ---- indices ----


def put(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x[index] = 1
    return x


def put_accumulate(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.index_put_((index,), torch.ones(4, device=x.device), accumulate=True)


def gradient_of_embedding(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    weight = x.clone().requires_grad_()
    F.embedding(index, weight).sum().backward()
    return weight.grad


# Uses of indices that must lie below 3.
LOOKUPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding gradient": gradient_of_embedding,
    "embedding bag": lambda x, i: F.embedding_bag(i[None], x, mode="sum"),
    "index": lambda x, i: x[i],
    "index 2d": lambda x, i: x[i, i],
    "index after slice": lambda x, i: x.t()[:, i],
    "index_put": put,
    "index_put accumulate": put_accumulate,
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 4)),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], i[:, None].float()),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, i[:, None].float().expand(-1, 4)),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_copy": lambda x, i: x.index_copy(0, i, i[:, None].float().expand(-1, 4)),
    "take": lambda x, i: x[:, 0].take(i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "cross entropy": lambda x, i: F.cross_entropy(x[:, :3][: len(i)], i),
    "nll": lambda x, i: F.nll_loss(x[:, :3][: len(i)], i),
}


@pytest.mark.parametrize("index", [3, -1, -4, 2**40])
@pytest.mark.parametrize("name", LOOKUPS)
def test_index_out_of_range(mode: str, name: str, index: int) -> None:
    look_up = LOOKUPS[name]
    expected = raised(lambda: look_up(matrix("cpu"), whole("cpu", 0, index)))
    actual = raised(lambda: look_up(matrix("tpu"), whole("tpu", 0, index)))
    if expected is None:
        assert actual is None
        return
    assert actual is not None, f"CPU: {expected!r}"
    assert isinstance(actual, (type(expected), IndexError))
    message = str(actual)
    assert str(index) in message or "index" in message.lower() or "target" in message.lower()
    assert still_works()


def test_late_index_error_names_the_index() -> None:
    with torch.tpu.set_eager_mode("fused"):
        x = matrix("tpu")
        picked = x[whole("tpu", 0, 7)]
        later = (picked * 2).sum()
        with pytest.raises(
            IndexError, match="index 7 is out of bounds for dimension 0 with size 3"
        ):
            later.item()
        assert still_works()


def test_error_is_told_once() -> None:
    with torch.tpu.set_eager_mode("fused"):
        for _ in range(3):
            picked = matrix("tpu")[whole("tpu", 5)]
        with pytest.raises(IndexError):
            torch.tpu.synchronize()
        torch.tpu.synchronize()
        del picked
        assert still_works()


# ---- devices ----


MIXED: dict[str, Callable[[], object]] = {
    "add": lambda: matrix("tpu") + matrix("cpu"),
    "add other way": lambda: matrix("cpu") + matrix("tpu"),
    "matmul": lambda: matrix("tpu") @ matrix("cpu").t(),
    "matmul other way": lambda: matrix("cpu") @ matrix("tpu").t(),
    "cat": lambda: torch.cat([matrix("tpu"), matrix("cpu")]),
    "stack": lambda: torch.stack([matrix("cpu"), matrix("tpu")]),
    "linear": lambda: F.linear(matrix("tpu"), matrix("cpu")),
    "linear model": lambda: torch.nn.Linear(4, 2)(matrix("tpu")),
    "embedding": lambda: F.embedding(whole("cpu", 0), matrix("tpu")),
    "index_select": lambda: matrix("tpu").index_select(0, whole("cpu", 0)),
    "gather": lambda: matrix("tpu").gather(0, whole("cpu", 0)[None]),
    "where": lambda: torch.where(matrix("tpu") > 1, matrix("cpu"), matrix("tpu")),
    "out": lambda: torch.add(matrix("tpu"), 1, out=matrix("cpu")),
    "in place": lambda: matrix("cpu").add_(matrix("tpu")),
    "in place other way": lambda: matrix("tpu").add_(matrix("cpu")),
    "layer norm": lambda: F.layer_norm(matrix("tpu"), (4,), torch.ones(4)),
    "conv": lambda: F.conv2d(torch.ones(1, 1, 4, 4, device="tpu"), torch.ones(1, 1, 2, 2)),
    "mse": lambda: F.mse_loss(matrix("tpu"), matrix("cpu")),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices(name: str) -> None:
    error = raised(MIXED[name])
    assert isinstance(error, RuntimeError), error
    assert "tpu" in str(error)
    assert "cpu" in str(error)
    assert still_works()


def test_cpu_numbers_may_be_mixed(mode: str) -> None:
    x = matrix("tpu", 1, 2)
    assert (x + torch.tensor(1.0)).tolist() == [[1, 2]]
    assert (torch.tensor(2) * x).tolist() == [[0, 2]]
    assert x[torch.tensor([0])].tolist() == [[0, 1]]
    x[torch.tensor([True])] = torch.tensor(3.0)
    assert x.tolist() == [[3, 3]]
    assert torch.where(x > 1, x, torch.tensor(0.0)).tolist() == [[3, 3]]


def test_missing_device_is_named() -> None:
    for use in (
        lambda: torch.ones(1, device="tpu:9"),
        lambda: torch.empty(1, device="tpu:9"),
        lambda: torch.rand(1, device="tpu:9"),
        lambda: torch.tensor([1.0], device="tpu:9"),
        lambda: torch.ones(1).to("tpu:9"),
        lambda: torch.ones(1, device="tpu").to("tpu:9"),
        lambda: torch.tpu.synchronize(9),
        lambda: torch.Stream(device="tpu:9"),
    ):
        error = raised(use)
        assert isinstance(error, (RuntimeError, ValueError)), error
        assert "9" in str(error)
    assert still_works()


def test_unsupported_types(mode: str) -> None:
    for dtype in (torch.quint8, torch.complex32):
        error = raised(lambda dtype=dtype: torch.zeros(2).to(dtype).to("tpu"))
        error = error or raised(lambda dtype=dtype: torch.empty(2, dtype=dtype, device="tpu"))
        assert isinstance(error, (TypeError, RuntimeError)), error
    with pytest.raises(TypeError, match=r"complex32|ComplexHalf"):
        torch.empty(2, dtype=torch.complex32, device="tpu")
    assert still_works()


# ---- memory ----


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(1 << 50, device="tpu"),
        lambda: torch.zeros(1 << 30, 1 << 20, device="tpu"),
        lambda: torch.ones(1 << 24, 1, device="tpu").expand(-1, 1 << 24).clone(),
        lambda: torch.ones(1 << 24, 1, device="tpu") @ torch.ones(1, 1 << 24, device="tpu"),
        lambda: torch.arange(1 << 48, device="tpu"),
        lambda: torch.ones(2, device="tpu").resize_(1 << 50),
    ],
)
def test_far_too_large(mode: str, allocate: Callable[[], object]) -> None:
    error = raised(allocate)
    assert isinstance(error, torch.OutOfMemoryError), error
    assert "Tried to allocate" in str(error)
    assert "iB" in str(error)
    assert still_works()


def test_sizes_that_overflow() -> None:
    for sizes in ((1 << 62, 4), (1 << 40, 1 << 40), (1 << 63 - 1,)):
        error = raised(lambda sizes=sizes: torch.empty(sizes, device="tpu"))
        assert isinstance(error, (RuntimeError, torch.OutOfMemoryError)), error
        assert still_works()


def test_memory_in_use_counts(run_python) -> None:
    code = """
import torch
held = []
try:
    for _ in range(1 << 20):
        held.append(torch.empty(1 << 32, dtype=torch.uint8, device="tpu"))
except torch.OutOfMemoryError as error:
    assert "4.00 GiB" in str(error) and "in use" in str(error), error
held.clear()
torch.tpu.empty_cache()
print(torch.tpu.memory_allocated(), torch.ones(2, device="tpu").tolist())
"""
    assert run_python(code).stdout == "0 [1.0, 1.0]\n"


# ---- processes ----


def test_interrupt_while_waiting(run_python) -> None:
    code = """
import os, signal, threading, time, torch
# A shell that starts its jobs in the background has them ignore SIGINT, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
x = torch.rand(1500, 1500, device="tpu")
x.sum().item()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    begin = time.monotonic()
    while time.monotonic() - begin < 60:
        y = x
        for _ in range(4):
            y = y @ x * 1e-3
        y.sum().item()
    print("never interrupted")
except KeyboardInterrupt:
    print("interrupted", torch.ones(2, device="tpu").add(1).tolist())
"""
    assert run_python(code).stdout == "interrupted [2.0, 2.0]\n"


def test_exit_with_work_in_flight(run_python) -> None:
    code = """
import torch
x = torch.rand(500, 500, device="tpu")
for _ in range(20):
    x = x @ x * 1e-2
kept = x
print("end")
"""
    result = run_python(code)
    assert result.stdout == "end\n"
    assert result.stderr == ""


def test_exit_while_a_thread_works(run_python) -> None:
    code = """
import threading, torch
def work():
    x = torch.rand(64, 64, device="tpu")
    for _ in range(200):
        x = x @ x * 1e-2
        x.sum().item()
    print("thread")
threading.Thread(target=work).start()
print(torch.ones(2, device="tpu").sum().item())
"""
    assert sorted(run_python(code).stdout.split()) == ["2.0", "thread"]


# ---- the disk cache ----

COUNT = """
import torch
torch.tpu.init()
x = torch.arange(6.0, device="tpu").reshape(2, 3)
assert (x @ x.t() + 1).tolist() == [[6, 15], [15, 51]]
figures = torch.tpu.metrics()
print(figures["compilations"], figures["disk_hits"])
"""


def run_with_cache(run_python, folder: os.PathLike[str] | str, flags: str = "") -> tuple[int, int]:
    env = {"TORUS_CACHE_DIR": str(folder), "TORUS_EAGER_MODE": "strict", "XLA_FLAGS": flags}
    result = run_python(COUNT, env=env)
    assert result.stderr == ""
    compilations, hits = result.stdout.split()
    return int(compilations), int(hits)


def test_cache_is_used(run_python, tmp_path) -> None:
    folder = tmp_path / "made" / "by it"
    compilations, hits = run_with_cache(run_python, folder)
    assert compilations > 0
    assert hits == 0
    assert run_with_cache(run_python, folder) == (0, compilations)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for entry in folder.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_programs_compiled_with_other_flags_are_not_used(run_python, tmp_path) -> None:
    compilations, _ = run_with_cache(run_python, tmp_path)
    quick = "--xla_backend_optimization_level=0"
    assert run_with_cache(run_python, tmp_path, quick) == (compilations, 0)
    assert run_with_cache(run_python, tmp_path, quick) == (0, compilations)
    assert run_with_cache(run_python, tmp_path) == (0, compilations)


MANY_PROGRAMS = """
import torch
for size in range(1, 25):
    x = torch.arange(float(size), device="tpu")
    assert (x * x).sum().item() == sum(i * i for i in range(size))
    print(size, flush=True)
"""


@pytest.mark.parametrize("line", ["1", "4", "9"])
def test_killed_while_programs_are_written(tmp_path, line: str) -> None:
    folder = tmp_path / "programs"
    own = {"TORUS_CACHE_DIR": str(folder), "TORUS_EAGER_MODE": "strict", "TORUS_BOUNDED": "0"}
    env = {**os.environ, **own}
    command = [sys.executable, "-c", MANY_PROGRAMS]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        while process.stdout.readline().strip() != line:
            assert process.poll() is None
        process.kill()
    kept = {entry.name: entry.read_bytes() for entry in folder.glob("*.program")}
    assert kept
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    # What was complete is used, and what was not is made again.
    for name, content in kept.items():
        assert (folder / name).read_bytes() == content
    assert len(list(folder.glob("*.program"))) > len(kept)


def spoil(entry: Path, damage: str) -> None:
    content = bytearray(entry.read_bytes())
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
        return
    if damage == "empty":
        content = bytearray()
    elif damage == "short":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-len(content) // 3] ^= 1
    elif damage == "lengths":
        content[16:32] = b"\xff" * 16
    elif damage == "foreign":
        content = bytearray(b"\x7fELF" + bytes(5000))
    entry.write_bytes(content)


def test_damaged_cache_entries(run_python, tmp_path) -> None:
    folder = tmp_path / "cache"
    compilations, _ = run_with_cache(run_python, folder)
    for damage in ("empty", "short", "flipped", "lengths", "foreign", "folder"):
        entries = list(folder.iterdir())
        assert len(entries) == compilations
        for entry in entries:
            spoil(entry, damage)
        assert run_with_cache(run_python, folder) == (compilations, 0), damage


def test_links_are_not_followed(run_python, tmp_path) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    compilations, _ = run_with_cache(run_python, folder)
    for entry in list(folder.iterdir()):
        entry.rename(elsewhere / entry.name)
        entry.symlink_to(elsewhere / entry.name)
    assert run_with_cache(run_python, folder) == (compilations, 0)


@pytest.mark.parametrize("kind", ["file", "missing", "relative", "null", "long"])
def test_unusable_cache_folder(run_python, tmp_path, kind: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    folder = {
        "file": file,
        "missing": "/proc/no/such/folder",
        "relative": "some/folder",
        "null": "/dev/null",
        "long": "/tmp/" + "x" * 5000,
    }[kind]
    compilations, hits = run_with_cache(run_python, folder)
    assert compilations > 0
    assert hits == 0
    assert file.read_text() == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_cache_folder(run_python, tmp_path) -> None:
    folder = tmp_path / "cache"
    compilations, _ = run_with_cache(run_python, folder)
    folder.chmod(0o500)
    try:
        assert run_with_cache(run_python, folder) == (0, compilations)
    finally:
        folder.chmod(0o700)


def test_cache_of_others_is_not_trusted(run_python, tmp_path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    compilations, hits = run_with_cache(run_python, folder)
    assert compilations > 0
    assert hits == 0
    # Programs are code: others could have put theirs into a folder that all may write to.
    assert run_with_cache(run_python, folder)[1] == 0


def test_cache_can_be_switched_off(run_python, tmp_path) -> None:
    env = {"TORUS_CACHE_DIR": str(tmp_path / "cache"), "TORUS_CACHE": "0"}
    run_python(COUNT, env=env)
    assert not (tmp_path / "cache").exists()


def test_cache_stays_under_its_limit(run_python, tmp_path) -> None:
    folder = tmp_path / "cache"
    env = {"TORUS_CACHE_DIR": str(folder), "TORUS_CACHE_LIMIT": "1"}
    for _ in range(2):
        run_python(COUNT, env={**env, "TORUS_EAGER_MODE": "strict"})
    assert sum(entry.stat().st_size for entry in folder.iterdir()) < 1 << 20
