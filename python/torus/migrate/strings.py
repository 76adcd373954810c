# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The device called "xla" in strings, where the place tells that a device is meant."""

from __future__ import annotations

import re

import libcst as cst

_DEVICE = re.compile(r"""^([bu]?['"])(xla|XLA)((?::\d+)?['"])$""")
_KEYWORDS = ("device", "device_type", "map_location", "device_map")
_FIRST_ARGUMENT = {
    "torch.device",
    "torch.autocast",
    "torch.amp.autocast",
    "torch.amp.GradScaler",
    "torch.set_default_device",
    "torch.Generator",
    "torch.random.fork_rng",
}
_BACKENDS = {"openxla", "openxla_eval", "torchxla_trace_once", "aot_torchxla_trace_once"}


def migrate_string(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``"xla:1"`` as ``"tpu:1"``, anything else as it is."""
    if isinstance(node, cst.SimpleString):
        match = _DEVICE.match(node.value)
        if match:
            return node.with_changes(value=f"{match[1]}tpu{match[3]}")
    return node


def migrate_device_arguments(call: cst.Call, name: str, method: str) -> cst.Call:
    """Rename the device in the arguments of a call that take one.

    Parameters
    ----------
    call : Call
        Any call.
    name : str
        Its function's qualified name, if known.
    method : str
        The last part of its function's name, if that is an attribute.
    """
    arguments, changed = [], False
    for position, argument in enumerate(call.args):
        value = argument.value
        if argument.keyword is not None:
            if argument.keyword.value in _KEYWORDS:
                value = migrate_string(value)
            elif argument.keyword.value == "backend":
                value = _migrate_backend(value)
        elif position == 0 and (name in _FIRST_ARGUMENT or method == "to"):
            value = migrate_string(value)
        changed |= value is not argument.value
        arguments.append(argument.with_changes(value=value))
    return call.with_changes(args=arguments) if changed else call


def _migrate_backend(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.SimpleString) and node.evaluated_value in _BACKENDS:
        return cst.SimpleString('"tpu"')
    return node


def migrate_comparison(node: cst.Comparison) -> cst.Comparison:
    """Rename the device in ``x.device.type == "xla"`` and ``"xla" in str(device)``."""
    sides = [node.left, *(target.comparator for target in node.comparisons)]
    if not any(_speaks_of_device(side) for side in sides):
        return node
    targets = [
        target.with_changes(comparator=migrate_string(target.comparator))
        for target in node.comparisons
    ]
    return node.with_changes(left=migrate_string(node.left), comparisons=targets)


def _speaks_of_device(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call):
        return any(_speaks_of_device(argument.value) for argument in node.args)
    if isinstance(node, cst.Attribute):
        return "device" in node.attr.value or node.attr.value == "type"
    return isinstance(node, cst.Name) and "device" in node.value.lower()


def migrate_value(node: cst.Assign) -> cst.Assign:
    """Rename the device in ``device = "xla"``."""
    named = any(_speaks_of_device(target.target) for target in node.targets)
    return node.with_changes(value=migrate_string(node.value)) if named else node
