# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sharding, attention, counters and profiles, and the models of optimum-tpu."""

from __future__ import annotations

import libcst as cst

from torus.migrate.calls.table import (
    REMOVED,
    SPREAD,
    drop,
    is_absent,
    last_name,
    renamed,
    rule,
    with_arguments,
)
from torus.migrate.context import Context, bind, constant, keyword
from torus.migrate.rules import COUNTERS


@rule("xs.Mesh")
def _mesh(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("device_ids", "mesh_shape", "axis_names"))
    if arguments is None or "mesh_shape" not in arguments:
        return SPREAD.format("training.make_mesh(shape, names)")
    made = context.make("training.make_mesh({shape})", shape=arguments["mesh_shape"])
    if is_absent(arguments, "axis_names"):
        return made
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[*made.args, cst.Arg(value=arguments["axis_names"])])


@rule("xs.get_1d_mesh")
def _mesh_1d(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("axis_name",))
    if not arguments:
        return context.make("training.make_mesh((training.world_size(),))")
    return context.make(
        "training.make_mesh((training.world_size(),), ({name},))", name=arguments["axis_name"]
    )


@rule("xs.mark_sharding", "xs.mark_sharding_with_gradients")
def _mark_sharding(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tensor", "mesh", "partition")) or bind(
        renamed(call, t="tensor", partition_spec="partition"), ("tensor", "mesh", "partition")
    )
    if arguments is None or len(arguments) != 3:
        return SPREAD.format("tensor = training.shard(tensor, mesh, partition)")
    if last_name(arguments["tensor"]) in context.loop_parameters:
        return "use training.shard_parameters(module, mesh, {name: partition, ...})"
    return context.make("training.shard({tensor}, {mesh}, {partition})", **arguments)


@rule("xs.ShardingSpec")
def _sharding_spec(context: Context, call: cst.Call) -> object:
    call = renamed(call, partition_spec="partition")
    return drop(
        context, call, "training.ShardingSpec", ("mesh", "partition", "minibatch"), ("minibatch",)
    )


@rule("xs.xla_distribute_tensor")
def _distribute(context: Context, call: cst.Call) -> object:
    context.need("import torch.distributed.tensor")
    return with_arguments(
        context, "torch.distributed.tensor.distribute_tensor", call, list(call.args)
    )


@rule(
    "xs.apply_xla_patch_to_nn_linear",
    "xs.apply_backward_optimization_barrier",
    "xs.wrap_if_sharded",
)
def _identity(context: Context, call: cst.Call) -> object:
    if context.is_statement:
        return REMOVED
    return call.args[0].value if len(call.args) >= 1 else "drop it"


@rule(
    "xs.auto_policy",
    "experimental.distributed_checkpoint.SPMDSavePlanner",
    "experimental.distributed_checkpoint.SPMDLoadPlanner",
)
def _planner(context: Context, call: cst.Call) -> object:
    return cst.Name("None")


@rule("met.counter_value")
def _counter(context: Context, call: cst.Call) -> object:
    name = constant(call.args[0].value) if len(call.args) == 1 else None
    return counter(context, name) or "read torch.tpu.metrics(), a dict of counters"


def counter(context: Context, name: object) -> cst.BaseExpression | None:
    """Return the expression for a counter of torch_xla; None if there is none like it."""
    if not isinstance(name, str):
        return None
    if name in COUNTERS:
        return context.make(f'torch.tpu.metrics()["{COUNTERS[name]}"]')
    if name.startswith("aten::"):
        return context.make(f'torch.tpu.metrics()["fallbacks"].get("{name}", 0)')
    return None


@rule("xp.Trace", "xp.StepTrace", "xp.trace_me")
def _trace(context: Context, call: cst.Call) -> object:
    if not call.args or call.args[0].star:
        return SPREAD.format("torch.profiler.record_function(name)")
    context.need("import torch.profiler")
    return context.make("torch.profiler.record_function({name})", name=call.args[0].value)


@rule("experimental.custom_kernel.flash_attention")
def _flash_attention(context: Context, call: cst.Call) -> object:
    arguments = bind(
        call,
        (
            "q",
            "k",
            "v",
            "causal",
            "q_segment_ids",
            "kv_segment_ids",
            "sm_scale",
            "ab",
            "partition_spec",
            "mesh",
        ),
    )
    if (
        arguments is None
        or not {"q", "k", "v"} <= arguments.keys()
        or not all(is_absent(arguments, name) for name in ("q_segment_ids", "kv_segment_ids"))
    ):
        return "use scaled_dot_product_attention with a mask of the segments and scale=1.0"
    made = context.make(
        "torch.nn.functional.scaled_dot_product_attention({q}, {k}, {v})",
        **{name: arguments[name] for name in "qkv"},
    )
    assert isinstance(made, cst.Call)
    further = []
    if not is_absent(arguments, "ab"):
        further.append(keyword("attn_mask", arguments["ab"]))
    if "causal" in arguments:
        further.append(keyword("is_causal", arguments["causal"]))
    scale = arguments.get("sm_scale", cst.Float("1.0"))
    return made.with_changes(args=[*made.args, *further, keyword("scale", scale)])


@rule(
    "optimum.tpu.AutoModelForCausalLM.from_pretrained",
    "optimum.tpu.TpuModelForCausalLM.from_pretrained",
)
def _from_pretrained(context: Context, call: cst.Call) -> object:
    context.need("from transformers import AutoModelForCausalLM")
    names = [argument.keyword.value if argument.keyword else "" for argument in call.args]
    kept = [
        argument
        for argument, name in zip(call.args, names, strict=True)
        if name not in ("task", "batch_size", "sequence_length")
    ]
    if "device_map" not in names:
        kept.append(keyword("device_map", cst.SimpleString('"tpu"')))
    return with_arguments(context, "AutoModelForCausalLM.from_pretrained", call, kept)


@rule(
    "optimum.tpu.fsdp_v2.get_fsdp_training_args",
    "optimum.tpu.get_fsdp_training_args",
    "optimum.tpu.fsdp_v2.get_fsdp_config",
    "optimum.tpu.get_fsdp_config",
)
def _fsdp_arguments(context: Context, call: cst.Call) -> object:
    return cst.Dict([])
