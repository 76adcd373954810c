# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Programs in the style of torch_xla's examples: migrated they run, and with torch_tpu.compat too.

A program prints one line ``RESULT {...}``. Its numbers must be the same both ways.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libcst")

from torus import cli
from torus.migrate import migrate_source

# Nearly all of it is compiling, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(1500)

PATTERNS = Path(__file__).with_name("patterns")
NAMES = sorted(path.stem for path in PATTERNS.glob("*.py"))

# These start processes of their own, as many as there are devices or as they say.
SPAWNING = {"ddp_backend": 2, "spawn_train": 1}
WITHOUT_COMPAT = {
    "dynamo_backend": "the name of a device cannot be changed in strings",
    "amp_train": "the name of a device cannot be changed in strings",
    "optimum_generation": "torch_tpu.compat has torch_xla only",
}

Results = dict[str, dict[str, Any]]


def run_python(arguments: list[str], folder: Path, devices: int = 1, given: str = "") -> str:
    """Run Python with `given` as its input, and return what it wrote on stdout."""
    environment = {
        **os.environ,
        "TORUS_PLATFORM": "cpu",
        "TORUS_CPU_DEVICES": str(devices),
        "TORUS_FALLBACK": "error",
        "HF_HUB_OFFLINE": "1",
    }
    result = subprocess.run(
        [sys.executable, *arguments],
        input=given,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def read_result(output: str) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, output
    return json.loads(lines[0].removeprefix("RESULT "))


def run_all(programs: dict[str, Path], folder: Path, *options: str) -> Results:
    """Run the programs that need one process only; return what each found."""
    runner = str(Path(__file__).parents[1] / "run_programs.py")
    lines = json.dumps([[str(path)] for path in programs.values()])
    outcomes = json.loads(run_python([runner, *options], folder, given=lines).splitlines()[-1])
    found = {}
    for name, outcome in zip(programs, outcomes, strict=True):
        assert outcome["status"] == 0, f"{name}\n{outcome['output']}"
        found[name] = read_result(outcome["output"])
    return found


Once = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, once: Once) -> dict[str, Path]:
    """Migrate copies of all programs with the command; return where they are."""

    def make() -> dict[str, str]:
        folder = tmp_path_factory.mktemp("migrated")
        for name in NAMES:
            (folder / f"{name}.py").write_bytes((PATTERNS / f"{name}.py").read_bytes())
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert cli.main(["migrate", "--write", "--json", str(folder)]) == 0
        report = json.loads(output.getvalue())
        assert report["todo"] == []
        assert [Path(file["path"]).stem for file in report["files"] if file["written"]] == NAMES
        return {name: str(folder / f"{name}.py") for name in NAMES}

    return {name: Path(path) for name, path in once("migrated", make).items()}


@pytest.fixture(scope="module")
def results(
    programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, once: Once
) -> Results:
    """What the migrated programs found."""

    def make() -> Results:
        folder = tmp_path_factory.mktemp("results")
        alone = {name: path for name, path in programs.items() if name not in SPAWNING}
        found = run_all(alone, folder)
        for name, devices in SPAWNING.items():
            found[name] = read_result(run_python([str(programs[name])], folder, devices))
        return found

    return once("migrated-results", make)


CHECKS = {
    "mnist_train": lambda r: r["accuracy"] > 0.9 and r["last"] < r["first"] and r["saved"] == 4,
    "resnet_loader": lambda r: r["losses"][-1] < r["losses"][0] and r["device"] == "CPU",
    "spawn_train": lambda r: (
        r["processes"] == 2
        and r["spread"] == 0
        and r["loss"] < 1
        and r["total"] == [1, 1]
        and r["parts"] == [0, 1]
    ),
    "ddp_backend": lambda r: r["size"] == 2 and r["losses"][-1] < r["losses"][0],
    "amp_train": lambda r: (
        r["losses"][-1] < r["losses"][0]
        and r["dtype"] == "torch.bfloat16"
        and r["plain"] == "torch.float32"
    ),
    "gradient_accumulation": lambda r: r["total"] > 0,
    "spmd_sharding": lambda r: r["losses"][-1] < r["losses"][0],
    "checkpoint": lambda r: (
        abs(r["expected"] - r["resumed"]) < 1e-6 and r["same"] and r["kinds"] == ["cpu"]
    ),
    "metrics_debug": lambda r: (
        r["runs"] >= 3 and r["reads"] >= 3 and r["fallbacks"] == 0 and r["sum"] == 16
    ),
    "hf_finetune": lambda r: r["last"] < r["first"] and r["length"] == 8,
    "compiled_inference": lambda r: all(abs(norm - 1) < 1e-5 for norm in r["norm"]) and r["on"],
    "dynamo_backend": lambda r: r["sum"] > 0 and r["on_device"] and r["type"],
    "guarded_import": lambda r: r["devices"] == 1 and r["kind"] == "CPU",
    "optimum_generation": lambda r: (
        len(r["answer"][0]) == 6 and r["device"] == "tpu" and r["arguments"] == ["max_steps"]
    ),
}


def test_every_pattern_is_checked() -> None:
    assert sorted(CHECKS) == NAMES
    assert len(NAMES) >= 10


def assert_alike(left: Any, right: Any) -> None:
    """Compare nested results, numbers closely."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_alike(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_alike(a, b)
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
    else:
        assert left == right


@pytest.mark.parametrize("name", NAMES)
def test_migrated_text(name: str, programs: dict[str, Path]) -> None:
    text = programs[name].read_text("utf-8")
    compile(text, name, "exec")
    code = text.split('"""', 2)[2].replace("torch_xla is missing", "")
    assert not re.search(r"torch_xla|optimum\.tpu|\bx[mrs]\.|['\"]xla", code)
    assert migrate_source(text).after == text


@pytest.mark.parametrize("name", NAMES)
def test_migrated_program_runs(name: str, results: Results) -> None:
    assert CHECKS[name](results[name]), results[name]


def test_programs_run_as_they_are(results: Results, tmp_path: Path) -> None:
    names = [name for name in NAMES if name not in WITHOUT_COMPAT and name not in SPAWNING]
    found = run_all({name: PATTERNS / f"{name}.py" for name in names}, tmp_path, "--compat")
    for name in names:
        assert CHECKS[name](found[name]), found[name]
        if name != "metrics_debug":  # counts depend on what ran before
            assert_alike(found[name], results[name])


@pytest.mark.parametrize("name", SPAWNING)
def test_processes_run_as_they_are(name: str, results: Results, tmp_path: Path) -> None:
    program = ["-m", "torch_tpu.compat", str(PATTERNS / f"{name}.py")]
    assert_alike(read_result(run_python(program, tmp_path, SPAWNING[name])), results[name])


def test_sharding_over_two_processes(
    programs: dict[str, Path], results: Results, tmp_path: Path
) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output = run_python([*launcher, str(programs["spmd_sharding"])], tmp_path)
    assert_alike(read_result(output), results["spmd_sharding"])
