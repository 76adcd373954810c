# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Compilation for TPUs that are not there, by the TPU compiler itself."""

from __future__ import annotations

import pathlib
import threading
import time

import pytest
from torch_tpu import aot, platform
from torch_tpu.aot import hlo, worker
from torch_tpu.aot.sharding import Mesh, annotate, sharding

SIZE = 4096
MATMUL = f"""
func.func public @main(%a: tensor<{SIZE}x{SIZE}xbf16>, %b: tensor<{SIZE}x{SIZE}xbf16>)
    -> tensor<{SIZE}x{SIZE}xbf16> {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<{SIZE}x{SIZE}xbf16>, tensor<{SIZE}x{SIZE}xbf16>) -> tensor<{SIZE}x{SIZE}xbf16>
  return %0 : tensor<{SIZE}x{SIZE}xbf16>
}}
"""
ADD = """
func.func public @main(%a: tensor<8x128xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<8x128xf32>)
    -> tensor<8x128xf32> {
  %0 = stablehlo.add %a, %b : tensor<8x128xf32>
  return %0 : tensor<8x128xf32>
}
"""
# Each device holds two rows; the sum over all rows needs an all-reduce.
SHARDED = """
module @m attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<16x4xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
      -> (tensor<4xf32> {mhlo.sharding = "{replicated}"}) {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
        : (tensor<16x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""
LARGE = 1 << 20
HUGE = f"""
func.func public @main(%a: tensor<{LARGE}x{LARGE}xf32>) -> tensor<{LARGE}x{LARGE}xf32> {{
  return %a : tensor<{LARGE}x{LARGE}xf32>
}}
"""

pytestmark = pytest.mark.usefixtures("libtpu")


def test_describe_tells_where_devices_are() -> None:
    v6e = aot.describe("v6e:2x2")
    assert (v6e.device_count, v6e.chip_count) == (4, 4)
    assert v6e.device_kind == "TPU v6 lite"
    assert sorted(c[:2] for c in v6e.coords) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert 30e9 < v6e.memory_bytes < 36e9
    assert v6e.platform_version
    tpu7x = aot.describe("tpu7x:2x2x1")
    assert (tpu7x.device_count, tpu7x.chip_count) == (8, 4)
    assert set(tpu7x.cores) == {0, 1}


@pytest.mark.parametrize("name", ["nonsense", "v6e:2x2x2x2", "v6e:0x1", "", "v6e\n:2x2"])
def test_an_unknown_topology_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="topology"):
        aot.describe(name)


@pytest.mark.parametrize("topology", ["v6e:2x2", "tpu7x:2x2x1"])
def test_figures_of_a_product_agree_with_the_formula(topology: str) -> None:
    compiled = aot.compile_text(MATMUL, topology)
    array = SIZE * SIZE * 2
    assert compiled.cost["flops"] == pytest.approx(2 * SIZE**3, rel=0.01)
    assert compiled.cost["bytes accessed"] >= 3 * array
    assert compiled.cost["optimal_seconds"] > 0
    memory = compiled.memory
    assert memory is not None
    assert memory.argument_bytes == 2 * array
    assert memory.output_bytes == array
    assert memory.alias_bytes == 0
    assert memory.peak_bytes is None or memory.peak_bytes >= 3 * array
    assert memory.total_bytes >= 3 * array
    assert len(compiled.serialized) > 10_000
    assert compiled.seconds > 0


def test_donated_arguments_are_counted_as_aliases() -> None:
    memory = aot.compile_text(ADD, "v6e:2x2", serialize=False).memory
    assert memory is not None
    assert memory.alias_bytes == memory.output_bytes > 0


def test_a_partitioned_program_has_its_collective() -> None:
    compiled = aot.compile_text(SHARDED, "tpu7x:2x2x1", num_partitions=8)
    module = hlo.Module(compiled.optimized)
    assert module.collective_counts() == {"all-reduce": 1}
    (collective,) = module.collectives
    assert (collective.bytes, collective.group_size, collective.times) == (16, 8, 1)
    assert collective.sent_bytes == 2 * 16 * 7 / 8
    assert "all-reduce" in module.text()


def test_one_program_for_512_devices() -> None:
    mesh = Mesh({"fsdp": 64, "model": 8})
    shardings = {
        0: sharding(mesh, ("fsdp",), 2),
        1: sharding(mesh, ("fsdp", "model"), 2),
    }
    text = annotate(MATMUL, shardings, mesh.size)
    compiled = aot.compile_text(text, "tpu7x:4x8x8", num_partitions=mesh.size, serialize=False)
    assert compiled.cost["flops"] == pytest.approx(2 * SIZE**3 / mesh.size, rel=0.01)
    assert compiled.memory is not None
    assert compiled.memory.argument_bytes == SIZE * SIZE * 2 // 64 + SIZE * SIZE * 2 // 512
    assert "all-gather" in hlo.Module(compiled.optimized).collective_counts()


def test_what_the_compiler_refuses_says_why_and_for_what() -> None:
    with pytest.raises(aot.CompilationRefused, match="v6e:2x2") as raised:
        aot.compile_text("func.func public @main() { nonsense }", "v6e:2x2")
    assert raised.value.code not in ("OK", "ABORTED")
    assert raised.value.topology == "v6e:2x2"
    assert "Source Location" not in str(raised.value)
    assert aot.compile_text(ADD, "v6e:2x2", serialize=False).cost


def test_too_large_a_program_is_told_from_a_wrong_one() -> None:
    with pytest.raises(aot.CompilationRefused, match="does not fit") as raised:
        aot.compile_text(HUGE, "v6e:2x2")
    assert raised.value.code == "RESOURCE_EXHAUSTED"


def test_more_partitions_than_devices_are_refused() -> None:
    with pytest.raises(aot.CompilationRefused, match="8 partitions do not fit on 4 devices"):
        aot.compile_text(SHARDED, "v6e:2x2", num_partitions=8)


def test_unknown_options_are_refused_and_known_ones_kept() -> None:
    with pytest.raises(aot.CompilationRefused, match="no_such_option"):
        aot.compile_text(ADD, "v6e:2x2", options={"no_such_option": True})
    options = {"xla_tpu_scoped_vmem_limit_kib": 16384}
    compiled = aot.compile_text(ADD, "v6e:2x2", options=options, serialize=False)
    assert compiled.options == {"xla_tpu_scoped_vmem_limit_kib": "16384"}
    with pytest.raises(ValueError, match="single line"):
        aot.compile_text(ADD, "v6e:2x2", options={"xla_a": "b;c=d"})


def test_the_compiler_is_not_loaded_into_this_process() -> None:
    aot.compile_text(ADD, "v6e:2x2", serialize=False)
    assert "libtpu" not in pathlib.Path("/proc/self/maps").read_text("utf-8")


def test_death_of_the_compiler_is_an_exception_and_no_end() -> None:
    own = worker.shared()
    own.request([("topology", "v6e:2x2")])

    def kill() -> None:
        time.sleep(0.2)
        process = own._process
        assert process is not None
        process.kill()

    killer = threading.Thread(target=kill)
    killer.start()

    def compile_until_it_fails() -> None:
        while True:
            aot.compile_text(MATMUL, "v6e:2x2", serialize=False)

    with pytest.raises(aot.CompilationRefused, match="ended in the middle") as raised:
        compile_until_it_fails()
    killer.join()
    assert raised.value.code == "ABORTED"
    assert aot.compile_text(ADD, "v6e:2x2", serialize=False).cost


def test_a_compilation_can_be_given_up() -> None:
    with pytest.raises(TimeoutError):
        aot.compile_text(MATMUL, "v6e:2x2", timeout=0.01)
    assert aot.compile_text(ADD, "v6e:2x2", serialize=False).cost


def test_a_missing_compiler_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORUS_LIBTPU_PATH", "/nowhere/libtpu.so")
    with pytest.raises(aot.LibtpuMissing, match="TORUS_LIBTPU_PATH"):
        aot.compile_text(ADD, "v6e:2x2")
    monkeypatch.delenv("TORUS_LIBTPU_PATH")
    monkeypatch.setattr(platform, "_LIBTPU", (("libtpu", "nowhere/libtpu.so"),))
    with pytest.raises(aot.LibtpuMissing, match="pip install libtpu"):
        aot.compile_text(ADD, "v6e:2x2")
