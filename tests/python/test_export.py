# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Exported programs: text, files, executables."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest
import torch
from torch_tpu import export as tpu_export

DEVICE = torch.device("tpu")


class Model(torch.nn.Module):
    """Has parameters, a buffer that is read and one that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> dict[str, object]:
        self.calls += 1
        y = self.linear(x) * self.scale
        return {"y": y if shift is None else y + shift, "rows": (y.t(), 7), "none": None}


def _expected(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.linear(x) * model.scale


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def test_a_torch_export_program_runs(model: Model) -> None:
    x = torch.randn(2, 4)
    exported = tpu_export.export(torch.export.export(model, (x,)))
    assert exported.text.count("func.func public @main") == 1
    assert "linear.weight" in exported.state
    for _ in range(2):
        x = torch.randn(2, 4)
        result = exported(x)
        torch.testing.assert_close(result["y"].cpu(), _expected(model, x))
        torch.testing.assert_close(result["rows"][0].cpu(), _expected(model, x).t())
        assert (result["rows"][1], result["none"]) == (7, None)
    assert exported.state["calls"].item() == 2
    assert model.calls.item() == 0


def test_the_program_that_is_given_stays_as_it_is(model: Model) -> None:
    program = torch.export.export(model, (torch.randn(2, 4),))
    tpu_export.export(program)
    assert {t.device.type for t in program.state_dict.values()} == {"cpu"}
    x = torch.randn(2, 4)
    torch.testing.assert_close(program.module()(x)["y"], _expected(model, x))


def test_arguments_may_be_called_as_python_names_things() -> None:
    class Named(torch.nn.Module):
        def forward(self, input: torch.Tensor, *, float: torch.Tensor) -> torch.Tensor:  # noqa: A002
            return input + float + torch.arange(2, device=input.device)

    one = torch.ones(2)
    exported = tpu_export.export(torch.export.export(Named(), (one,), {"float": one}))
    assert exported(one, float=one).tolist() == [2, 3]


def test_a_module_with_keyword_arguments_runs(model: Model) -> None:
    model.to(DEVICE)
    x, shift = torch.randn(2, 4), torch.randn(3)
    exported = tpu_export.export(model, (x,), {"shift": shift})
    got = exported(x, shift=shift)["y"].cpu()
    torch.testing.assert_close(got, _expected(model, x.to(DEVICE)).cpu() + shift)
    assert model.calls.item() == 0


def test_save_and_load(model: Model, tmp_path: pathlib.Path) -> None:
    x = torch.randn(2, 4)
    exported = tpu_export.export(torch.export.export(model, (x,)))
    target = exported.compile()
    assert target == tpu_export.Target.here()
    path = tmp_path / "model.torus"
    exported.save(path)
    before = torch.tpu.metrics()["compilations"]
    loaded = tpu_export.load(path)
    assert loaded.targets == [target]
    assert loaded.text == exported.text
    torch.testing.assert_close(loaded(x)["y"].cpu(), _expected(model, x))
    assert torch.tpu.metrics()["compilations"] == before
    assert loaded.state["calls"].item() == 1


def test_another_process_needs_nothing_of_the_model(model: Model, tmp_path: pathlib.Path) -> None:
    x = torch.randn(2, 4)
    exported = tpu_export.export(torch.export.export(model, (x,)))
    exported.compile()
    exported.save(tmp_path / "model.torus")
    torch.save({"x": x, "y": _expected(model, x).detach()}, tmp_path / "data.pt")
    code = (
        "import torch, torch_tpu.export as e\n"
        "data = torch.load('data.pt')\n"
        "torch.testing.assert_close(e.load('model.torus')(data['x'])['y'].cpu(), data['y'])\n"
        "assert torch.tpu.metrics()['compilations'] == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr


def test_a_file_without_executable_is_compiled_here(model: Model, tmp_path: pathlib.Path) -> None:
    x = torch.randn(2, 4)
    tpu_export.export(torch.export.export(model, (x,))).save(tmp_path / "text.torus")
    torch.testing.assert_close(
        tpu_export.load(tmp_path / "text.torus")(x)["y"].cpu(), _expected(model, x)
    )


def _change_manifest(path: pathlib.Path, **changes: object) -> None:
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(parts["manifest.json"])
    for name, value in changes.items():
        if name in manifest:
            manifest[name] = value
        else:
            manifest["targets"][0][name] = value
    parts["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)


@pytest.mark.parametrize(
    "change", [{"version": "0.0"}, {"platform": "tpu", "topology": "v6e:2x2"}, {"device_kind": "x"}]
)
def test_executables_of_others_are_refused(
    model: Model, tmp_path: pathlib.Path, change: dict[str, object]
) -> None:
    x, path = torch.randn(2, 4), tmp_path / "model.torus"
    exported = tpu_export.export(torch.export.export(model, (x,)))
    exported.compile()
    exported.save(path)
    _change_manifest(path, **change)
    loaded = tpu_export.load(path)
    with pytest.raises(tpu_export.IncompatibleExecutable, match="this process runs") as caught:
        loaded(x)
    assert str(next(iter(change.values()))) in str(caught.value)
    loaded.compile()
    torch.testing.assert_close(loaded(x)["y"].cpu(), _expected(model, x))


def test_files_that_are_none_are_refused(model: Model, tmp_path: pathlib.Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(ValueError, match="not an exported program"):
        tpu_export.load(tmp_path / "junk")
    path = tmp_path / "newer"
    tpu_export.export(torch.export.export(model, (torch.randn(2, 4),))).save(path)
    _change_manifest(path, format=99)
    with pytest.raises(ValueError, match="update torus-tpu"):
        tpu_export.load(path)


def test_damaged_files_are_refused(model: Model, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.torus"
    tpu_export.export(torch.export.export(model, (torch.randn(2, 4),))).save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        bad = bytearray(whole)
        bad[place] ^= 0x55
        path.write_bytes(bad)
        try:  # names and dates of members may differ without harm
            assert tpu_export.load(path).text
        except ValueError as error:
            assert "damaged" in str(error)  # noqa: PT017
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match="damaged"):
            tpu_export.load(path)
    for change in ({"inputs": [{}]}, {"result": "junk"}, {"targets": [{"what": 1}]}):
        path.write_bytes(whole)
        _change_manifest(path, **change)
        with pytest.raises(ValueError, match="damaged"):
            tpu_export.load(path)


def test_saving_replaces_a_file_as_a_whole(model: Model, tmp_path: pathlib.Path) -> None:
    exported = tpu_export.export(lambda x: {"y": x + 1, "what": object()}, (torch.randn(2),))
    (tmp_path / "f").write_bytes(b"before")
    with pytest.raises(ValueError, match="contains a object"):
        exported.save(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_written_to_arguments_is_written() -> None:
    def step(x: torch.Tensor, cache: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        cache[1] += x
        other.fill_(3)
        return cache.sum()

    exported = tpu_export.export(step, (torch.ones(2), torch.zeros(3, 2), torch.zeros(2)))
    cache, other = torch.zeros(2, 3).t(), torch.zeros(2, device=DEVICE)
    assert exported(torch.ones(2), cache, other).item() == 2
    assert exported(torch.ones(2), cache, other).item() == 4
    assert cache.tolist() == [[0, 0], [2, 2], [0, 0]]
    assert other.tolist() == [3, 3]


def test_layouts_of_weights_and_arguments_do_not_matter() -> None:
    class Strided(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.randn(30, device=DEVICE)
            self.register_buffer("turned", flat[6:18].view(3, 4).t())
            self.conv = torch.nn.Conv2d(2, 2, 1).to(DEVICE, memory_format=torch.channels_last)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x @ self.turned, self.conv(y)

    model, x, y = Strided(), torch.randn(4, 3).t(), torch.randn(1, 2, 3, 3)
    exported = tpu_export.export(model, (x, y.to(memory_format=torch.channels_last)))
    for args in ((x, y), (torch.randn(9, 4)[::3], torch.randn(1, 3, 3, 2).permute(0, 3, 1, 2))):
        want = model(*(t.to(DEVICE) for t in args))
        for a, b in zip(exported(*args), want, strict=True):
            torch.testing.assert_close(a.cpu(), b.detach().cpu())


def test_tpus_get_a_form_of_their_own(tmp_path: pathlib.Path) -> None:
    x = torch.randn(8, 8, dtype=torch.bfloat16)
    exported = tpu_export.export(torch.matmul, (x, x))
    assert "(tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xf32>" in exported.tpu_text
    assert exported.tpu_text != exported.text
    exported.save(tmp_path / "f")
    assert tpu_export.load(tmp_path / "f").tpu_text == exported.tpu_text
    torch.testing.assert_close(exported(x, x).cpu(), x @ x)


def test_tensors_from_elsewhere_are_refused() -> None:
    other = torch.ones(3, device=DEVICE)
    with pytest.raises(ValueError, match="neither an argument nor a parameter"):
        tpu_export.export(lambda x: x + other, (torch.ones(3),))


def test_wrong_arguments_are_refused(model: Model) -> None:
    exported = tpu_export.export(torch.export.export(model, (torch.randn(2, 4),)))
    with pytest.raises(ValueError, match="exported without arg1"):
        exported(torch.randn(2, 4), 5)
    scaled = tpu_export.export(lambda x, by: x * by, (torch.ones(2), 3))
    with pytest.raises(ValueError, match="arg1 must be 3, got 4"):
        scaled(torch.ones(2), 4)
    for wrong in (torch.randn(3, 4), torch.randn(4, 2), torch.randn(2, 4, dtype=torch.float64), 1):
        with pytest.raises(ValueError, match="arg0 must be a tensor"):
            exported(wrong)
    with pytest.raises(ValueError, match="also needs arg0"):
        exported()


def test_random_numbers_go_on() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    x = torch.zeros(8, device=DEVICE)
    exported = tpu_export.export(noisy, (x,))
    torch.manual_seed(3)
    want = [noisy(x).cpu() for _ in range(2)]
    torch.manual_seed(3)
    got = [exported(x).cpu() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_text_of_programs_and_graphs(model: Model) -> None:
    program = torch.export.export(model, (torch.randn(2, 4),))
    assert "stablehlo.dot_general" in tpu_export.exported_to_mlir(program)
    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x) * 2)
    assert "stablehlo.maximum" in tpu_export.fx_to_mlir(graph, (torch.randn(2),))


def test_an_executable_for_a_topology(model: Model, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch_tpu.aot.topologies")
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TORUS_LIBTPU_PATH"):
        pytest.skip("libtpu is not installed")
    exported = tpu_export.export(torch.export.export(model, (torch.randn(2, 4),)))
    target = exported.compile("v6e:2x2")
    assert (target.platform, target.topology) == ("tpu", "v6e:2x2")
    exported.save(tmp_path / "model.torus")
    with pytest.raises(tpu_export.IncompatibleExecutable, match="v6e:2x2"):
        tpu_export.load(tmp_path / "model.torus")(torch.randn(2, 4))
