# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What the rules see of the file they rewrite, and what they leave behind in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import libcst as cst
from libcst.helpers import parse_template_expression

Arguments = dict[str, cst.BaseExpression]


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """Something for a person to read or do.

    Attributes
    ----------
    path : str
        The file.
    line, column : int
        Where, both counted from 1.
    name : str
        What it is about, as the file's author calls it.
    remedy : str
        What to do, or to know.
    manual : bool
        Whether the code still needs a hand; otherwise it was migrated and this is a remark.
    """

    path: str
    line: int
    column: int
    name: str
    remedy: str
    manual: bool = True


@dataclasses.dataclass(frozen=True)
class Project:
    """What the files of a project tell together.

    Attributes
    ----------
    many_processes : bool
        Whether some file starts or counts processes, so that gradients must be exchanged.
    """

    many_processes: bool = True


class Context:
    """Findings and needed imports of one file."""

    def __init__(self, path: str, project: Project, training_name: str) -> None:
        self.path = path
        self.project = project
        self.training_name = training_name
        self.findings: list[Finding] = []
        self.needs: set[str] = set()
        self.removed: set[cst.CSTNode] = set()
        self.training_functions: set[str] = set()
        self.loop_parameters: set[str] = set()
        self.is_statement = False
        self.is_sharded = False
        self.leftovers: dict[tuple[int, int], str] = {}  # by place: what still needs its import

    def need(self, statement: str) -> None:
        """Ask for an import statement at the top of the file."""
        self.needs.add(statement)

    def make(self, template: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
        """Build an expression and ask for the imports it uses.

        Parameters
        ----------
        template : str
            Python with ``{name}`` for each of `parts`; ``training.`` stands for the module
            `torch_tpu.training` under whatever name the file can have it.
        """
        if "training." in template:
            template = template.replace("training.", f"{self.training_name}.")
            alias = "" if self.training_name == "training" else f" as {self.training_name}"
            self.need(f"from torch_tpu import training{alias}")
        if "torch_tpu." in template:
            self.need("import torch_tpu.platform")
        if "torch." in template:
            self.need("import torch")
        if "os." in template:
            self.need("import os")
        return parse_template_expression(template, **parts)


def bind(call: cst.Call, parameters: Sequence[str]) -> Arguments | None:
    """Match the arguments of a call with the names of parameters.

    Returns
    -------
    dict or None
        None if the call has ``*`` or ``**`` arguments, or some that have no parameter.
    """
    bound: Arguments = {}
    for position, argument in enumerate(call.args):
        if argument.star:
            return None
        if argument.keyword is not None:
            name = argument.keyword.value
        elif position < len(parameters):
            name = parameters[position]
        else:
            return None
        if name not in parameters or name in bound:
            return None
        bound[name] = argument.value
    return bound


def keep_arguments(call: cst.Call, kept: Sequence[cst.Arg]) -> cst.Call:
    """Return the call with some of its arguments, laid out as before."""
    arguments = list(kept)
    if arguments and call.args and arguments[-1] is not call.args[-1]:
        last = call.args[-1]
        arguments[-1] = arguments[-1].with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
    space = call.whitespace_before_args if arguments else cst.SimpleWhitespace("")
    return call.with_changes(args=arguments, whitespace_before_args=space)


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Build the argument ``name=value``."""
    return cst.Arg(
        value=value,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )


def constant(node: cst.BaseExpression | None) -> object:
    """Return the value of a literal string, number, True, False or None; else the node."""
    if isinstance(node, cst.Name) and node.value in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[node.value]
    if isinstance(node, (cst.SimpleString, cst.Integer, cst.Float)):
        return node.evaluated_value
    return node


def is_dotted(node: cst.CSTNode) -> bool:
    """Return whether an expression is a name, or attributes of one."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def dotted_text(node: cst.CSTNode) -> str:
    """Return such an expression as text."""
    return cst.Module([]).code_for_node(node)
