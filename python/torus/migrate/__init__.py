# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Rewrites programs for torch_xla and optimum-tpu to PyTorch's device "tpu".

`migrate_source` works on one file's text. What it cannot rewrite it leaves as it is and reports,
so that the result is never silently another program. A migrated file migrates to itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import libcst as cst
from libcst.metadata import MetadataWrapper, ScopeProvider

from torus.migrate.context import Context, Finding, Project
from torus.migrate.imports import tidy
from torus.migrate.rewriter import Rewriter
from torus.migrate.rules import ENVIRONMENT_REMEDIES

__all__ = ["Finding", "Migration", "Project", "look_at", "migrate_source"]

_INTERESTING = re.compile(
    r"torch_xla|optimum[. ]tpu|optimum\.tpu|['\"]xla(:\d+)?['\"]|['\"]openxla['\"]|"
    + "|".join(ENVIRONMENT_REMEDIES)
)
_MANY = re.compile(
    r"\bxmp\.spawn|xla_multiprocessing|torch_xla\.launch|\blaunch\s*\(|xla_backend|xla://|"
    r"world_size|global_ordinal|get_ordinal|all_reduce|mesh_reduce|rendezvous|use_spmd"
)
_SHARDED = re.compile(r"\b(use_spmd|mark_sharding|ShardingSpec|get_1d_mesh)\b")
_SYNTAX = "this is no Python 3 that libcst can read: {}"


@dataclasses.dataclass(frozen=True)
class Migration:
    """What became of a file.

    Attributes
    ----------
    path : str
        Its name.
    before, after : str
        Its text.
    findings : list of Finding
        In the order of lines.
    """

    path: str
    before: str
    after: str
    findings: list[Finding]

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do by hand."""
        return not any(finding.manual for finding in self.findings)


def is_interesting(text: str) -> bool:
    """Return whether a text has anything to migrate, judged by its words."""
    return _INTERESTING.search(text) is not None


def look_at(texts: Iterable[str]) -> Project:
    """Return what the files of a project tell together."""
    return Project(
        many_processes=any(is_interesting(text) and _MANY.search(text) for text in texts)
    )


def migrate_source(text: str, path: str = "<string>", project: Project | None = None) -> Migration:
    """Migrate the text of one Python file.

    Parameters
    ----------
    text : str
        The file.
    path : str
        Its name, for the findings.
    project : Project, optional
        See `look_at`; by default what this file tells alone.

    Returns
    -------
    Migration
        A file that cannot be parsed is unchanged and has one finding.
    """
    if not is_interesting(text):
        return Migration(path, text, text, [])
    try:
        wrapper = MetadataWrapper(cst.parse_module(text))
    except cst.ParserSyntaxError as error:
        place = (error.raw_line, error.raw_column + 1)
        finding = Finding(
            path, *place, "syntax error", _SYNTAX.format(error.message.split(": ")[-1])
        )
        return Migration(path, text, text, [finding])
    context = Context(path, project or look_at([text]), _training_name(wrapper))
    context.is_sharded = _SHARDED.search(text) is not None
    context.training_functions = _training_functions(wrapper.module)
    module = wrapper.visit(Rewriter(context))
    after = tidy(module, context.needs, set(context.leftovers.values())).code
    return Migration(path, text, after, sorted(set(context.findings)))


def _training_name(wrapper: MetadataWrapper) -> str:
    """Return a name for `torch_tpu.training` that the file does not use for anything else."""
    names = {
        assignment.name
        for scope in set(wrapper.resolve(ScopeProvider).values())
        for assignment in getattr(scope, "assignments", ())
    }
    if "training" in names and "from torch_tpu import training" not in wrapper.module.code:
        return "tpu_training"
    return "training"


def _training_functions(module: cst.Module) -> set[str]:
    """Names of the functions that run a backward pass or an optimizer's step."""
    finder = _TrainingFinder()
    module.visit(finder)
    return finder.found


class _TrainingFinder(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._inside: list[str] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._inside.append(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._inside.pop()

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if self._inside and node.attr.value in ("backward", "optimizer_step", "zero_grad"):
            self.found.update(self._inside)
