# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The command ``torus check``, with the real compiler where it is installed."""

from __future__ import annotations

import json
import math
import pathlib
import re

import pytest
import torch
from torch_tpu.aot import topologies
from torus import cli
from torus.check import hints, plan, runner, source, step

CONFIGS = pathlib.Path(__file__).parents[3] / "examples" / "configs"
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
}


@pytest.fixture
def libtpu() -> None:
    """Skip the test where libtpu is not installed."""
    if not topologies.is_available():
        pytest.skip("libtpu is not installed (pip install libtpu; no TPU is needed)")


@pytest.fixture
def tiny(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write a small Llama's configuration."""
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY), "utf-8")
    return folder


@pytest.fixture
def matmul(tmp_path: pathlib.Path) -> str:
    """Write a file whose function makes one product."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    layer = torch.nn.Linear(1024, 4096, bias=False, dtype=torch.bfloat16)\n"
        "    return layer, (torch.zeros(512, 1024, dtype=torch.bfloat16),)\n"
        "def wrong():\n"
        "    return 3\n"
        "def sized():\n"
        "    return (lambda x: x[x > 0] if x.sum() > 0 else x), (torch.zeros(8),)\n",
        "utf-8",
    )
    return str(file)


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    status = cli.main(["check", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


# ---- without a compiler ----


def lower(folder: pathlib.Path, request: step.Request):
    return step.lower(source.find(str(folder)), request)


def test_forward_has_the_parameters_and_the_products(tiny: pathlib.Path) -> None:
    model, lowered = lower(tiny, step.Request("forward", 2, 64))
    by_name = {slot.name: slot for slot in lowered.inputs}
    names = {name for name, _ in model.named_parameters()}
    assert names <= set(by_name)
    assert by_name["input_ids"].shape == (2, 64)
    assert [math.prod(out.shape) for out in lowered.outputs] == [2 * 64 * 1000]
    assert not lowered.fallbacks


def test_causal_attention_takes_no_mask(tiny: pathlib.Path) -> None:
    for request in (step.Request("forward", 4, 64), step.Request("train", 4, 64, remat=True)):
        _, lowered = lower(tiny, request)
        gathers = re.findall(r'"stablehlo.gather".*-> tensor<(\S+)x\w+>', lowered.text)
        assert all(shape.count("x") < 3 for shape in gathers)


def test_training_keeps_its_states_in_place(tiny: pathlib.Path) -> None:
    model, lowered = lower(tiny, step.Request("train", 2, 64))
    parameters = dict(model.named_parameters())
    donated = {lowered.inputs[i].name for i in lowered.donated}
    assert set(parameters) <= donated
    assert {f"{name}.exp_avg" for name in parameters} <= donated
    assert not any(out.name.endswith(".grad") for out in lowered.outputs)


def test_decoding_writes_its_cache_in_place(tiny: pathlib.Path) -> None:
    _, lowered = lower(tiny, step.Request("decode", 3, 128))
    caches = [lowered.inputs[i] for i in lowered.donated]
    assert sum(slot.shape == (3, 2, 128, 32) for slot in caches) == 4
    fresh = [out for out in lowered.outputs if out.alias is None]
    assert [math.prod(out.shape) for out in fresh] == [3 * 1000]


def test_mixed_precision_computes_in_bfloat16(tiny: pathlib.Path) -> None:
    from torus.check.analysis import analyse

    model, lowered = lower(tiny, step.Request("train", 2, 64, "mixed"))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    found = analyse(lowered.text)
    assert found.products["bf16"] > 0.9 * found.flops


def test_recomputed_layers_are_kept_apart(tiny: pathlib.Path) -> None:
    from torus.check.analysis import analyse

    _, once = lower(tiny, step.Request("train", 2, 64))
    _, twice = lower(tiny, step.Request("train", 2, 64, remat=True))
    assert "optimization_barrier" not in once.text
    assert analyse(twice.text).operations["optimization_barrier"] >= TINY["num_hidden_layers"]
    # The layers' forward products come a second time; those of the head and the gradients do not.
    assert 1.1 < analyse(twice.text).flops / analyse(once.text).flops < 4 / 3


def test_plans_pin_activations(tiny: pathlib.Path) -> None:
    _, lowered = lower(tiny, step.Request("train", 8, 64))
    made = plan.make("fsdp", 8, 8)
    text = made.apply(made.pinned(lowered))
    assert "mhlo.num_partitions = 8" in text
    pinned = re.findall(r"@Sharding.*devices=\[([\d,]+)\].*: \(tensor<(\d+)x", text)
    assert len(pinned) > 20
    assert all(tiles.startswith("8,1") and int(rows) % 8 == 0 for tiles, rows in pinned)
    assert plan.make("none", 8, 8).apply(lowered) == lowered.text


def test_hints(tiny: pathlib.Path) -> None:
    from torus.check.analysis import analyse

    found = source.find(str(tiny))
    request = step.Request("forward", 3, 50, "float32")
    _, lowered = step.lower(found, request)
    made = plan.make("fsdp", 4, 3)
    said = hints.find(found.config, request, lowered, analyse(lowered.text), made)
    for words in ("head dimension 32", "vocabulary 1000", "batch 3", "150 rows", "float32"):
        assert any(words in hint for hint in said), words


def test_a_value_needed_on_the_host_is_named(matmul: str, capsys) -> None:
    if not topologies.is_available():
        pytest.skip("libtpu is not installed (pip install libtpu; no TPU is needed)")
    status, report = check(capsys, f"{matmul}:sized", "--topology", "v6e:2x2")
    assert status == 1
    assert report["missing"][0]["line"].startswith("mine.py") or report["missing"][0]["operator"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no/such/folder/at all", "no folder"),
        ("nobody.py:make", "no file nobody.py"),
        ("{matmul}:nothing", "no function 'nothing'"),
        ("{folder}", "neither config.json nor model_index.json"),
    ],
)
def test_wrong_models(model: str, words: str, matmul: str, tmp_path, capsys) -> None:
    named = model.format(matmul=matmul, folder=tmp_path)
    assert cli.main(["check", named]) == 2
    assert words in capsys.readouterr().err


def test_without_the_compiler_it_still_lowers(
    tiny: pathlib.Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORUS_LIBTPU_PATH", "/no/such/libtpu.so")
    topologies.describe.cache_clear()
    status, report = check(capsys, str(tiny), "--seq", "64", "--topology", "v6e:2x2")
    assert status == 1
    assert "libtpu" in report["problem"]
    assert report["analysis"]["flops"] > 0
    assert report["hints"]
    assert not report["results"]


def test_a_pipeline_has_parts(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "P"}', "utf-8")
    (tmp_path / "text_encoder").mkdir()
    (tmp_path / "text_encoder" / "config.json").write_text(json.dumps(TINY), "utf-8")
    assert source.find(str(tmp_path), "text_encoder").name == "P.text_encoder"
    with pytest.raises(source.SourceError, match="text_encoder"):
        source.find(str(tmp_path))


def test_every_example_configuration_is_understood() -> None:
    paths = sorted(CONFIGS.glob("*.json"))
    assert len(paths) >= 7
    for path in paths:
        if "_class_name" in path.read_text("utf-8"):
            pytest.importorskip("diffusers")
        assert source.find(str(path)).name == path.stem


def test_help_has_examples(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    assert "torus check examples/configs/llama-3-8b.json" in capsys.readouterr().out


# ---- with the compiler ----


@pytest.mark.usefixtures("libtpu")
def test_a_plain_product_agrees_with_arithmetic(matmul: str, capsys, tmp_path) -> None:
    page = tmp_path / "report.html"
    status, report = check(
        *(capsys, f"{matmul}:make", "--topology", "v6e:2x2", "--topology", "tpu7x:2x2x1"),
        *("--html", str(page), "--save", str(tmp_path / "kept")),
    )
    assert status == 0
    flops, size = 2 * 512 * 1024 * 4096, 2 * (512 * 1024 + 1024 * 4096)
    assert report["analysis"]["flops"] == flops
    for result, peak in zip(report["results"], (918e12, 2307e12 / 2), strict=True):
        assert result["compiler_flops"] == pytest.approx(flops, rel=0.01)
        assert result["argument_bytes"] == pytest.approx(size, rel=0.01)
        assert result["output_bytes"] == pytest.approx(2 * 512 * 4096, rel=0.01)
        assert result["compute_seconds"] == pytest.approx(flops / peak, rel=0.01)
        assert result["peak_bytes"] < result["capacity_bytes"]
        assert pathlib.Path(result["saved"]).stat().st_size > 0
    text = page.read_text("utf-8")
    assert text.count("<svg") == 2
    assert "tpu7x:2x2x1" in text


@pytest.mark.usefixtures("libtpu")
def test_sharded_training_of_a_small_model(tiny: pathlib.Path, capsys) -> None:
    status, report = check(
        *(capsys, str(tiny), "--mode", "train", "--shard", "fsdp", "--seq", "128"),
        *("--topology", "v6e:2x2"),
    )
    assert status == 0
    (result,) = report["results"]
    assert (result["partitions"], result["batch"]) == (4, 4)
    kinds = {exchange["kind"] for exchange in result["exchanges"]}
    assert "all-gather" in kinds
    assert result["sent_bytes"] > 0
    states = report["optimizer_bytes"] + report["parameter_bytes"]
    assert result["argument_bytes"] < 0.6 * states


@pytest.mark.usefixtures("libtpu")
def test_what_does_not_fit_says_how_much_it_needs(tmp_path: pathlib.Path, capsys) -> None:
    file = tmp_path / "large.py"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    with torch.device('tpu'):\n"
        "        x = torch.zeros(1 << 33, dtype=torch.float32)\n"
        "    return (lambda x: x + 1), (x,)\n",
        "utf-8",
    )
    assert cli.main(["check", f"{file}:make", "--topology", "v6e:2x2"]) == 1
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "too large" in said
    assert "of a device's 31.2 GiB of HBM" in said
    assert "what may help" in said


@pytest.mark.usefixtures("libtpu")
def test_scaling(tiny: pathlib.Path, capsys) -> None:
    status, report = check(
        *(capsys, str(tiny), "--seq", "64", "--scaling", "1,4", "--topology", "v6e:2x2")
    )
    assert status == 0
    one, four = report["results"]
    assert (one["chips"], four["chips"]) == (1, 4)
    assert four["argument_bytes"] < one["argument_bytes"]
    assert four["batch"] == 4
    assert one["sent_bytes"] == 0
    assert 0 < four["efficiencies"][1] <= four["efficiencies"][0] <= 1


def test_options_have_their_defaults() -> None:
    options = runner.Options(("v6e:2x2",))
    assert options.request(3) == step.Request("forward", 3, 512, "bfloat16", False)


def test_layers_as_loops_take_the_same_arguments(
    libtpu: None, tmp_path: pathlib.Path, capsys
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 6}), "utf-8")
    common = (str(tmp_path), "--seq", "64", "--topology", "v6e:1x1", "--roll")
    _, plain = check(capsys, *common, "never")
    status, rolled = check(capsys, *common, "always")
    assert status == 0
    before, after = plain["results"][0], rolled["results"][0]
    assert before["loops"] == []
    assert [rounds for rounds, _ in after["loops"]] == [6]
    assert after["argument_bytes"] == pytest.approx(before["argument_bytes"], rel=0.1)
    assert after["flops"] == before["flops"]
    assert after["compiler_seconds"] > 0
    assert 0.5 < after["compiler_bytes"] / before["compiler_bytes"] < 2


def test_exchanges_in_loops_count_in_each_round(
    libtpu: None, tmp_path: pathlib.Path, capsys
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 5}), "utf-8")
    status, report = check(
        capsys, str(tmp_path), "--seq", "64", "--shard", "fsdp", "--roll", "always",
        "--topology", "v5e:2x2",
    )  # fmt: skip
    assert status == 0
    result = report["results"][0]
    assert result["loops_with_exchanges"] == 0
    gathered = sum(t["count"] for t in result["exchanges"] if t["kind"] == "all-gather")
    assert gathered >= 5 * 7  # projections of each layer
