# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""`torch_tpu.training` in one process; tests/python/migrate runs it in several."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch_tpu import training


def test_one_process_counts_itself() -> None:
    assert (training.rank(), training.world_size()) == (0, 1)
    assert (training.local_rank(), training.local_world_size(), training.node_rank()) == (0, 1, 0)
    assert training.is_main()
    assert training.is_main(local=True)
    training.barrier()
    assert training.SerialExecutor().run(lambda: 7) == 7


def test_ranks_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": 5,
        "WORLD_SIZE": 8,
        "LOCAL_RANK": 1,
        "LOCAL_WORLD_SIZE": 4,
        "GROUP_RANK": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    assert (training.rank(), training.world_size()) == (5, 8)
    assert (training.local_rank(), training.local_world_size(), training.node_rank()) == (1, 4, 1)
    assert not training.is_main()


def test_print_main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    training.print_main("a", 1, flush=True)
    monkeypatch.setenv("RANK", "1")
    training.print_main("b")
    training.print_main("c", local=True)
    assert capsys.readouterr().out == "a 1\nc\n"


def test_collectives_alone_return_what_they_get() -> None:
    value = torch.arange(4.0, device="tpu")
    result = training.all_reduce("sum", value, scale=0.5)
    assert result is not value
    assert result.tolist() == [0, 1, 2, 3]
    values = [value]
    assert training.all_reduce("max", values) is values
    assert training.all_gather(value).tolist() == value.tolist()
    assert training.reduce_scatter("sum", value, scale=2.0).tolist() == [0, 2, 4, 6]
    assert training.all_to_all(value, 0, 0).tolist() == value.tolist()
    gathered = training.gather({"value": value, "name": "x"})
    assert gathered[0]["name"] == "x"
    assert gathered[0]["value"].device.type == "cpu"
    training.broadcast([value])
    training.broadcast_parameters(torch.nn.Linear(2, 2).tpu())


def test_unknown_reduction() -> None:
    with pytest.raises(ValueError, match="'mean' is none of sum, mul"):
        training.all_reduce("mean", torch.ones(1, device="tpu"))


def test_optimizer_step() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.sum().backward()
    assert training.optimizer_step(optimizer) is None
    assert weight.tolist() == [0.5] * 3

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        return loss

    assert training.optimizer_step(optimizer, closure=closure).item() == 1.5


def test_launch_of_one_runs_here() -> None:
    seen = []
    training.launch(lambda index, name: seen.append((index, name)), ("x",), nprocs=1)
    assert seen == [(0, "x")]
    with pytest.raises(ValueError, match="nprocs=0"):
        training.launch(print, nprocs=0)


def test_device_loader_moves_nested_batches() -> None:
    batches = [{"x": torch.ones(2), "more": [torch.zeros(1), "text"]} for _ in range(3)]
    loader = training.DeviceLoader(batches)
    assert len(loader) == 3
    for _ in range(2):
        moved = list(loader)
        assert len(moved) == 3
        assert all(batch["x"].is_tpu and batch["more"][0].is_tpu for batch in moved)
        assert moved[0]["more"][1] == "text"
    assert list(training.DeviceLoader([])) == []


def test_save_brings_tensors_to_the_host(tmp_path: Path) -> None:
    state = {"weight": torch.arange(3.0, device="tpu"), "step": 4}
    training.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")
    assert loaded["weight"].device.type == "cpu"
    assert loaded["weight"].tolist() == [0, 1, 2]
    assert loaded["step"] == 4


def test_only_the_first_process_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    training.save({}, tmp_path / "host.pt")
    training.save({}, tmp_path / "job.pt", per_host=False)
    training.save({}, tmp_path / "each.pt", main_only=False, per_host=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["each.pt", "host.pt"]


def test_rate_tracker() -> None:
    tracker = training.RateTracker(smoothing=0.0)
    assert tracker.rate() == 0
    tracker.add(10)
    time.sleep(0.01)
    assert 0 < tracker.rate() <= 1000
    assert tracker.rate() == 0
    assert tracker.global_rate() > 0


SHARDING = """
import torch
import pytest
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch_tpu import training

mesh = training.make_mesh((1, 1), ("data", "model"))
assert training.placements_of(mesh, ("model", None)) == [Replicate(), Shard(0)]
assert training.placements_of(mesh, (None, ("data", "model"))) == [Shard(1), Shard(1)]
assert training.placements_of(mesh, (1, 0)) == [Shard(1), Shard(0)]
for partition, text in (("x", "no axis 'x'"), ((0, "data"), "twice"), ((2,), "no axis 2")):
    with pytest.raises(ValueError, match=text):
        training.placements_of(mesh, partition)
with pytest.raises(ValueError, match="holds 2 processes, there are 1"):
    training.make_mesh((2,))
layer = torch.nn.Linear(4, 2).tpu()
with pytest.raises(ValueError, match="has 1 entries"):
    training.shard(layer.weight, mesh, ("data",))
expected = layer(torch.ones(3, 4, device="tpu")).tolist()
training.replicate_unmarked()
training.shard_parameters(layer, mesh, {"weight": ("data", None)})
assert isinstance(layer.weight, torch.nn.Parameter) and isinstance(layer.weight, DTensor)
with pytest.raises(AttributeError):
    training.shard_parameters(layer, mesh, {"none": ("data",)})
output = layer(torch.ones(3, 4, device="tpu"))
torch.testing.assert_close(training.whole(output).cpu(), torch.tensor(expected))
output.sum().backward()
assert training.whole(layer.weight.grad).tolist() == [[3.0] * 4] * 2
plain = torch.ones(2)
assert training.whole(plain) is plain
spec = training.ShardingSpec(mesh, ("data", None))
assert isinstance(spec.apply(torch.ones(4, 2, device="tpu")), DTensor)
assert not isinstance(spec.apply(plain), DTensor)
again = training.shard(output, mesh, (None, "model"))
assert again.placements == (Replicate(), Shard(1))
print("well")
"""


def test_sharding(run_python) -> None:
    # A process of its own: the group and the rule for unmarked tensors hold until it ends.
    assert run_python(SHARDING, env={"TORUS_PLATFORM": "cpu"}).stdout.strip().endswith("well")
