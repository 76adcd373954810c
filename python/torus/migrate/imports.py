# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Takes imports without use out of a migrated file, and puts in those that it needs now."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import libcst as cst
from libcst.helpers import get_absolute_module_for_import, get_full_name_for_node

from torus.migrate.names import is_foreign
from torus.migrate.statements import (
    drop_from_block,
    drop_statements,
    emptied,
    placeholder,
)

_ImportNode = cst.Import | cst.ImportFrom


def tidy(module: cst.Module, needs: Iterable[str], kept: Collection[str]) -> cst.Module:
    """Return the module with the imports that its code needs.

    Parameters
    ----------
    module : Module
        A migrated file, still with its old imports.
    needs : iterable of str
        Import statements that the new code wants.
    kept : collection of str
        Names whose foreign imports are still in use.
    """
    remover = _Remover(kept)
    module = module.visit(remover)
    missing = [text for text in sorted(needs, key=_order) if not _is_there(module, text)]
    return _insert(module, [cst.parse_statement(text) for text in missing], remover.removed)


def _order(text: str) -> tuple[int, str]:
    """Plain imports before ``from``, each by name: torch first, as its backend comes with it."""
    return (text.startswith("from"), text)


def _full_name(node: _ImportNode, alias: cst.ImportAlias) -> str:
    name = get_full_name_for_node(alias.name) or ""
    if isinstance(node, cst.Import):
        return name
    module = get_absolute_module_for_import(None, node) if not node.relative else None
    return f"{module}.{name}" if module else name


def _bound(alias: cst.ImportAlias) -> str:
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    return (get_full_name_for_node(alias.name) or "").split(".")[0]


class _Remover(cst.CSTTransformer):
    """Removes import aliases; at the top level of the file a placeholder stays for each line."""

    def __init__(self, kept: Collection[str]) -> None:
        super().__init__()
        self.kept = kept
        self.removed: set[cst.CSTNode] = set()

    def _leave(self, original: _ImportNode, updated: _ImportNode) -> object:
        if isinstance(original.names, cst.ImportStar):
            return updated
        kept = [
            alias
            for alias in original.names
            if _bound(alias) in self.kept or not is_foreign(_full_name(original, alias))
        ]
        if len(kept) == len(original.names):
            return updated
        if not kept:
            return cst.RemoveFromParent()
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(names=kept)

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> object:
        return self._leave(original_node, updated_node)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> object:
        return self._leave(original_node, updated_node)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        return emptied(original_node, updated_node, self.removed)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return drop_from_block(updated_node, self.removed)

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> object:
        # A try that only asked whether torch_xla is there succeeded: its else part stays.
        if updated_node.body not in self.removed:
            return updated_node
        if updated_node.orelse is not None and isinstance(
            updated_node.orelse.body, cst.IndentedBlock
        ):
            first, *others = updated_node.orelse.body.body
            lines = [*updated_node.leading_lines, *getattr(first, "leading_lines", ())]
            return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *others])
        return placeholder(updated_node.leading_lines, self.removed)


def _is_there(module: cst.Module, text: str) -> bool:
    """Return whether the top of the module binds what an import statement would bind."""
    wanted = cst.parse_statement(text)
    assert isinstance(wanted, cst.SimpleStatementLine)
    return any(
        isinstance(statement, cst.SimpleStatementLine)
        and any(_covers(small, wanted.body[0]) for small in statement.body)
        for statement in module.body
    )


def _covers(present: cst.CSTNode, wanted: cst.CSTNode) -> bool:
    if isinstance(wanted, cst.Import) and isinstance(present, cst.Import):
        new = get_full_name_for_node(wanted.names[0].name) or ""
        return any(
            alias.asname is None and f"{get_full_name_for_node(alias.name)}.".startswith(f"{new}.")
            for alias in present.names
        )
    if isinstance(wanted, cst.ImportFrom) and isinstance(present, cst.ImportFrom):
        if isinstance(present.names, cst.ImportStar) or present.relative:
            return False
        names = {(_full_name(present, alias), _bound(alias)) for alias in present.names}
        return (_full_name(wanted, wanted.names[0]), _bound(wanted.names[0])) in names
    return False


def _insert(
    module: cst.Module, new: list[cst.BaseStatement], removed: set[cst.CSTNode]
) -> cst.Module:
    """Put statements where the first old import was, else after the last import at the top."""
    body = list(module.body)
    gone = [position for position, statement in enumerate(body) if statement in removed]
    if new and gone:
        position = max(gone[0], _first_place(body))
        if position == gone[0]:
            new[0] = new[0].with_changes(leading_lines=body[position].leading_lines)
            del body[position]
        body[position:position] = new
    elif new:
        position = max(_last_import(body), _first_place(body))
        if position < len(body):
            body[position] = _separated(body[position])
        body[position:position] = new
    body, rest = drop_statements(body, removed)
    return module.with_changes(body=body, footer=[*rest, *module.footer])


def _separated(statement: cst.BaseStatement) -> cst.BaseStatement:
    """Return the first statement after imports with an empty line before it."""
    lines = getattr(statement, "leading_lines", ())
    if lines or _is_import(statement):
        return statement
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)])


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
    )


def _last_import(body: list[cst.BaseStatement]) -> int:
    positions = [index for index, statement in enumerate(body) if _is_import(statement)]
    return positions[-1] + 1 if positions else 0


def _first_place(body: list[cst.BaseStatement]) -> int:
    """Return the position after the docstring and ``from __future__`` imports."""
    position = 0
    for index, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        small = statement.body[0] if statement.body else None
        future = isinstance(small, cst.ImportFrom) and (
            get_full_name_for_node(small.module) == "__future__" if small.module else False
        )
        docstring = (
            index == 0
            and isinstance(small, cst.Expr)
            and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
        )
        if not (future or docstring):
            break
        position = index + 1
    return position
