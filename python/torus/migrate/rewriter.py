# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Rewrites the expressions and statements of one file."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import PositionProvider, QualifiedNameProvider

from torus.migrate import environment
from torus.migrate.calls import CALLS, REMOVED, compile_decorator, counter
from torus.migrate.context import Context, Finding, constant, dotted_text, is_dotted
from torus.migrate.names import canonical, is_foreign
from torus.migrate.rules import (
    EXPRESSIONS,
    NAME_IMPORTS,
    NAMES,
    NEEDLESS,
    REMARKS,
    remedy_for,
)
from torus.migrate.statements import (
    drop_from_block,
    drop_statements,
    emptied,
    is_plain,
    placeholder,
    unwrap,
)
from torus.migrate.strings import migrate_comparison, migrate_device_arguments, migrate_value

# Methods that read a tensor on the host.
_READERS = ("item", "cpu", "tolist", "numpy")


class Rewriter(cst.CSTTransformer):
    """Replaces what the rules know; reports the rest.

    Import statements stay as they are: `torus.migrate.imports` removes those without use.

    Parameters
    ----------
    context : Context
        Takes the findings.
    """

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self._statements: set[cst.CSTNode] = set()  # calls whose value nobody uses
        self._taken: set[cst.CSTNode] = set()  # functions of calls that a rule handles
        self._removed: set[cst.CSTNode] = set()  # calls to be removed
        self._migrated: set[cst.CSTNode] = set()  # calls that a rule replaced
        self._branches: set[cst.CSTNode] = set()  # what follows `elif`

    # ---- names ----

    def name_of(self, node: cst.CSTNode) -> str:
        """Return the canonical name of an expression, empty unless it is one to be migrated."""
        found = self.qualified(node)
        return canonical(found) if is_foreign(found) else ""

    def qualified(self, node: cst.CSTNode) -> str:
        """Return the qualified name of a dotted expression that was imported, else nothing."""
        if not is_dotted(node):
            return ""
        names = self.get_metadata(QualifiedNameProvider, node, set())
        known = [name.name for name in names if name.source.name == "IMPORT"]
        return next((name for name in known if is_foreign(name)), known[0] if known else "")

    def report(self, node: cst.CSTNode, name: str, remedy: str, manual: bool = True) -> None:
        """Note something about a node of the file as it was."""
        start = self.get_metadata(PositionProvider, node).start
        self.context.findings.append(
            Finding(self.context.path, start.line, start.column + 1, name, remedy, manual)
        )
        if manual:
            self.context.leftovers[start.line, start.column + 1] = name.split(".")[0]

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        if isinstance(node.names, cst.ImportStar) and node.module and not node.relative:
            module = dotted_text(node.module)
            if is_foreign(module):
                self.report(node, module, "name what is imported instead of *, then migrate again")
        return False

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self._taken.add(node.keyword)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        # The parts of a dotted name are no names of their own.
        return not self.name_of(node)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return self._leave_name(original_node, updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._leave_name(original_node, updated_node)

    def _leave_name(
        self, original: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression:
        if original in self._taken:
            return updated
        name = self.name_of(original)
        if not name:
            return updated
        if name in NAMES:
            new = NAMES[name]
            if new in NAME_IMPORTS:
                self.context.need(NAME_IMPORTS[new])
            return self.context.make(new)
        self.report(original, dotted_text(original), remedy_for(name))
        return updated

    # ---- calls ----

    def visit_Expr(self, node: cst.Expr) -> None:
        self._statements.add(node.value)

    def visit_Call(self, node: cst.Call) -> None:
        name = self.name_of(node.func) or self.qualified(node.func)
        if name in CALLS or name in EXPRESSIONS or name in NEEDLESS:
            self._taken.add(node.func)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name = self.name_of(original_node.func) or self.qualified(original_node.func)
        self.context.is_statement = original_node in self._statements
        if name in NEEDLESS:
            return self._drop_call(original_node, updated_node, name)
        if name in EXPRESSIONS:
            return self.context.make(EXPRESSIONS[name])
        if name in CALLS:
            return self._apply(original_node, updated_node, name)
        return self._leave_other_call(original_node, updated_node, name)

    def _apply(self, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression:
        result = CALLS[name](self.context, updated)
        if isinstance(result, str):
            self.report(original, dotted_text(original.func), result)
            return updated
        if result is REMOVED:
            return self._remove(original)
        assert isinstance(result, cst.BaseExpression)
        self._migrated.add(original)
        self._remark(original, name)
        return result

    def _remark(self, original: cst.Call, name: str) -> None:
        remark = REMARKS.get(name)
        if remark:
            self.report(original, dotted_text(original.func), remark, manual=False)

    def _drop_call(self, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression:
        if NEEDLESS[name]:
            self.report(original, dotted_text(original.func), NEEDLESS[name], manual=False)
        return self._remove(original)

    def _remove(self, original: cst.Call) -> cst.BaseExpression:
        self._removed.add(original)
        return cst.Name("None")

    def _leave_other_call(
        self, original: cst.Call, updated: cst.Call, name: str
    ) -> cst.BaseExpression:
        """Migrate calls of PyTorch and Python: device strings, variables, loaders."""
        method = original.func.attr.value if isinstance(original.func, cst.Attribute) else ""
        if method == "per_device_loader" and isinstance(updated.func, cst.Attribute):
            return updated.func.value
        if method in _READERS and self.context.is_sharded and not original.args:
            return self._read_whole(updated)
        if name.startswith("os."):
            changed = environment.migrate_call(self, original, updated, name)
            if changed is None:
                return self._remove(original)
            return changed
        count = self._count_of_devices(original)
        return count or migrate_device_arguments(updated, name, method)

    def _read_whole(self, call: cst.Call) -> cst.BaseExpression:
        """Turn ``x.item()`` into ``training.whole(x).item()``: ``x`` may be divided."""
        assert isinstance(call.func, cst.Attribute)
        receiver = call.func.value
        if isinstance(receiver, cst.Call) and dotted_text(receiver.func).endswith(".whole"):
            return call
        read = self.context.make("training.whole({tensor})", tensor=receiver)
        return call.with_changes(func=call.func.with_changes(value=read))

    def _count_of_devices(self, call: cst.Call) -> cst.BaseExpression | None:
        """Recognize ``len(xm.get_xla_supported_devices())``."""
        if not (isinstance(call.func, cst.Name) and call.func.value == "len" and call.args):
            return None
        inner = call.args[0].value
        listing = self.name_of(inner.func) if isinstance(inner, cst.Call) else ""
        if listing in ("xm.get_xla_supported_devices", "torch_xla.devices"):
            return self.context.make("torch.tpu.device_count()")
        return None

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        """Recognize ``met.metric_data("CompileTime")[0]``, the number of samples."""
        call = original_node.value
        if isinstance(call, cst.Call) and self.name_of(call.func) == "met.metric_data":
            element = original_node.slice[0].slice
            first = isinstance(element, cst.Index) and constant(element.value) == 0
            value = counter(self.context, constant(call.args[0].value)) if first else None
            if value is not None:
                self._forget(call)
                return value
        return updated_node

    def leave_Comparison(
        self, original_node: cst.Comparison, updated_node: cst.Comparison
    ) -> cst.BaseExpression:
        return migrate_comparison(updated_node)

    # ---- statements ----

    def leave_Decorator(
        self, original_node: cst.Decorator, updated_node: cst.Decorator
    ) -> cst.Decorator | cst.RemovalSentinel:
        node = original_node.decorator
        function = node.func if isinstance(node, cst.Call) else node
        if self.name_of(function) != "torch_xla.compile":
            return updated_node
        self._forget(node)
        new = compile_decorator(self.context, node)
        return updated_node.with_changes(decorator=new)

    def _forget(self, node: cst.CSTNode) -> None:
        """Take back what was reported about a node that is handled after all."""
        start = self.get_metadata(PositionProvider, node).start
        place = (start.line, start.column + 1)
        self.context.leftovers.pop(place, None)
        self.context.findings = [
            finding for finding in self.context.findings if (finding.line, finding.column) != place
        ]

    def leave_With(
        self, original_node: cst.With, updated_node: cst.With
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        kept = [
            new
            for old, new in zip(original_node.items, updated_node.items, strict=True)
            if not self._is_step_scope(old.item)
        ]
        if len(kept) == len(updated_node.items):
            return updated_node
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return updated_node.with_changes(items=kept)
        return unwrap(updated_node)

    def _is_step_scope(self, item: cst.BaseExpression) -> bool:
        """Recognize ``with torch_xla.step():`` and ``with torch_xla.compile():``."""
        if not isinstance(item, cst.Call):
            return False
        name = self.name_of(item.func)
        if name not in ("torch_xla.step", "torch_xla.compile"):
            return False
        self._forget(item)
        return True

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> object:
        if original_node.value in self._removed:
            return updated_node
        changed = environment.migrate_assign(self, original_node, updated_node)
        if changed is None:
            return cst.RemoveFromParent()
        return migrate_value(changed)

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> object:
        if original_node.value in self._removed:
            return cst.RemoveFromParent()
        return self._keep_result(original_node, updated_node)

    def _keep_result(self, original: cst.Expr, updated: cst.Expr) -> object:
        """Turn ``xs.mark_sharding(x, ...)`` into an assignment to ``x``, and the like."""
        call = original.value
        if call not in self._migrated or not isinstance(updated.value, cst.Call):
            return updated
        assert isinstance(call, cst.Call)
        name = self.name_of(call.func)
        target = updated.value.args[0].value if updated.value.args else None
        if name.startswith("xs.mark_sharding") and isinstance(
            target, (cst.Name, cst.Attribute, cst.Subscript)
        ):
            return cst.Assign([cst.AssignTarget(target)], updated.value)
        if name == "xr.initialize_cache" and dotted_text(updated.value.func).endswith(
            "__setitem__"
        ):
            key, value = (argument.value for argument in updated.value.args)
            element = cst.SubscriptElement(cst.Index(key))
            place = cst.Subscript(cst.parse_expression("os.environ"), [element])
            return cst.Assign([cst.AssignTarget(place)], value)
        return updated

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        return emptied(original_node, updated_node, self.context.removed)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return drop_from_block(updated_node, self.context.removed)

    def visit_For(self, node: cst.For) -> None:
        self.context.loop_parameters |= _parameter_names(node)

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self._branches.add(node.orelse)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> object:
        # A condition that guarded nothing but what went, and does nothing itself, goes too.
        if (
            updated_node.body in self.context.removed
            and updated_node.orelse is None
            and is_plain(updated_node.test)
        ):
            if original_node in self._branches:
                return cst.RemoveFromParent()
            return placeholder(updated_node.leading_lines, self.context.removed)
        return updated_node

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body, rest = drop_statements(updated_node.body, self.context.removed)
        return updated_node.with_changes(body=body, footer=[*rest, *updated_node.footer])


def _parameter_names(loop: cst.For) -> set[str]:
    """Return the variables of a loop over the parameters of a module."""
    iterator = loop.iter
    method = iterator.func if isinstance(iterator, cst.Call) else None
    if not isinstance(method, cst.Attribute):
        return set()
    if method.attr.value not in ("parameters", "named_parameters"):
        return set()
    targets = [loop.target]
    if isinstance(loop.target, cst.Tuple):
        targets = [element.value for element in loop.target.elements]
    return {target.value for target in targets if isinstance(target, cst.Name)}
