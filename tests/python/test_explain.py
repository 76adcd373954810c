# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Every compilation says why: `torch.tpu.explain`, TORUS_LOG, and the lines in errors."""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

FIELDS = {
    "serial",
    "trigger",
    "reason",
    "operators",
    "operator_count",
    "node_count",
    "text_bytes",
    "seconds",
    "from_disk",
    "mode",
    "device",
    "first_line",
    "last_line",
    "error",
}


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    with torch.tpu.set_eager_mode("fused"):
        yield
        torch.tpu.synchronize()


def line() -> int:
    """Return the line that called."""
    return inspect.currentframe().f_back.f_lineno


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).to("tpu")


# ---- reasons ----


def test_the_first_sight() -> None:
    x = ones(3, 11)
    with torch.tpu.explain() as report:
        y = x.erf().sinh().asinh()
        here = line() - 1
    assert y.shape == (3, 11)
    (event,) = report.events
    assert event.trigger == "first"
    assert event.operators == "erf, sinh, asinh"
    assert (event.operator_count, event.mode, event.device, event.error) == (3, "fused", 0, "")
    assert event.seconds > 0
    assert event.node_count >= 4
    assert event.text_bytes > 0 or event.from_disk
    assert event.first_line == event.last_line == f"{__file__}:{here}"


def test_nothing_is_compiled_twice() -> None:
    x = ones(3, 12)
    with torch.tpu.explain() as first:
        x.erf().cosh().cpu()
    with torch.tpu.explain() as second:
        x.erf().cosh().cpu()
    assert len(first.events) == 1
    assert second.events == []
    assert second.counters["launches"] == second.counters["cache_hits"] == 1
    assert second.counters["operators"] == 2


def test_a_size() -> None:
    a, b = ones(4, 8), ones(7, 8)
    with torch.tpu.explain() as report:
        a.erfinv().atan().cpu()
        b.erfinv().atan().cpu()
    event = report.events[-1]
    assert event.trigger == "size"
    assert event.operators == "erfinv, atan"
    assert event.reason.startswith("a size changes: 4 -> 7; run-time argument from now on")


def test_a_size_without_bounds(run_python) -> None:
    code = """
        import torch
        a, b = torch.ones(4, 8).to("tpu"), torch.ones(7, 8).to("tpu")
        with torch.tpu.explain() as report:
            a.erfinv().atan().cpu()
            b.erfinv().atan().cpu()
        print(report.events[-1].trigger, report.events[-1].reason, sep="; ")
    """
    result = run_python(inspect.cleandoc(code), {"TORUS_BOUNDED": "0"})
    assert result.stdout == (
        "size; dimension 0 of erfinv's input: 4 -> 7 (float32[4, 8] -> float32[7, 8])\n"
    )


def test_a_type() -> None:
    a, b = ones(4, 9), ones(4, 9, dtype=torch.bfloat16)
    with torch.tpu.explain() as report:
        a.neg().abs().neg().cpu()
        b.neg().abs().neg().cpu()
    event = report.events[-1]
    assert event.trigger == "type"
    assert event.reason == "neg's input: float32[4, 9] -> bfloat16[4, 9]"


def test_a_number() -> None:
    x = ones(4, 10)
    with torch.tpu.explain() as report:
        for value in (0.5, 0.75, 0.875, 0.9375):
            x.tan().mul(value).cpu()
    first, second = report.events
    assert first.trigger != "number"
    assert second.trigger == "number"
    assert second.reason == "mul's number: 0.5 -> 0.75; run-time argument from now on"


def test_other_results() -> None:
    x = ones(4, 11)
    with torch.tpu.explain() as report:
        x.acosh().tanh().cpu()
        kept = x.acosh()
        kept.tanh().cpu()
    event = report.events[-1]
    assert event.trigger == "results"
    assert event.reason == "2 results are still wanted where 1 were"


def test_other_operators() -> None:
    x = ones(4, 12)
    with torch.tpu.explain() as report:
        x.sin().cos().sinh().cosh().cpu()
        x.sin().cos().sinh().tanh().cpu()
    event = report.events[-1]
    assert event.trigger == "operators"
    assert event.reason == "after 3 equal operators of 4: tanh where cosh was"


def test_a_built_in_argument() -> None:
    x = ones(4, 4, 4)
    with torch.tpu.explain() as report:
        x.atanh().flip(0).cpu()
        x.atanh().flip(1).cpu()
    event = report.events[-1]
    assert event.trigger == "detail"
    assert event.reason == "flip: reverse float32[4, 4, 4] with other built-in arguments"


