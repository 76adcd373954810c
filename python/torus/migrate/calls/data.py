# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Batches, checkpoints, precision and random numbers."""

from __future__ import annotations

import libcst as cst

from torus.migrate.calls.table import (
    SPREAD,
    drop,
    is_absent,
    renamed,
    rule,
    with_arguments,
    without,
)
from torus.migrate.context import Context, bind, constant, keyword

_LOADER = ("loader", "device")
_LOADER_OPTIONS = (
    "batchdim",
    "batches_per_execution",
    "loader_prefetch_size",
    "device_prefetch_size",
    "host_to_device_transfer_threads",
)


@rule("pl.MpDeviceLoader")
def _device_loader(context: Context, call: cst.Call) -> object:
    if any(argument.star for argument in call.args):
        return SPREAD.format("training.DeviceLoader(loader, device)")
    call = renamed(call, input_sharding="sharding")
    parameters = (*_LOADER, "sharding", *_LOADER_OPTIONS)
    return drop(context, call, "training.DeviceLoader", parameters, _LOADER_OPTIONS)


@rule("pl.ParallelLoader")
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
    if not is_absent(arguments, "input_sharding"):
        assert isinstance(made, cst.Call)
        return made.with_changes(
            args=[*made.args, keyword("sharding", arguments["input_sharding"])]
        )
    return made


@rule("xm.send_cpu_data_to_device")
def _send(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("datas", "device"))
    if arguments is None or len(arguments) != 2:
        return "use training.to_device(data, device), and training.shard for a sharding"
    return context.make(
        "training.to_device({data}, {device})",
        data=arguments["datas"],
        device=arguments["device"],
    )


@rule("xm.save", "xser.save")
def _save(context: Context, call: cst.Call) -> object:
    parameters = ("data", "file", "main_only", "per_host")
    call = renamed(call, file_or_path="file", path="file", master_only="main_only")
    global_master = next(
        (a for a in call.args if a.keyword and a.keyword.value == "global_master"), None
    )
    if global_master is None:
        return drop(context, call, "training.save", parameters)
    rest = [argument for argument in call.args if argument is not global_master]
    value = constant(global_master.value)
    if not isinstance(value, bool):
        return "use training.save(data, file, per_host=not global_master)"
    if value:
        rest.append(keyword("per_host", cst.Name("False")))
    return with_arguments(context, "training.save", call, rest)


@rule("xser.load")
def _load(context: Context, call: cst.Call) -> object:
    return drop(context, call, "torch.load", ("path",))


@rule("xu.SampleGenerator")
def _sample_generator(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("data", "sample_count"))
    if arguments is None or len(arguments) != 2:
        return SPREAD.format("[data] * sample_count")
    count = arguments["sample_count"]
    if not isinstance(count, (cst.Name, cst.Attribute, cst.Integer, cst.Call)) and not getattr(
        count, "lpar", ()
    ):
        count = count.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return context.make("[{data}] * {count}", data=arguments["data"], count=count)


@rule("amp.autocast")
def _autocast(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("device", "enabled", "dtype", "cache_enabled"))
    if arguments is None:
        return SPREAD.format('torch.autocast("tpu", ...)')
    made = context.make('torch.autocast("tpu")')
    assert isinstance(made, cst.Call)
    further = [keyword(name, value) for name, value in arguments.items() if name != "device"]
    return made.with_changes(args=[*made.args, *further])


@rule("amp.GradScaler")
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
        return SPREAD.format('torch.amp.GradScaler("tpu", ...)')
    kept = without(call, parameters, {"use_zero_grad"})
    device = cst.Arg(value=cst.SimpleString('"tpu"'))
    made = context.make("torch.amp.GradScaler()")
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[device, *kept])


@rule("xm.set_rng_state")
def _set_rng_state(context: Context, call: cst.Call) -> object:
    return drop(context, call, "torch.tpu.manual_seed", ("seed", "device"), ("device",))


@rule("xm.fork_rng")
def _fork_rng(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("device", "enabled"))
    if arguments is None:
        return SPREAD.format('torch.random.fork_rng(device_type="tpu")')
    made = context.make('torch.random.fork_rng(device_type="tpu")')
    if "enabled" not in arguments:
        return made
    assert isinstance(made, cst.Call)
    return made.with_changes(args=[*made.args, keyword("enabled", arguments["enabled"])])


@rule("xm.is_xla_tensor")
def _is_xla_tensor(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("tensor",))
    if not arguments:
        return SPREAD.format('tensor.device.type == "tpu"')
    return context.make('({tensor}.device.type == "tpu")', tensor=arguments["tensor"])
