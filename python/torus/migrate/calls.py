# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Calls whose replacement depends on their arguments.

A rule is a function of the context and the call, whose arguments are migrated already. It returns
the new expression, `REMOVED` where the call is no longer needed, or a str, the advice that is
reported while the call stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from torus.migrate.context import (
    Arguments,
    Context,
    bind,
    constant,
    keep_arguments,
    keyword,
)
from torus.migrate.rules import COUNTERS

REMOVED = object()

Rule = Callable[[Context, cst.Call], object]

CALLS: dict[str, Rule] = {}

_SPREAD = "its arguments come from * or **: rewrite the call by hand as {}"


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        CALLS.update(dict.fromkeys(names, function))
        return function

    return register


def _is(node: cst.BaseExpression | None, value: object) -> bool:
    found = constant(node)
    return type(found) is type(value) and found == value


def _is_absent(arguments: Arguments, name: str) -> bool:
    return name not in arguments or _is(arguments[name], None)


def _with_arguments(
    context: Context, function: str, call: cst.Call, kept: list[cst.Arg]
) -> cst.BaseExpression:
    """Call `function` with some arguments of `call`, laid out as there."""
    return keep_arguments(call, kept).with_changes(func=context.make(function))


def _without(call: cst.Call, parameters: tuple[str, ...], dropped: set[str]) -> list[cst.Arg]:
    """Return the arguments of a call that `bind` accepts, without those for some parameters."""
    kept = []
    for position, argument in enumerate(call.args):
        name = argument.keyword.value if argument.keyword else parameters[position]
        if name not in dropped:
            kept.append(argument)
    return kept


# ---- devices and steps ------------------------------------------------------------------------


@_rule("torch_xla.device", "xm.xla_device")
def _device(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("n", "devkind")) or bind(call, ("index",))
    if arguments is None:
        return _SPREAD.format('torch.device("tpu", index)')
    index = arguments.get("n", arguments.get("index"))
    if index is None or _is(index, None):
        return context.make('torch.device("tpu")')
    return context.make('torch.device("tpu", {index})', index=index)


@_rule("torch_xla.sync", "xm.mark_step")
def _sync(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("wait", "reset_scope"))
    if arguments is None or ("wait" in arguments and not _is(arguments["wait"], False)):
        return context.make("torch.tpu.synchronize()")
    return REMOVED


@_rule("xm.add_step_closure")
def _add_step_closure(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("closure", "args", "run_async"))
    if arguments is None or "closure" not in arguments:
        return _SPREAD.format("closure(*args)")
    given = arguments.get("args")
    if given is None:
        return cst.Call(func=arguments["closure"])
    if isinstance(given, cst.Tuple) and all(isinstance(e, cst.Element) for e in given.elements):
        plain = [cst.Arg(value=element.value) for element in given.elements]
        return cst.Call(func=arguments["closure"], args=plain)
    return cst.Call(func=arguments["closure"], args=[cst.Arg(value=given, star="*")])


@_rule("torch_xla.compile")
def _compile(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("f", "full_graph", "name", "max_different_graphs"))
    if arguments is None:
        return _SPREAD.format('torch.compile(function, backend="tpu")')
    if "f" not in arguments:
        return "use it as a decorator, or drop it: fused mode compiles code as it runs"
    if _last_name(arguments["f"]) in context.training_functions:
        return arguments["f"]
    return _torch_compile(context, arguments)


def _last_name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _torch_compile(context: Context, arguments: Arguments) -> cst.BaseExpression:
    made = context.make('torch.compile(backend="tpu")')
    assert isinstance(made, cst.Call)
    first = [cst.Arg(value=arguments["f"])] if "f" in arguments else []
    last = []
    if "full_graph" in arguments and not _is(arguments["full_graph"], False):
        last = [keyword("fullgraph", arguments["full_graph"])]
    return made.with_changes(args=[*first, *made.args, *last])