def test_programs_that_were_cleared() -> None:
    x = ones(4, 13)
    with torch.tpu.explain() as report:
        x.sinh().sinh().cpu()
        torch.tpu._clear_cache()
        x.sinh().sinh().cpu()
    event = report.events[-1]
    assert event.trigger == "again"
    assert "cleared" in event.reason


def test_long_windows_are_abbreviated() -> None:
    y = ones(4, 14)
    with torch.tpu.explain() as report:
        for _ in range(11):
            y = y.sin().cos()
        y.cpu()
    assert report.events[-1].operators == "sin, cos, sin, cos, ... 22 operators"
    assert report.events[-1].operator_count == 22


@pytest.mark.parametrize("mode", ["debug", "strict"])
def test_the_modes(mode: str) -> None:
    x = ones(4, 15 if mode == "debug" else 16)
    with torch.tpu.explain() as report, torch.tpu.set_eager_mode(mode):
        x.lgamma().digamma()
    assert [event.operators for event in report.events] == ["lgamma", "digamma"]
    assert {event.mode for event in report.events} == {mode}


def test_what_cannot_be_compiled() -> None:
    x = ones(4, 17)
    report = torch.tpu.explain()

    def run() -> None:
        with report:
            # Nobody has this program: its number of operators is this test's own.
            y = x
            for _ in range(37):
                y = y.sin().erf()
            y.cpu()

    torch.tpu._set_cache_only(True)
    try:
        with pytest.raises(RuntimeError, match="cache-only"):
            run()
    finally:
        torch.tpu._set_cache_only(False)
    assert "cache-only" in report.events[0].error
    assert "error: " in str(report)


# ---- lines ----


def test_the_users_line_is_named_not_pytorchs() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(5, 19), torch.nn.GELU()).to("tpu")
    x = ones(2, 5)
    with torch.tpu.explain() as report:
        first = line() + 1
        y = layer(x)
        y = y.sigmoid()
        last = line() - 1
        y.detach().cpu()
    event = report.events[0]
    assert event.first_line == f"{__file__}:{first}"
    assert event.last_line == f"{__file__}:{last}"


