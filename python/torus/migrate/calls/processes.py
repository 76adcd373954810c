# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Several processes and what they say to each other."""

from __future__ import annotations

import libcst as cst

from torus.migrate.calls.table import (
    SPREAD,
    drop,
    is_absent,
    is_value,
    keyword_after,
    renamed,
    rule,
    with_arguments,
)
from torus.migrate.context import Context, bind, keyword


@rule("torch_xla.launch", "xmp.spawn")
def _launch(context: Context, call: cst.Call) -> object:
    parameters = ("fn", "args", "nprocs", "join", "daemon", "start_method")
    if not all(argument.keyword or index < 2 for index, argument in enumerate(call.args)):
        return SPREAD.format("training.launch(function, args=...)")
    if bind(call, (*parameters, "debug_single_process")) is None:
        return SPREAD.format("training.launch(function, args=...)")
    kept = []
    for argument in call.args:
        name = argument.keyword.value if argument.keyword else ""
        if name == "fn":
            argument = argument.with_changes(keyword=cst.Name("function"))
        if name == "debug_single_process":
            one_or_all = context.make("1 if {flag} else None", flag=argument.value)
            argument = argument.with_changes(keyword=cst.Name("nprocs"), value=one_or_all)
        kept.append(argument)
    return with_arguments(context, "training.launch", call, kept)


@rule("xmp.MpModelWrapper")
def _model_wrapper(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("model",))
    return arguments["model"] if arguments else SPREAD.format("the model itself")


@rule("xm.is_master_ordinal")
def _is_master(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("local",))
    if arguments is None:
        return SPREAD.format("training.is_main(local=...)")
    if is_value(arguments.get("local"), False):
        return context.make("training.is_main()")
    if "local" not in arguments:
        return context.make("training.is_main(local=True)")
    return context.make("training.is_main(local={local})", local=arguments["local"])


@rule("xm.master_print")
def _master_print(context: Context, call: cst.Call) -> object:
    kept = [
        argument.with_changes(keyword=cst.Name("file"))
        if argument.keyword and argument.keyword.value == "fd"
        else argument
        for argument in call.args
    ]
    return with_arguments(context, "training.print_main", call, kept)


@rule("xm.optimizer_step")
def _optimizer_step(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("optimizer", "barrier", "optimizer_args", "groups", "pin_layout"))
    if arguments is None or "optimizer" not in arguments:
        return SPREAD.format("training.optimizer_step(optimizer)")
    optimizer, further = arguments["optimizer"], []
    if not is_absent(arguments, "groups"):
        further.append(keyword("groups", arguments["groups"]))
    if "optimizer_args" in arguments:
        further.append(cst.Arg(value=arguments["optimizer_args"], star="**"))
    if context.project.many_processes:
        step = context.make("training.optimizer_step({optimizer})", optimizer=optimizer)
        assert isinstance(step, cst.Call)
        return step.with_changes(args=[*step.args, *further])
    return cst.Call(func=cst.Attribute(optimizer, cst.Name("step")), args=further)


@rule("xm.reduce_gradients")
def _reduce_gradients(context: Context, call: cst.Call) -> object:
    return drop(context, call, "training.reduce_gradients", ("optimizer", "groups", "pin_layout"))


@rule("xm.broadcast_master_param")
def _broadcast_master(context: Context, call: cst.Call) -> object:
    return drop(context, call, "training.broadcast_parameters", ("model",))


@rule("xm.collective_broadcast")
def _broadcast(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tensors", "root_ordinal", "groups", "pin_layout"))
    if arguments is None or not is_absent(arguments, "groups"):
        return "use torch.distributed.broadcast in the group"
    made = context.make("training.broadcast({tensors})", tensors=arguments["tensors"])
    if "root_ordinal" in arguments:
        assert isinstance(made, cst.Call)
        return made.with_changes(args=[*made.args, keyword("source", arguments["root_ordinal"])])
    return made


@rule("xm.all_reduce")
def _all_reduce(context: Context, call: cst.Call) -> object:
    parameters = ("reduce_type", "inputs", "scale", "groups", "pin_layout")
    return drop(
        context,
        renamed(call, reduce_type="kind", inputs="value"),
        "training.all_reduce",
        ("kind", "value", *parameters[2:]),
    )


@rule("xm.all_gather")
def _all_gather(context: Context, call: cst.Call) -> object:
    parameters = (
        "value",
        "dim",
        "groups",
        "output",
        "pin_layout",
        "channel_id",
        "use_global_device_ids",
    )
    arguments = bind(call, parameters)
    if arguments is None or not is_absent(arguments, "output"):
        return "use training.all_gather(value, dim), which returns the result"
    return drop(context, call, "training.all_gather", parameters, parameters[3:])


@rule("xm.reduce_scatter")
def _reduce_scatter(context: Context, call: cst.Call) -> object:
    parameters = (
        "kind",
        "value",
        "scale",
        "dim",
        "shard_count",
        "groups",
        "output",
        "pin_layout",
        "channel_id",
        "use_global_device_ids",
    )
    call = renamed(call, reduce_type="kind", input="value", scatter_dim="dim")
    arguments = bind(call, parameters)
    if arguments is None or not is_absent(arguments, "output"):
        return "use training.reduce_scatter(kind, value, scale, dim), which returns the result"
    return drop(
        context,
        keyword_after(call, "groups", parameters),
        "training.reduce_scatter",
        parameters,
        ("shard_count", *parameters[6:]),
    )


@rule("xm.all_to_all")
def _all_to_all(context: Context, call: cst.Call) -> object:
    parameters = ("value", "split_dim", "concat_dim", "split_count", "groups", "pin_layout")
    call = renamed(call, split_dimension="split_dim", concat_dimension="concat_dim")
    return drop(
        context,
        keyword_after(call, "groups", parameters),
        "training.all_to_all",
        parameters,
        ("split_count", "pin_layout"),
    )


@rule("xm.rendezvous", "xm.xla_rendezvous")
def _rendezvous(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tag", "payload", "replicas"))
    if arguments is None:
        return SPREAD.format("training.barrier()")
    if "payload" in arguments:
        return context.make("training.gather({payload})", payload=arguments["payload"])
    return context.make("training.barrier()")


@rule("xm.mesh_reduce")
def _mesh_reduce(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tag", "data", "reduce_fn"))
    if arguments is None or not {"data", "reduce_fn"} <= arguments.keys():
        return SPREAD.format("reduce_fn(training.gather(data))")
    function = arguments["reduce_fn"]
    if isinstance(function, cst.Lambda) and not function.lpar:
        function = function.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    gathered = context.make("training.gather({data})", data=arguments["data"])
    return cst.Call(func=function, args=[cst.Arg(value=gathered)])


@rule(
    "torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"
)
def _init_process_group(context: Context, call: cst.Call) -> object:
    """Replace the call only where its backend is "xla"."""
    arguments = (
        bind(
            call,
            (
                "backend",
                "init_method",
                "timeout",
                "world_size",
                "rank",
                "store",
                "group_name",
                "pg_options",
                "device_id",
            ),
        )
        or {}
    )
    if not is_value(arguments.get("backend"), "xla"):
        return call
    if "timeout" in arguments:
        return context.make("training.init({timeout})", timeout=arguments["timeout"])
    return context.make("training.init()")
