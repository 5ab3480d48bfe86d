"""Operators over plans whose trees are resolved: native where the engine has Spark's answer.

Each function here gives a plan. An expression that only Spark computes takes its operator to Spark,
and only that one. Invariant: the columns and types of the plan are Spark's either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project
from millrace.plan.relation import picked_columns
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import Expression, expression_of
from millrace.sql.functions.nested.field_updates import expand_updates
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import canonical, operands
from millrace.sql.typed_sql import RESOLVED, WRITTEN, ExpressionRefused, NotNative, TypedSql
from millrace.sql.types import BOOLEAN, VOID

Labels = Mapping[str, str]
"""The labels of a plan's columns, for the names of expressions."""
_PARTS_MAX: Final = 32


def typed(tree: exp.Expression, schema: pa.Schema, labels: Labels | None = None) -> TypedSql:
    """A resolved tree, typed."""
    return ExpressionTyper(NameScope(schema, labels)).typed(tree)


def with_sql_form(tree: exp.Expression, schema: pa.Schema) -> exp.Expression:
    """The tree as SQL can say it: changed fields of structs become structs of all fields."""
    return expand_updates(tree, lambda struct: typed(struct, schema))


def expression(tree: exp.Expression, schema: pa.Schema) -> Expression:
    """A resolved tree as an expression."""
    return expression_of(tree, typed(tree, schema))


def project(
    context: BuildContext, node: Node, columns: Sequence[tuple[str, exp.Expression]]
) -> Node:
    """Columns calculated from those of a plan."""
    schema = node.schema
    columns = [(name, with_sql_form(tree, schema)) for name, tree in columns]
    try:
        return Project(node, tuple((name, expression(tree, schema)) for name, tree in columns))
    except NotNative as refused:
        if context.on_spark is None:
            raise
        rows, items = _under_written_names(node, columns)
        text = f"SELECT {select_list(items)} FROM input_0"
        return context.on_spark([("input_0", rows)], text, reason_of(refused))


def _under_written_names(
    node: Node, columns: Sequence[tuple[str, exp.Expression]]
) -> tuple[Node, list[tuple[str, exp.Expression]]]:
    """The plan under the names that users wrote, by which Spark names fields of structs.

    The same plan if two columns would have one name.
    """
    read = [c for _, tree in columns for c in tree.find_all(exp.Column) if c.meta_get(WRITTEN)]
    written = {column.name: str(column.meta[WRITTEN]) for column in read}
    names = [written.get(name, name) for name in node.schema.names]
    if names == node.schema.names or len(set(map(str.lower, names))) < len(names):
        return node, list(columns)

    def renamed(part: exp.Expression) -> exp.Expression:
        if not isinstance(part, exp.Column) or not part.meta_get(RESOLVED):
            return part
        return exp.column(exp.to_identifier(written.get(part.name, part.name), quoted=True))

    rows = picked_columns(node, list(zip(names, node.schema.names, strict=True)))
    return rows, [(name, tree.transform(renamed)) for name, tree in columns]


def keep(context: BuildContext, node: Node, condition: exp.Expression) -> Node:
    """The rows for which a condition is true."""
    condition = with_sql_form(condition, node.schema)

    def native() -> Node:
        plan = node
        for part in conditions(condition, node.schema):
            plan = Filter(plan, part)
        return plan

    text = canonical(condition)
    return native_or_spark(context, native, [node], lambda: f"SELECT * FROM input_0 WHERE {text}")


def conditions(tree: exp.Expression, schema: pa.Schema) -> list[Expression]:
    """The parts of a condition that AND joins; those that can fail are one part, the last."""
    whole = expression(tree, schema)
    if whole.type not in (BOOLEAN, VOID):
        what = f"a condition of type {whole.type}"
        raise NotNative(what, found=whole.text, fix="compare it with something, as in a > 0")
    trees = operands(tree, exp.And, through_brackets=True)
    if not 1 < len(trees) <= _PARTS_MAX:
        return [whole]
    parts = [(part, expression(part, schema)) for part in trees]
    failing = [part for part, term in parts if term.raises]
    last = [expression(all_of(failing), schema)] if failing else []
    return [*(term for _, term in parts if not term.raises), *last]


def all_of(parts: Sequence[exp.Expression]) -> exp.Expression:
    """The condition that all of these are true."""
    whole, *rest = [part.copy() for part in parts]
    for part in rest:
        whole = exp.And(this=whole, expression=part)
    return whole


def named(tree: exp.Expression, label: str) -> exp.Alias:
    """An expression under a label."""
    return exp.Alias(this=tree.copy(), alias=exp.to_identifier(label, quoted=True))


def native_or_spark(
    context: BuildContext,
    native: Callable[[], Node],
    inputs: Sequence[Node],
    spark_sql: Callable[[], str],
) -> Node:
    """The native plan, or Spark's SQL over the inputs where the engine has not Spark's answer."""
    try:
        return native()
    except NotNative as refused:
        if context.on_spark is None:
            raise
        tables = [(f"input_{number}", node) for number, node in enumerate(inputs)]
        return context.on_spark(tables, spark_sql(), reason_of(refused))


def reason_of(refused: ExpressionRefused) -> str:
    """Why an operator runs on Spark, in a line."""
    return f"{refused.what} ({refused.found})" if refused.found else refused.what


def select_list(columns: Sequence[tuple[str, exp.Expression]]) -> str:
    """Named columns as a list of Spark's SQL."""
    return ", ".join(f"{canonical(tree)} AS {spark_name(name)}" for name, tree in columns)


def spark_name(name: str) -> str:
    """A name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
