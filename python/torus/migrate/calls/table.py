# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The table of calls whose replacement depends on their arguments, and what its rules share.

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

REMOVED = object()

Rule = Callable[[Context, cst.Call], object]

CALLS: dict[str, Rule] = {}

SPREAD = "its arguments come from * or **: rewrite the call by hand as {}"


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter the decorated function for some canonical names."""

    def register(function: Rule) -> Rule:
        CALLS.update(dict.fromkeys(names, function))
        return function

    return register


def is_value(node: cst.BaseExpression | None, value: object) -> bool:
    """Return whether an argument is this literal."""
    found = constant(node)
    return type(found) is type(value) and found == value


def is_absent(arguments: Arguments, name: str) -> bool:
    """Return whether an argument is not given, or None."""
    return name not in arguments or is_value(arguments[name], None)


def with_arguments(
    context: Context, function: str, call: cst.Call, kept: list[cst.Arg]
) -> cst.BaseExpression:
    """Call `function` with some arguments of `call`, laid out as there."""
    return keep_arguments(call, kept).with_changes(func=context.make(function))


def without(call: cst.Call, parameters: tuple[str, ...], dropped: set[str]) -> list[cst.Arg]:
    """Return the arguments of a call that `bind` accepts, without those for some parameters."""
    kept = []
    for position, argument in enumerate(call.args):
        name = argument.keyword.value if argument.keyword else parameters[position]
        if name not in dropped:
            kept.append(argument)
    return kept


def drop(
    context: Context,
    call: cst.Call,
    function: str,
    parameters: tuple[str, ...],
    dropped: tuple[str, ...] = ("pin_layout",),
) -> object:
    """Call `function` with the same arguments but for some that have lost their meaning."""
    if bind(call, parameters) is None:
        return SPREAD.format(f"{function}(...)")
    return with_arguments(context, function, call, without(call, parameters, set(dropped)))


def renamed(call: cst.Call, **names: str) -> cst.Call:
    """Return the call with some keywords named otherwise."""
    return call.with_changes(
        args=[
            argument.with_changes(keyword=cst.Name(names[argument.keyword.value]))
            if argument.keyword and argument.keyword.value in names
            else argument
            for argument in call.args
        ]
    )


def keyword_after(call: cst.Call, name: str, parameters: tuple[str, ...]) -> cst.Call:
    """Give the argument for `name` its keyword, since one before it will go."""
    position = parameters.index(name)
    arguments = list(call.args)
    if position < len(arguments) and not arguments[position].keyword:
        arguments[position] = keyword(name, arguments[position].value)
    return call.with_changes(args=arguments)


def last_name(node: cst.BaseExpression) -> str:
    """Return the last part of a dotted name, empty for anything else."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""
