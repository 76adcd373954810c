# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Devices, steps, and compiling."""

from __future__ import annotations

import libcst as cst

from torus.migrate.calls.table import (
    REMOVED,
    SPREAD,
    is_value,
    last_name,
    rule,
)
from torus.migrate.context import Arguments, Context, bind, keyword


@rule("torch_xla.device", "xm.xla_device")
def _device(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("n", "devkind")) or bind(call, ("index",))
    if arguments is None:
        return SPREAD.format('torch.device("tpu", index)')
    index = arguments.get("n", arguments.get("index"))
    if index is None or is_value(index, None):
        return context.make('torch.device("tpu")')
    return context.make('torch.device("tpu", {index})', index=index)


@rule("torch_xla.sync", "xm.mark_step")
def _sync(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("wait", "reset_scope"))
    if arguments is None or ("wait" in arguments and not is_value(arguments["wait"], False)):
        return context.make("torch.tpu.synchronize()")
    return REMOVED


@rule("xm.add_step_closure")
def _add_step_closure(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("closure", "args", "run_async"))
    if arguments is None or "closure" not in arguments:
        return SPREAD.format("closure(*args)")
    given = arguments.get("args")
    if given is None:
        return cst.Call(func=arguments["closure"])
    if isinstance(given, cst.Tuple) and all(isinstance(e, cst.Element) for e in given.elements):
        plain = [cst.Arg(value=element.value) for element in given.elements]
        return cst.Call(func=arguments["closure"], args=plain)
    return cst.Call(func=arguments["closure"], args=[cst.Arg(value=given, star="*")])


@rule("torch_xla.compile")
def _compile(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("f", "full_graph", "name", "max_different_graphs"))
    if arguments is None:
        return SPREAD.format('torch.compile(function, backend="tpu")')
    if "f" not in arguments:
        return "use it as a decorator, or drop it: fused mode compiles code as it runs"
    if last_name(arguments["f"]) in context.training_functions:
        return arguments["f"]
    return _torch_compile(context, arguments)


def _torch_compile(context: Context, arguments: Arguments) -> cst.BaseExpression:
    made = context.make('torch.compile(backend="tpu")')
    assert isinstance(made, cst.Call)
    first = [cst.Arg(value=arguments["f"])] if "f" in arguments else []
    last = []
    if "full_graph" in arguments and not is_value(arguments["full_graph"], False):
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


@rule("xr.initialize_cache")
def _initialize_cache(context: Context, call: cst.Call) -> object:
    arguments = bind(call, ("path", "readonly"))
    if arguments is None or "path" not in arguments or not context.is_statement:
        return 'set os.environ["TORUS_CACHE_DIR"] before the first tensor reaches the device'
    return context.make('os.environ.__setitem__("TORUS_CACHE_DIR", {path})', path=arguments["path"])
