# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Shardings as texts, plans by names, and programs with both."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
from torch_tpu import aot
from torch_tpu.aot import hlo, plans
from torch_tpu.aot.sharding import Mesh, annotate, local_shape, parse, sharding, shardings_in

PROGRAM = """module @torus {
func.func public @main(%a: tensor<16x8xf32> {tf.aliasing_output = 1 : i32}, %b: tensor<8x8xf32>) \
-> (tensor<f32>, tensor<16x8xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<16x8xf32>, \
tensor<8x8xf32>) -> tensor<16x8xf32>
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 1] : \
(tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
  return %1, %0 : tensor<f32>, tensor<16x8xf32>
}
}
"""


@pytest.mark.parametrize(
    ("axes", "spec", "rank", "text"),
    [
        ({"x": 8}, ("x", None), 2, "{devices=[8,1]<=[8]}"),
        ({"x": 8}, (None, "x"), 2, "{devices=[1,8]<=[8]}"),
        ({"x": 8}, (), 3, "{replicated}"),
        ({"x": 1}, ("x",), 1, "{replicated}"),
        ({"x": 2, "y": 4}, ("x", "y"), 2, "{devices=[2,4]<=[8]}"),
        ({"x": 2, "y": 4}, ("y", "x"), 2, "{devices=[4,2]<=[2,4]T(1,0)}"),
        ({"x": 2, "y": 4}, (("x", "y"),), 2, "{devices=[8,1]<=[8]}"),
        ({"x": 2, "y": 4}, (("y", "x"),), 1, "{devices=[8]<=[2,4]T(1,0)}"),
        ({"x": 2, "y": 4}, ("x",), 1, "{devices=[2,4]<=[8] last_tile_dim_replicate}"),
        (
            {"x": 2, "y": 4},
            (None, "y"),
            2,
            "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
        ),
        ({"x": 1, "y": 4, "z": 1}, ("y",), 1, "{devices=[4]<=[4]}"),
    ],
)
def test_a_spec_has_the_compilers_spelling(axes, spec, rank, text) -> None:
    assert sharding(Mesh(axes), spec, rank) == text


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (("x", "x"), "twice"),
        (("nowhere",), "no 'nowhere'"),
        (("x", None, None), "more entries"),
    ],
)
def test_a_wrong_spec_is_named(spec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sharding(Mesh({"x": 2, "y": 4}), spec, 2)
    with pytest.raises(ValueError, match="size 0"):
        Mesh({"x": 0})


def test_local_shapes_divide_evenly_or_raise() -> None:
    mesh = Mesh({"x": 2, "y": 4})
    assert local_shape(mesh, ("x", "y"), (6, 8, 3)) == (3, 2, 3)
    assert local_shape(mesh, (("x", "y"),), (16,)) == (2,)
    with pytest.raises(ValueError, match=r"dimension 1 .* 4 equal parts over y"):
        local_shape(mesh, ("x", "y"), (6, 6))


def test_reading_gives_the_devices_that_the_mesh_says() -> None:
    mesh = Mesh({"x": 2, "y": 3, "z": 2})
    choices = [None, "x", "y", "z", ("x", "z"), ("z", "x"), ("y", "x")]
    for spec in itertools.product(choices, repeat=2):
        names = [n for e in spec if e for n in ((e,) if isinstance(e, str) else e)]
        if len(set(names)) < len(names):
            continue
        parts, devices = parse(sharding(mesh, spec, 2), 2)
        if not devices:
            assert not names
            continue
        copies = mesh.size // math.prod(parts)
        for place, device in enumerate(devices):
            tile = place // copies
            where = mesh.coordinates(device)
            wanted = 0
            for entry in spec:
                for name in (entry,) if isinstance(entry, str) else entry or ():
                    wanted = wanted * mesh.axes[name] + where[name]
            assert tile == wanted, (spec, place, device)


def test_reading_refuses_what_it_does_not_understand() -> None:
    for text in ("{manual}", "{devices=[2,2]0,1,2,3}", "{devices=[4]<=[8]}", ""):
        with pytest.raises(ValueError, match=r"sharding|fit"):
            parse(text, 1)


def test_annotated_programs_keep_aliases_and_shard_their_results_alike() -> None:
    text = annotate(PROGRAM, {0: "{devices=[8,1]<=[8]}", 1: "{replicated}"}, 8)
    assert dict(shardings_in(text)) == {0: "{devices=[8,1]<=[8]}", 1: "{replicated}"}
    assert "mhlo.num_partitions = 8" in text
    first, _, rest = text.partition(") -> (")
    assert 'mhlo.sharding = "{devices=[8,1]<=[8]}", tf.aliasing_output = 1 : i32' in first
    results = rest.partition(") {\n")[0]
    assert results == 'tensor<f32>, tensor<16x8xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}'
    assert text.partition(") {\n")[2] == PROGRAM.partition(") {\n")[2]


def test_annotating_again_replaces() -> None:
    once = annotate(PROGRAM, {0: "{replicated}"}, 8, {0: "{replicated}"})
    again = annotate(once, {0: "{devices=[8,1]<=[8]}"}, 8)
    assert dict(shardings_in(again)) == {0: "{devices=[8,1]<=[8]}"}
    assert again.count("aliasing_output") == 1


@pytest.mark.parametrize(
    "signature",
    [
        "@main() -> tensor<2xf32> {\n",
        "@main() -> (tensor<2xf32>) {\n",
        "@main(%a: tensor<?xf32, #stablehlo.bounds<4>>) -> tensor<2xf32> {\n",
        '@main(%a: tensor<2xf32> {a.b = "x, (y) {", c.d = [1, 2]}) -> (tensor<2xf32> {e.f}) {\n',
    ],
)
def test_signatures_of_every_form_are_understood(signature: str) -> None:
    text = f"func.func public {signature}  return %a : tensor<2xf32>\n}}\n"
    has_argument = "%a" in signature
    shardings = {0: "{replicated}"} if has_argument else {}
    out = annotate(text, shardings, 2, {0: "{devices=[2]<=[2]}"})
    assert out.endswith(") {\n  return %a : tensor<2xf32>\n}\n")
    assert '-> (tensor<2xf32> {mhlo.sharding = "{devices=[2]<=[2]}"' in out
    assert dict(shardings_in(out)) == shardings


def test_what_cannot_be_annotated_is_named() -> None:
    with pytest.raises(ValueError, match=r"no func\.func public @main"):
        annotate("module {}", {}, 2)
    with pytest.raises(ValueError, match="2 arguments, but no argument 2"):
        annotate(PROGRAM, {2: "{replicated}"}, 2)
    with pytest.raises(ValueError, match="2 results, but no result 5"):
        annotate(PROGRAM, {}, 2, {5: "{replicated}"})


@pytest.mark.usefixtures("libtpu")
def test_an_annotated_program_compiles_with_its_collective() -> None:
    mesh = Mesh({"data": 2, "model": 4})
    shardings = {0: sharding(mesh, ("data",), 2), 1: sharding(mesh, (None, "model"), 2)}
    compiled = aot.compile_text(annotate(PROGRAM, shardings, 8), "tpu7x:2x2x1", num_partitions=8)
    kinds = hlo.Module(compiled.optimized).collective_counts()
    assert "all-reduce" in kinds
    assert compiled.memory is not None
    assert compiled.memory.alias_bytes > 0
    assert compiled.memory.argument_bytes < (16 * 8 + 8 * 8) * 4 * 8


class Input(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: str = "parameter"


LLAMA = [
    Input("model.embed_tokens.weight", (32000, 4096)),
    Input("model.layers.0.self_attn.q_proj.weight", (4096, 4096)),
    Input("model.layers.0.self_attn.o_proj.weight", (4096, 4096)),
    Input("model.layers.0.self_attn.q_norm.weight", (128,)),
    Input("model.layers.0.mlp.up_proj.weight", (14336, 4096)),
    Input("model.layers.0.mlp.down_proj.weight", (4096, 14336)),
    Input("model.layers.0.mlp.down_proj.weight.exp_avg", (4096, 14336), "buffer"),
    Input("model.layers.0.mlp.experts.gate_up_proj", (64, 4096, 1024)),
    Input("model.rotary_emb.inv_freq", (64,), "buffer"),
    Input("input_ids", (16, 2048), "argument"),
    Input("past_key_values.0.key", (16, 8, 2048, 128), "argument"),
    Input("random0", (2,), "random"),
]


def specs(style: str, count: int) -> dict[str, list[int]]:
    found = plans.plan(LLAMA, plans.mesh_for(style, count))
    return {item.name: parse(found[i], len(item.shape))[0] for i, item in enumerate(LLAMA)}


def test_tensor_parallelism_cuts_heads_hidden_units_vocabulary_and_experts() -> None:
    parts = specs("tp", 8)
    assert parts["model.embed_tokens.weight"] == [8, 1]
    assert parts["model.layers.0.self_attn.q_proj.weight"] == [8, 1]
    assert parts["model.layers.0.self_attn.o_proj.weight"] == [1, 8]
    assert parts["model.layers.0.self_attn.q_norm.weight"] == [1]
    assert parts["model.layers.0.mlp.up_proj.weight"] == [8, 1]
    assert parts["model.layers.0.mlp.down_proj.weight"] == [1, 8]
    assert parts["model.layers.0.mlp.down_proj.weight.exp_avg"] == [1, 8]
    assert parts["model.layers.0.mlp.experts.gate_up_proj"] == [8, 1, 1]
    assert parts["model.rotary_emb.inv_freq"] == [1]
    assert parts["input_ids"] == [1, 1]
    assert parts["past_key_values.0.key"] == [1, 8, 1, 1]
    assert parts["random0"] == [1]


def test_fully_sharded_data_parallelism_cuts_every_large_parameter_and_the_batch() -> None:
    parts = specs("fsdp", 16)
    for item in LLAMA:
        cut = math.prod(parts[item.name])
        assert cut == (16 if math.prod(item.shape) >= 8192 else 1), item.name
    assert parts["input_ids"] == [16, 1]
    assert parts["past_key_values.0.key"] == [16, 1, 1, 1]


def test_both_use_both_axes() -> None:
    assert plans.mesh_for("2d", 512).axes == {"fsdp": 64, "model": 8}
    assert plans.mesh_for("2d", 8).axes == {"fsdp": 4, "model": 2}
    assert plans.mesh_for("2d", 1).axes == {"fsdp": 1, "model": 1}
    parts = specs("2d", 16)
    assert parts["model.layers.0.self_attn.o_proj.weight"] == [4, 4]
    assert parts["past_key_values.0.key"] == [4, 4, 1, 1]
    with pytest.raises(ValueError, match="3d"):
        plans.mesh_for("3d", 8)


def test_data_parallelism_repeats_the_model() -> None:
    parts = specs("data", 8)
    assert parts["model.embed_tokens.weight"] == [1, 1]
    assert parts["input_ids"] == [8, 1]
