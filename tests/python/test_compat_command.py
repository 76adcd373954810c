# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The command ``torus compat``: architectures on the device, lost processes, and its pages."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers")

from torch_tpu import aot
from torus.compat import adjust, pages, records, report, shrink, stages, trees
from torus.compat.build import Subject, build

# Each stands for a family: encoder, decoder, experts, encoder-decoder, state space, recurrence,
# vision transformer, convolutions, detection, two towers, sound, and a series of numbers.
DIVERSE = "bert,llama,mixtral,t5,mamba,rwkv,vit,resnet,detr,clip,wav2vec2,time_series_transformer"


def run_compat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torus", "compat", *arguments],
        env={**os.environ, "TORUS_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_errors_name_files_by_their_library() -> None:
    folder = os.path.dirname(pytest.__path__[0])
    error = ValueError(f"a value is read\n(at {folder}/library/file.py:7)")
    assert stages.as_error(error) == "ValueError: a value is read (at library/file.py:7)"


def test_diverse_architectures_agree(tmp_path) -> None:
    journal = tmp_path / "run.jsonl"
    arguments = ("--only", DIVERSE, "--stages", "forward", "--quick", "--resume", str(journal))
    result = run_compat(*arguments, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == DIVERSE.count(",") + 1
    for row in rows:
        assert row["stages"]["forward"]["verdict"] in report.PASSES, row
        assert "fallbacks" not in row["stages"]["forward"], row

    # What the file holds is not run again; further stages are run and added.
    kept = journal.read_text()
    again = run_compat(*arguments)
    assert again.returncode == 0
    assert journal.read_text() == kept
    assert "forward: 12 of 12 agree (100.0%)" in again.stdout
    more = run_compat(
        "--only", "bert", "--stages", "generate,train", "--resume", str(journal), "--json"
    )
    found = json.loads(more.stdout)["stages"]
    assert {stage: found[stage]["verdict"] for stage in found} == {
        "forward": "match",
        "generate": "match",
        "train": "match",
    }


def test_a_crash_and_a_stage_without_end_are_verdicts(tmp_path) -> None:
    for source, verdict in (
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash"),
        ("while True: pass", "timeout"),
    ):
        prelude = tmp_path / "prelude.py"
        prelude.write_text(source)
        # In processor time, so that a busy machine does not matter.
        limit = ("--seconds", "6") if verdict == "timeout" else ()
        options = ("--stages", "forward", "--prelude", str(prelude), "--json", *limit)
        result = run_compat("--only", "gpt2", *options)
        assert result.returncode == 1, result.stderr
        assert json.loads(result.stdout)["stages"]["forward"]["verdict"] == verdict


@pytest.mark.skipif(not aot.topologies.is_available(), reason="libtpu is not installed")
def test_the_tpu_compiler_gets_no_options_of_the_cpu_plugin() -> None:
    stage = ("--stages", "", "--compile-for", "v6e:2x2")
    result = run_compat("--only", "bert", "--quick", *stage, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["stages"]["compile for v6e:2x2"]["verdict"] == "match"


def test_wrong_usage() -> None:
    for arguments, text in (("--only", "nonesuch"), "nonesuch"), (("--stages", "fly"), "fly"):
        result = run_compat(*arguments)
        assert result.returncode == 2
        assert text in result.stderr
        assert "Traceback" not in result.stderr


def test_a_small_configuration_is_consistent() -> None:
    narrow = shrink.RECIPES[0]
    config = adjust.small_config("qwen3_moe", narrow)
    assert config.num_hidden_layers == 2
    assert config.vocab_size == shrink.VOCABULARY
    assert config.num_experts == 4
    assert config.hidden_size % config.num_attention_heads == 0
    assert config.num_attention_heads % config.num_key_value_heads == 0


def test_differences_are_found() -> None:
    expected = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([1, 2])}
    assert trees.compare(expected, expected).within(0.0)
    near = {"a": torch.tensor([1.0, 2.002]), "b": torch.tensor([1, 2])}
    assert trees.compare(near, expected).relative == pytest.approx(1e-3, rel=1e-3)
    for wrong, text in (
        ({"a": torch.tensor([1.0, torch.nan]), "b": expected["b"]}, "NaN"),
        ({"a": expected["a"], "b": torch.tensor([1, 3])}, "1 of 2 integers"),
        ({"a": torch.ones(3), "b": expected["b"]}, "shape"),
        ({"a": expected["a"]}, "one device only: b"),
    ):
        difference = trees.compare(wrong, expected)
        assert not difference.within(1.0)
        assert text in difference.text()


class _Wrong(torch.nn.Module):
    """Computes something else on the device than on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * (2 if x.device.type == "tpu" else 1)


def test_a_wrong_device_is_noticed() -> None:
    runner = stages.Runner(Subject(_Wrong(), {"x": torch.arange(3.0)}))
    assert runner.forward().verdict == "differs"
    assert runner.train().verdict == "differs"
    assert runner.generate().verdict == "none"


def test_training_leaves_the_weights_of_later_stages_alone() -> None:
    runner = stages.Runner(Subject(torch.nn.Linear(3, 2), {"input": torch.ones(1, 3)}))
    assert runner.train().verdict == "match"
    assert runner.forward().verdict == "match"


def test_what_float64_confirms_agrees() -> None:
    # 1 + 1e-8 - 1 is 0 in float32 whatever the order, 1e-8 in float64: both are equally far.
    found = stages.Found()
    expected, actual = {"": torch.tensor([2e-8])}, {"": torch.tensor([0.5e-8])}
    exact = {"": torch.tensor([1e-8], dtype=torch.float64)}
    stages.settle(found, actual, expected, lambda: exact, floor=1e-12)
    assert found.verdict == "match"
    assert "float64" in found.note


def test_inputs_fit_a_multimodal_model() -> None:
    subject = build("llava")
    assert set(subject.inputs) == {"input_ids", "attention_mask", "pixel_values"}
    token = subject.model.config.image_token_id
    assert int((subject.inputs["input_ids"] == token).sum()) > 0


@pytest.mark.parametrize(
    "model_type",
    [
        "lw_detr",
        "depth_pro",
        "fun_asr_nano_encoder",
        "deepseek_ocr2_encoder",
        "emu3_vqgan",
        "zamba2",
        "sam2",
        "rt_detr",
        "vitmatte",
        "zoedepth",
    ],
)
def test_types_whose_fields_or_inputs_are_coupled_are_small(model_type) -> None:
    assert build(model_type).recipe == "narrow"


def _rows() -> list[dict]:
    good = {"verdict": "match", "programs": 3, "seconds": 1.5, "difference": 1e-7}
    bad = {"verdict": "error", "note": "NotImplementedError: aten::frobnicate is not implemented"}
    return [
        {"name": "transformers/bert", "class": "BertModel", "stages": {"forward": good}},
        {"name": "transformers/odd", "class": "OddModel", "stages": {"forward": bad}},
        {
            "name": "diffusers/UNet2DModel",
            "class": "UNet2DModel",
            "stages": {"forward": {**good, "fallbacks": ["aten::nonzero"]}},
        },
        {"name": "transformers/far", "stages": {}, "note": "requires the timm library"},
    ]


def test_shares_and_causes() -> None:
    rows = _rows()
    assert report.share(rows, "forward") == (2, 3)
    assert report.without_fallback(rows, "forward") == 1
    assert report.fallbacks(rows) == {"aten::nonzero": ["diffusers/UNet2DModel"]}
    assert report.not_run(rows) == {"needs the package timm": ["transformers/far"]}
    assert [row["name"] for row in rows if report.is_failure(row)] == ["transformers/odd"]
    assert report.cause(rows[1]["stages"]["forward"]["note"]) == "no lowering of aten::frobnicate"


def _write(folder: pathlib.Path) -> pathlib.Path:
    pages.write(folder, _rows(), "torus", "eager")
    other = [{"name": "transformers/bert", "stages": {"forward": {"verdict": "crash"}}}]
    pages.write(folder, other, "other", "eager")
    return folder / "compatibility.html"


def test_pages(tmp_path) -> None:
    page = _write(tmp_path).read_text()
    text = (tmp_path / "compatibility.md").read_text()
    assert "| torus | forward | 3 | 2 | 66.7% | 1 | 33.3% |" in text
    assert "| torus, where other was run | forward | 1 | 1 | 100.0% | 1 | 100.0% |" in text
    assert "| other | forward | 1 | 0 | 0.0% | 0 | 0.0% |" in text
    assert "`torus compat --only transformers/odd`" in text
    assert "http" not in page.replace("http-equiv", "")
    history = records.history(tmp_path / "data" / "compatibility")
    assert [run["label"] for run in history] == ["torus", "other"]
    # The same run on the same day replaces its line.
    _write(tmp_path)
    assert len(records.history(tmp_path / "data" / "compatibility")) == 2


def _browser(playwright):
    import shutil

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if found is None:
        pytest.skip("no chromium is installed")
    return playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


def test_page_in_a_browser(tmp_path) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = _write(tmp_path)
    with api.sync_playwright() as playwright:
        browser = _browser(playwright)
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        assert page.inner_text("#count") == "4 of 4"
        page.fill("#filter", "frobnicate")
        assert page.inner_text("#count") == "1 of 4"
        assert "transformers/odd" in page.inner_text("#list tbody")
        page.click("#list tbody tr.row")
        assert "torus compat --only transformers/odd" in page.inner_text("#list .detail")
        page.fill("#filter", "")
        page.select_option("#state", "fallback")
        assert page.inner_text("#list tbody tr td:first-child") == "diffusers/UNet2DModel"
        page.select_option("#state", "")
        page.click("#causes button:has-text('timm')")
        assert page.inner_text("#count") == "1 of 4"
        page.click("#causes button:has-text('timm')")
        page.click("#list th button:has-text('architecture')")
        assert page.inner_text("#list tbody tr.row:first-child").startswith("transformers/odd")
        assert not errors
        browser.close()