def test_threads_have_lines_of_their_own() -> None:
    x = ones(3, 20)
    lines = {}

    def work(name: str, count: int) -> None:
        y = x
        for _ in range(count):
            y = y.sin()
        lines[name] = line() - 1
        y.cpu()

    with torch.tpu.explain() as report, torch.tpu.set_eager_mode("fused"):
        threads = [threading.Thread(target=work, args=(f"{i}", 5 + i)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert report.events
    assert {event.last_line for event in report.events} == {f"{__file__}:{lines['0']}"}


def test_operators_without_a_python_frame() -> None:
    """Those of backward run on autograd's thread."""
    x = ones(3, 21).requires_grad_()
    with torch.tpu.explain() as report:
        y = x.sin().sum()
        here = line() - 1
        y.backward()
        x.grad.cpu()
    assert report.events[0].first_line == f"{__file__}:{here}"
    lines = {f"{__file__}:{here}", f"{__file__}:{here + 2}"}
    assert {event.last_line for event in report.events} <= lines


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="lines are always on in Python 3.11")
def test_an_index_error_names_its_line() -> None:
    table, index = ones(5, 22), torch.tensor([1, 9]).to("tpu")
    y = table.index_select(0, index)
    here = line() - 1
    y = y + 1
    with pytest.raises(IndexError) as raised:
        y.cpu()
    assert "out of range" in str(raised.value)
    assert f"(recorded at {__file__}:{here})" in str(raised.value)


def test_an_index_error_names_its_line_to_explain() -> None:
    table, index = ones(5, 22), torch.tensor([1, 9]).to("tpu")
    here = line() + 2
    with pytest.raises(IndexError, match=rf"\(recorded at {re.escape(__file__)}:{here}\)"):
        torch.tpu.explain(lambda: table.index_select(0, index).add(1).cpu())


def test_code_that_is_gone_is_named(tmp_path: pathlib.Path) -> None:
    x = ones(3, 23)
    space = {"x": x}
    exec(compile("\n\ny = x.sin().tan().sin()", str(tmp_path / "gone.py"), "exec"), space)
    with torch.tpu.explain() as report:
        pass
    for _ in range(50):
        exec(compile("y = x.sin().tan().sin().tan()", str(tmp_path / "gone.py"), "exec"), space)
        y = space.pop("y")
    y.cpu()
    with torch.tpu.explain() as report:
        exec(compile("\n\ny = x.tan().tan().sin()", str(tmp_path / "gone.py"), "exec"), space)
        space["y"].cpu()
    assert report.events[-1].last_line == f"{tmp_path / 'gone.py'}:3"


# ---- the report ----


def test_a_function() -> None:
    x = ones(3, 24)
    report = torch.tpu.explain(torch.add, x, x, alpha=2)
    assert torch.equal(report.result.cpu(), torch.full((3, 24), 3.0))
    assert [event.operators for event in report.events] == ["add"]


def test_as_text_and_data() -> None:
    x = ones(3, 25)
    with torch.tpu.explain() as report:
        x.sinh().erf().cpu()
    text = str(report)
    assert "compiled in" in text
    assert "sinh, erf" in text
    assert f"{__file__}:" in text
    assert report.summary() in text
    assert max(map(len, text.splitlines())) <= 160
    data = json.loads(json.dumps(report.to_dict()))
    assert data["events"][0].keys() == FIELDS
    assert data["missed"] == 0
    assert data["counters"]["operators"] == 2
    assert report.seconds == pytest.approx(sum(event.seconds for event in report.events))
    assert repr(report).startswith("<ExplainReport: ")


def test_an_empty_report() -> None:
    with torch.tpu.explain() as report:
        pass
    assert report.events == []
    assert str(report).startswith("0 programs compiled in 0.00 s, 0 loaded")


def test_work_recorded_before_does_not_count() -> None:
    y = ones(3, 26).sin().erf().sin()
    with torch.tpu.explain() as report:
        pass
    assert report.events == []
    assert y.shape == (3, 26)


def test_the_error_of_the_block_comes_through() -> None:
    report = torch.tpu.explain()

    def run() -> None:
        with report:
            ones(5)[torch.tensor([7]).to("tpu")].sin()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run()
    assert report.counters


# ---- without a device, and in processes of their own ----


def test_before_the_device_is_opened(run_python) -> None:
    code = """
        import torch
        with torch.tpu.explain() as report:
            assert not torch.tpu.is_initialized()
            torch.ones(3, device="tpu").sin().cpu()
        assert report.events, report
    """
    run_python(inspect.cleandoc(code))


def test_loaded_from_disk(run_python, tmp_path: pathlib.Path) -> None:
    code = """
        import torch
        x = torch.ones(3, 31).to("tpu")
        report = torch.tpu.explain(lambda: x.sin().erf().cpu())
        (event,) = report.events
        print(event.from_disk, event.trigger, event.text_bytes > 0)
    """
    env = {"TORUS_CACHE_DIR": str(tmp_path / "programs")}
    assert run_python(inspect.cleandoc(code), env).stdout == "False first True\n"
    assert run_python(inspect.cleandoc(code), env).stdout == "True first False\n"


LOGGED = """
import torch
x = torch.arange(6.0).to("tpu")
for value in (0.5, 0.75):
    x.sin().mul(value).cpu()
torch.tpu.set_fallback("silent")
"""


def test_the_log(run_python, tmp_path: pathlib.Path) -> None:
    env = {"TORUS_CACHE": "0", "TORUS_LOG": "compile,window,lines"}
    lines = run_python(LOGGED, env).stderr.splitlines()
    assert all(re.match(r"\[torus \d+\.\d{3} (compile|window)\] ", text) for text in lines), lines
    assert sum("number: mul's number: 0.5 -> 0.75" in text for text in lines) == 1
    assert sum("window]" in text and "fused: sin, mul;" in text for text in lines) == 2
    assert any("at <string>:5" in text for text in lines)


def test_the_log_in_a_file(run_python, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "torus.log"
    env = {"TORUS_CACHE": "0", "TORUS_LOG": "all", "TORUS_LOG_FILE": str(path)}
    assert run_python(LOGGED, env).stderr == ""
    run_python(LOGGED, env)
    text = path.read_text()
    assert text.count("0.5 -> 0.75") == 2
    assert "\x1b" not in text


def test_a_log_that_does_not_exist(run_python) -> None:
    stderr = run_python("import torch", {"TORUS_LOG": "compile, gossip"}).stderr
    assert stderr == (
        "torus: gossip: no such log; TORUS_LOG takes compile, window, fallback, lines, all\n"
    )


def test_fallbacks_are_logged(run_python) -> None:
    code = """
        import torch
        torch.tpu.set_fallback("silent")
        x = torch.eye(4, device="tpu")
        torch.ops.aten._add_relu(x, x)
    """
    result = run_python(inspect.cleandoc(code), {"TORUS_LOG": "fallback,lines"}, check=False)
    if "_add_relu" not in result.stderr:
        pytest.skip("the operator tried here is lowered")
    assert re.match(
        r"\[torus \d+\.\d{3} fallback\] aten::_add_relu\S* on the CPU, \d+ bytes moved, "
        r"at <string>:4; no lowering\n",
        result.stderr,
    )