def compile_decorator(context: Context, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the decorator for ``@torch_xla.compile`` or ``@torch_xla.compile(...)``."""
    arguments = (
        bind(node, ("f", "full_graph", "name", "max_different_graphs"))
        if isinstance(node, cst.Call)
        else {}
    )
    return _torch_compile(context, arguments or {})


@_rule("xr.initialize_cache")
def _initialize_cache(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("path", "readonly"))
    if arguments is None or "path" not in arguments or not context.is_statement:
        return 'set os.environ["TORUS_CACHE_DIR"] before the first tensor reaches the device'
    return context.make('os.environ.__setitem__("TORUS_CACHE_DIR", {path})', path=arguments["path"])


# ---- several processes ------------------------------------------------------------------------


@_rule("torch_xla.launch", "xmp.spawn")
def _launch(context: Context, call: cst.Call) -> object:
    parameters = ("fn", "args", "nprocs", "join", "daemon", "start_method")
    if not all(argument.keyword or index < 2 for index, argument in enumerate(call.args)):
        return _SPREAD.format("training.launch(function, args=...)")
    if bind(call, (*parameters, "debug_single_process")) is None:
        return _SPREAD.format("training.launch(function, args=...)")
    kept = []
    for argument in call.args:
        name = argument.keyword.value if argument.keyword else ""
        if name == "fn":
            argument = argument.with_changes(keyword=cst.Name("function"))
        if name == "debug_single_process":
            one_or_all = context.make("1 if {flag} else None", flag=argument.value)
            argument = argument.with_changes(keyword=cst.Name("nprocs"), value=one_or_all)
        kept.append(argument)
    return _with_arguments(context, "training.launch", call, kept)


@_rule("xmp.MpModelWrapper")
def _model_wrapper(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("model",))
    return arguments["model"] if arguments else _SPREAD.format("the model itself")


@_rule("xm.is_master_ordinal")
def _is_master(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("local",))
    if arguments is None:
        return _SPREAD.format("training.is_main(local=...)")
    if _is(arguments.get("local"), False):
        return context.make("training.is_main()")
    if "local" not in arguments:
        return context.make("training.is_main(local=True)")
    return context.make("training.is_main(local={local})", local=arguments["local"])


@_rule("xm.master_print")
def _master_print(context: Context, call: cst.Call) -> object:
    kept = [
        argument.with_changes(keyword=cst.Name("file"))
        if argument.keyword and argument.keyword.value == "fd"
        else argument
        for argument in call.args
    ]
    return _with_arguments(context, "training.print_main", call, kept)


@_rule("xm.optimizer_step")
def _optimizer_step(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("optimizer", "barrier", "optimizer_args", "groups", "pin_layout"))
    if arguments is None or "optimizer" not in arguments:
        return _SPREAD.format("training.optimizer_step(optimizer)")
    optimizer, further = arguments["optimizer"], []
    if not _is_absent(arguments, "groups"):
        further.append(keyword("groups", arguments["groups"]))
    if "optimizer_args" in arguments:
        further.append(cst.Arg(value=arguments["optimizer_args"], star="**"))
    if context.project.many_processes:
        step = context.make("training.optimizer_step({optimizer})", optimizer=optimizer)
        assert isinstance(step, cst.Call)
        return step.with_changes(args=[*step.args, *further])
    return cst.Call(func=cst.Attribute(optimizer, cst.Name("step")), args=further)


@_rule("xm.reduce_gradients")
def _reduce_gradients(context: Context, call: cst.Call) -> object:
    return _drop(context, call, "training.reduce_gradients", ("optimizer", "groups", "pin_layout"))


def _drop(
    context: Context,
    call: cst.Call,
    function: str,
    parameters: tuple[str, ...],
    dropped: tuple[str, ...] = ("pin_layout",),
) -> object:
    """Call `function` with the same arguments but for some that have lost their meaning."""
    if bind(call, parameters) is None:
        return _SPREAD.format(f"{function}(...)")
    return _with_arguments(context, function, call, _without(call, parameters, set(dropped)))


@_rule("xm.broadcast_master_param")
def _broadcast_master(context: Context, call: cst.Call) -> object:
    return _drop(context, call, "training.broadcast_parameters", ("model",))


@_rule("xm.collective_broadcast")
def _broadcast(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tensors", "root_ordinal", "groups", "pin_layout"))
    if arguments is None or not _is_absent(arguments, "groups"):
        return "use torch.distributed.broadcast in the group"
    made = context.make("training.broadcast({tensors})", tensors=arguments["tensors"])
    if "root_ordinal" in arguments:
        assert isinstance(made, cst.Call)
        return made.with_changes(args=[*made.args, keyword("source", arguments["root_ordinal"])])
    return made


@_rule("xm.all_reduce")
def _all_reduce(context: Context, call: cst.Call) -> object:
    parameters = ("reduce_type", "inputs", "scale", "groups", "pin_layout")
    return _drop(
        context,
        _renamed(call, reduce_type="kind", inputs="value"),
        "training.all_reduce",
        ("kind", "value", *parameters[2:]),
    )


def _renamed(call: cst.Call, **names: str) -> cst.Call:
    """Return the call with some keywords named otherwise."""
    return call.with_changes(
        args=[
            argument.with_changes(keyword=cst.Name(names[argument.keyword.value]))
            if argument.keyword and argument.keyword.value in names
            else argument
            for argument in call.args
        ]
    )


@_rule("xm.all_gather")
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
    if arguments is None or not _is_absent(arguments, "output"):
        return "use training.all_gather(value, dim), which returns the result"
    return _drop(context, call, "training.all_gather", parameters, parameters[3:])


@_rule("xm.reduce_scatter")
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
    call = _renamed(call, reduce_type="kind", input="value", scatter_dim="dim")
    arguments = bind(call, parameters)
    if arguments is None or not _is_absent(arguments, "output"):
        return "use training.reduce_scatter(kind, value, scale, dim), which returns the result"
    return _drop(
        context,
        _keyword_after(call, "groups", parameters),
        "training.reduce_scatter",
        parameters,
        ("shard_count", *parameters[6:]),
    )


def _keyword_after(call: cst.Call, name: str, parameters: tuple[str, ...]) -> cst.Call:
    """Give the argument for `name` its keyword, since one before it will go."""
    position = parameters.index(name)
    arguments = list(call.args)
    if position < len(arguments) and not arguments[position].keyword:
        arguments[position] = keyword(name, arguments[position].value)
    return call.with_changes(args=arguments)


@_rule("xm.all_to_all")
def _all_to_all(context: Context, call: cst.Call) -> object:
    parameters = ("value", "split_dim", "concat_dim", "split_count", "groups", "pin_layout")
    call = _renamed(call, split_dimension="split_dim", concat_dimension="concat_dim")
    return _drop(
        context,
        _keyword_after(call, "groups", parameters),
        "training.all_to_all",
        parameters,
        ("split_count", "pin_layout"),
    )


@_rule("xm.rendezvous", "xm.xla_rendezvous")
def _rendezvous(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tag", "payload", "replicas"))
    if arguments is None:
        return _SPREAD.format("training.barrier()")
    if "payload" in arguments:
        return context.make("training.gather({payload})", payload=arguments["payload"])
    return context.make("training.barrier()")


@_rule("xm.mesh_reduce")
def _mesh_reduce(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tag", "data", "reduce_fn"))
    if arguments is None or not {"data", "reduce_fn"} <= arguments.keys():
        return _SPREAD.format("reduce_fn(training.gather(data))")
    function = arguments["reduce_fn"]
    if isinstance(function, cst.Lambda) and not function.lpar:
        function = function.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    gathered = context.make("training.gather({data})", data=arguments["data"])
    return cst.Call(func=function, args=[cst.Arg(value=gathered)])


@_rule(
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
    if not _is(arguments.get("backend"), "xla"):
        return call
    if "timeout" in arguments:
        return context.make("training.init({timeout})", timeout=arguments["timeout"])
    return context.make("training.init()")


# ---- data and checkpoints ---------------------------------------------------------------------

_LOADER = ("loader", "device")
_LOADER_OPTIONS = (
    "batchdim",
    "batches_per_execution",
    "loader_prefetch_size",
    "device_prefetch_size",
    "host_to_device_transfer_threads",
)


@_rule("pl.MpDeviceLoader")
def _device_loader(context: Context, call: cst.Call) -> object:
    if any(argument.star for argument in call.args):
        return _SPREAD.format("training.DeviceLoader(loader, device)")
    call = _renamed(call, input_sharding="sharding")
    parameters = (*_LOADER, "sharding", *_LOADER_OPTIONS)
    return _drop(context, call, "training.DeviceLoader", parameters, _LOADER_OPTIONS)


@_rule("pl.ParallelLoader")
def _parallel_loader(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("loader", "devices", *_LOADER_OPTIONS, "input_sharding"))
    devices = arguments.get("devices") if arguments else None
    if not isinstance(devices, (cst.List, cst.Tuple)) or len(devices.elements) != 1:
        return "use one training.DeviceLoader(loader, device) in each process"
    made = context.make(
        "training.DeviceLoader({loader}, {device})",
        loader=arguments["loader"],
        device=devices.elements[0].value,
    )
    if not _is_absent(arguments, "input_sharding"):
        assert isinstance(made, cst.Call)
        return made.with_changes(
            args=[*made.args, keyword("sharding", arguments["input_sharding"])]
        )
    return made


@_rule("xm.send_cpu_data_to_device")
def _send(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("datas", "device"))
    if arguments is None or len(arguments) != 2:
        return "use training.to_device(data, device), and training.shard for a sharding"
    return context.make(
        "training.to_device({data}, {device})",
        data=arguments["datas"],
        device=arguments["device"],
    )


@_rule("xm.save", "xser.save")
def _save(context: Context, call: cst.Call) -> object:
    parameters = ("data", "file", "main_only", "per_host")
    call = _renamed(call, file_or_path="file", path="file", master_only="main_only")
    global_master = next(
        (a for a in call.args if a.keyword and a.keyword.value == "global_master"), None
    )
    if global_master is None:
        return _drop(context, call, "training.save", parameters)
    rest = [argument for argument in call.args if argument is not global_master]
    value = constant(global_master.value)
    if not isinstance(value, bool):
        return "use training.save(data, file, per_host=not global_master)"
    if value:
        rest.append(keyword("per_host", cst.Name("False")))
    return _with_arguments(context, "training.save", call, rest)


@_rule("xser.load")
def _load(context: Context, call: cst.Call) -> object:
    return _drop(context, call, "torch.load", ("path",))


@_rule("xu.SampleGenerator")
def _sample_generator(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("data", "sample_count"))
    if arguments is None or len(arguments) != 2:
        return _SPREAD.format("[data] * sample_count")
    count = arguments["sample_count"]
    if not isinstance(count, (cst.Name, cst.Attribute, cst.Integer, cst.Call)) and not getattr(
        count, "lpar", ()
    ):
        count = count.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return context.make("[{data}] * {count}", data=arguments["data"], count=count)


# ---- precision, random numbers ----------------------------------------------------------------


@_rule("amp.autocast")
def _autocast(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("device", "enabled", "dtype", "cache_enabled"))
    if arguments is None:
        return _SPREAD.format('torch.autocast("tpu", ...)')
    made = context.make('torch.autocast("tpu")')
    assert isinstance(made, cst.Call)
    further = [keyword(name, value) for name, value in arguments.items() if name != "device"]
    return made.with_changes(args=[*made.args, *further])


@_rule("amp.GradScaler")
def _grad_scaler(context: Context, call: cst.Call) -> object:
    parameters = (
        "init_scale",
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "enabled",
        "use_zero_grad",
    )
    if bind(call, parameters) is None:
        return _SPREAD.format('torch.amp.GradScaler("tpu", ...)')
    kept = _without(call, parameters, {"use_zero_grad"})
    device = cst.Arg(value=cst.SimpleString('"tpu"'))
    made = context.make("torch.amp.GradScaler()")
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[device, *kept])


@_rule("xm.set_rng_state")
def _set_rng_state(context: Context, call: cst.Call) -> object:
    return _drop(context, call, "torch.tpu.manual_seed", ("seed", "device"), ("device",))


@_rule("xm.fork_rng")
def _fork_rng(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("device", "enabled"))
    if arguments is None:
        return _SPREAD.format('torch.random.fork_rng(device_type="tpu")')
    made = context.make('torch.random.fork_rng(device_type="tpu")')
    if "enabled" not in arguments:
        return made
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[*made.args, keyword("enabled", arguments["enabled"])])


@_rule("xm.is_xla_tensor")
def _is_xla_tensor(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tensor",))
    if not arguments:
        return _SPREAD.format('tensor.device.type == "tpu"')
    return context.make('({tensor}.device.type == "tpu")', tensor=arguments["tensor"])


# ---- sharding ---------------------------------------------------------------------------------


@_rule("xs.Mesh")
def _mesh(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("device_ids", "mesh_shape", "axis_names"))
    if arguments is None or "mesh_shape" not in arguments:
        return _SPREAD.format("training.make_mesh(shape, names)")
    made = context.make("training.make_mesh({shape})", shape=arguments["mesh_shape"])
    if _is_absent(arguments, "axis_names"):
        return made
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[*made.args, cst.Arg(value=arguments["axis_names"])])


@_rule("xs.get_1d_mesh")
def _mesh_1d(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("axis_name",))
    if not arguments:
        return context.make("training.make_mesh((training.world_size(),))")
    return context.make(
        "training.make_mesh((training.world_size(),), ({name},))", name=arguments["axis_name"]
    )


@_rule("xs.mark_sharding", "xs.mark_sharding_with_gradients")
def _mark_sharding(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tensor", "mesh", "partition")) or bind(
        _renamed(call, t="tensor", partition_spec="partition"), ("tensor", "mesh", "partition")
    )
    if arguments is None or len(arguments) != 3:
        return _SPREAD.format("tensor = training.shard(tensor, mesh, partition)")
    if _last_name(arguments["tensor"]) in context.loop_parameters:
        return "use training.shard_parameters(module, mesh, {name: partition, ...})"
    return context.make("training.shard({tensor}, {mesh}, {partition})", **arguments)


@_rule("xs.ShardingSpec")
def _sharding_spec(context: Context, call: cst.Call) -> object:
    call = _renamed(call, partition_spec="partition")
    return _drop(
        context, call, "training.ShardingSpec", ("mesh", "partition", "minibatch"), ("minibatch",)
    )


@_rule("xs.xla_distribute_tensor")
def _distribute(context: Context, call: cst.Call) -> object:
    context.need("import torch.distributed.tensor")
    return _with_arguments(
        context, "torch.distributed.tensor.distribute_tensor", call, list(call.args)
    )


@_rule(
    "xs.apply_xla_patch_to_nn_linear",
    "xs.apply_backward_optimization_barrier",
    "xs.wrap_if_sharded",
)
def _identity(context: Context, call: cst.Call) -> object:
    if context.is_statement:
        return REMOVED
    return call.args[0].value if len(call.args) >= 1 else "drop it"


@_rule(
    "xs.auto_policy",
    "experimental.distributed_checkpoint.SPMDSavePlanner",
    "experimental.distributed_checkpoint.SPMDLoadPlanner",
)
def _planner(context: Context, call: cst.Call) -> object:
    return cst.Name("None")


# ---- counters and profiles --------------------------------------------------------------------


@_rule("met.counter_value")
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


@_rule("xp.Trace", "xp.StepTrace", "xp.trace_me")
def _trace(context: Context, call: cst.Call) -> object:
    if not call.args or call.args[0].star:
        return _SPREAD.format("torch.profiler.record_function(name)")
    context.need("import torch.profiler")
    return context.make("torch.profiler.record_function({name})", name=call.args[0].value)


# ---- attention --------------------------------------------------------------------------------


@_rule("experimental.custom_kernel.flash_attention")
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
        or not all(_is_absent(arguments, name) for name in ("q_segment_ids", "kv_segment_ids"))
    ):
        return "use scaled_dot_product_attention with a mask of the segments and scale=1.0"
    made = context.make(
        "torch.nn.functional.scaled_dot_product_attention({q}, {k}, {v})",
        **{name: arguments[name] for name in "qkv"},
    )
    assert isinstance(made, cst.Call)
    further = []
    if not _is_absent(arguments, "ab"):
        further.append(keyword("attn_mask", arguments["ab"]))
    if "causal" in arguments:
        further.append(keyword("is_causal", arguments["causal"]))
    scale = arguments.get("sm_scale", cst.Float("1.0"))
    return made.with_changes(args=[*made.args, *further, keyword("scale", scale)])


# ---- optimum-tpu ------------------------------------------------------------------------------


@_rule(
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
    return _with_arguments(context, "AutoModelForCausalLM.from_pretrained", call, kept)


@_rule(
    "optimum.tpu.fsdp_v2.get_fsdp_training_args",
    "optimum.tpu.get_fsdp_training_args",
    "optimum.tpu.fsdp_v2.get_fsdp_config",
    "optimum.tpu.get_fsdp_config",
)
def _fsdp_arguments(context: Context, call: cst.Call) -> object:
    return cst.Dict([])
