# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Taking statements out of a program without losing the comments around them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import libcst as cst

Lines = list[cst.EmptyLine]


def placeholder(
    lines: Sequence[cst.EmptyLine], removed: set[cst.CSTNode]
) -> cst.SimpleStatementLine:
    """Return a statement that stands for one that goes, with the lines before it.

    libcst would drop an empty statement, and its comments with it.
    """
    statement = cst.SimpleStatementLine([cst.Pass()], leading_lines=lines)
    removed.add(statement)
    return statement


def emptied(
    original: cst.SimpleStatementLine,
    updated: cst.SimpleStatementLine,
    removed: set[cst.CSTNode],
) -> cst.SimpleStatementLine:
    """Return the line, or a placeholder for it if all its statements went."""
    if original.body and not updated.body:
        return placeholder(updated.leading_lines, removed)
    return updated


def drop_from_block(block: cst.IndentedBlock, removed: set[cst.CSTNode]) -> cst.IndentedBlock:
    """Return the block without the statements that go; `removed` gets it if nothing stays."""
    body, rest = drop_statements(block.body, removed)
    if len(body) == len(block.body):
        return block
    if body:
        return block.with_changes(body=body, footer=[*rest, *block.footer])
    new = block.with_changes(body=[cst.SimpleStatementLine([cst.Pass()], leading_lines=rest)])
    removed.add(new)
    return new


def drop_statements(
    body: Sequence[cst.BaseStatement], removed: Collection[cst.CSTNode]
) -> tuple[list[cst.BaseStatement], Lines]:
    """Leave some statements out; their comments go to the statement that follows.

    Returns
    -------
    tuple of list of BaseStatement and list of EmptyLine
        What stays, and the comments after which nothing follows.
    """
    kept: list[cst.BaseStatement] = []
    waiting: Lines = []
    for statement in body:
        lines = list(getattr(statement, "leading_lines", ()))
        if statement in removed:
            waiting = _joined(waiting, lines)
            continue
        if waiting:
            statement = statement.with_changes(leading_lines=_joined(waiting, lines))
            waiting = []
        kept.append(statement)
    return kept, [line for line in waiting if line.comment]


def _joined(first: Lines, second: Lines) -> Lines:
    """Put lines together; where both bring empty lines, those of the longer run stay."""
    own = _empty_run(second)
    before = _empty_run(first[::-1])
    if before >= own:
        return first + second[own:]
    return first[: len(first) - before] + second


def _empty_run(lines: Lines) -> int:
    """Return how many lines at the start are empty."""
    for position, line in enumerate(lines):
        if line.comment:
            return position
    return len(lines)


def unwrap(statement: cst.With) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return the body of a ``with`` statement as statements of their own."""
    if isinstance(statement.body, cst.SimpleStatementSuite):
        lines: list[cst.BaseStatement] = [cst.SimpleStatementLine(statement.body.body)]
    else:
        lines = list(statement.body.body)
    first = lines[0]
    before = [*statement.leading_lines, *getattr(first, "leading_lines", ())]
    return cst.FlattenSentinel([first.with_changes(leading_lines=before), *lines[1:]])


def is_plain(test: cst.BaseExpression) -> bool:
    """Return whether looking at an expression does nothing: it holds no call."""
    finder = _CallFinder()
    test.visit(finder)
    return not finder.found


class _CallFinder(cst.CSTVisitor):
    found = False

    def visit_Call(self, node: cst.Call) -> None:
        self.found = True

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.found = True

    def visit_Await(self, node: cst.Await) -> None:
        self.found = True
