# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Environment variables: set in Python, and in files that are no Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from torus.migrate.context import constant, dotted_text
from torus.migrate.rules import (
    ENVIRONMENT_NAMES,
    ENVIRONMENT_REMEDIES,
    ENVIRONMENT_VALUES,
)

if TYPE_CHECKING:
    from torus.migrate.rewriter import Rewriter

_SETTERS = ("os.environ.setdefault", "os.putenv")

VARIABLE = re.compile(r"\b(" + "|".join(ENVIRONMENT_REMEDIES) + r")\b")


def _string(text: str) -> cst.SimpleString:
    return cst.SimpleString(f'"{text}"')


def migrate_assign(
    rewriter: Rewriter, original: cst.Assign, updated: cst.Assign
) -> cst.Assign | None:
    """Migrate ``os.environ["NAME"] = value``; None removes the statement."""
    place = original.targets[0].target
    if not (isinstance(place, cst.Subscript) and rewriter.qualified(place.value) == "os.environ"):
        return updated
    index = place.slice[0].slice
    name = constant(index.value) if isinstance(index, cst.Index) else None
    new = _replacement(rewriter, original, name, updated.value)
    if new is None:
        return None
    if new == (name, updated.value):
        return updated
    key = cst.SubscriptElement(cst.Index(_string(str(new[0]))))
    place = place.with_changes(slice=[key])
    target = updated.targets[0].with_changes(target=place)
    return updated.with_changes(targets=[target, *updated.targets[1:]], value=new[1])


def migrate_call(
    rewriter: Rewriter, original: cst.Call, updated: cst.Call, function: str
) -> cst.Call | None:
    """Migrate ``os.environ.setdefault("NAME", value)``; None removes the statement."""
    name = constant(updated.args[0].value) if updated.args else None
    if name not in ENVIRONMENT_REMEDIES:
        return updated
    if function not in _SETTERS or len(updated.args) != 2:
        return _migrate_read(rewriter, original, updated, str(name))
    new = _replacement(rewriter, original, name, updated.args[1].value)
    if new is None:
        return None
    first, second = updated.args
    key = first.value if new[0] == name else _string(str(new[0]))
    arguments = [first.with_changes(value=key), second.with_changes(value=new[1])]
    return updated.with_changes(args=arguments)


def _migrate_read(rewriter: Rewriter, original: cst.Call, updated: cst.Call, name: str) -> cst.Call:
    if name in ENVIRONMENT_NAMES:
        first = updated.args[0].with_changes(value=_string(ENVIRONMENT_NAMES[name]))
        return updated.with_changes(args=[first, *updated.args[1:]])
    rewriter.report(original, f"{dotted_text(original.func)}({name!r})", ENVIRONMENT_REMEDIES[name])
    return updated


def _replacement(
    rewriter: Rewriter, node: cst.CSTNode, name: object, value: cst.BaseExpression
) -> tuple[object, cst.BaseExpression] | None:
    """Return the new name and value; the old ones, reported, where there is no rule."""
    if name not in ENVIRONMENT_REMEDIES:
        return name, value
    if name in ENVIRONMENT_NAMES:
        return ENVIRONMENT_NAMES[str(name)], value
    key = (str(name), str(constant(value)))
    if key not in ENVIRONMENT_VALUES:
        rewriter.report(node, str(name), ENVIRONMENT_REMEDIES[str(name)])
        return name, value
    new = ENVIRONMENT_VALUES[key]
    return None if new is None else (new[0], _string(new[1]))
