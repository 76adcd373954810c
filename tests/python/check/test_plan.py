# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""How tensors are laid on devices."""

from __future__ import annotations

import math

import pytest
import torch
from torch_tpu import aot
from torch_tpu.aot.sharding import local_shape
from torus.check import plan, scaling


def slot(name: str, *shape: int, kind: str = "parameter") -> aot.Slot:
    return aot.Slot(name, shape, torch.bfloat16, kind)


def local(made: plan.Plan, one: aot.Slot) -> tuple[int, ...]:
    return local_shape(made.mesh, made.spec(one), one.shape)


def test_fsdp_cuts_parameters_states_and_batch() -> None:
    made = plan.make("fsdp", 512, 512)
    for name in ("a.layers.0.up_proj.weight", "a.layers.0.up_proj.weight.exp_avg"):
        kind = "buffer" if name.endswith("avg") else "parameter"
        assert math.prod(local(made, slot(name, 14336, 4096, kind=kind))) == 14336 * 4096 // 512
    assert local(made, slot("norm.weight", 4096)) == (4096,)
    assert local(made, slot("input_ids", 512, 2048, kind="argument")) == (1, 2048)
    assert local(made, slot("img_ids", 4096, 3, kind="argument")) == (4096, 3)


def test_a_dimension_is_cut_as_far_as_it_divides() -> None:
    made = plan.make("fsdp", 512, 512)
    assert local(made, slot("word_embeddings.weight", 30522, 384)) == (30522, 3)
    assert local(made, slot("odd.weight", 999, 1001)) == (999, 1001)


def test_2d_cuts_twice() -> None:
    made = plan.make("2d", 512, 64, heads=8)
    assert (made.axis("data"), made.axis("model")) == (64, 8)
    assert local(made, slot("l.0.self_attn.q_proj.weight", 8192, 8192)) == (1024, 128)
    assert local(made, slot("l.0.self_attn.o_proj.weight", 8192, 8192)) == (128, 1024)
    assert local(made, slot("kv.0.keys", 64, 8, 4096, 128, kind="argument")) == (1, 1, 4096, 128)


def test_tp_repeats_parameters_over_the_rest() -> None:
    made = plan.make("tp", 8, 4, heads=4)
    assert (made.axis("data"), made.axis("model")) == (2, 4)
    assert local(made, slot("l.0.mlp.down_proj.weight", 1024, 4096)) == (1024, 1024)
    assert local(made, slot("unknown.weight", 1024, 4096)) == (1024, 4096)


def test_wrong_plans_are_named() -> None:
    with pytest.raises(ValueError, match="does not divide 8"):
        plan.make("tp", 8, 8, model_parallel=3)
    with pytest.raises(ValueError, match="fsdp"):
        plan.make("fsdp", 8, 8, model_parallel=2)


def test_none_is_one_device() -> None:
    made = plan.make("none", 8, 3)
    assert made.mesh.size == 1
    assert local(made, slot("input_ids", 3, 7, kind="argument")) == (3, 7)


def test_slices_by_chip_count() -> None:
    assert scaling.slice_of("tpu7x", 256) == "tpu7x:4x8x8"
    assert scaling.slice_of("v6e", 16) == "v6e:4x4"
    with pytest.raises(ValueError, match="no slice of 3"):
        scaling.slice_of("v6e", 3)
    with pytest.raises(ValueError, match="no known chip"):
        scaling.slice_of("v9z", 4)
