"""Builds the relation of a SQL statement.

What has no native form goes to Spark as the smallest operator that holds it; where a whole query
has none, Spark runs that query over the tables that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import noted_calls
from millrace.plan.relation import Relation
from millrace.plan.statements.from_clause import from_rows
from millrace.plan.statements.on_subqueries import as_side_columns
from millrace.plan.statements.order_clauses import ordered_and_limited
from millrace.plan.statements.query_on_spark import query_on_spark
from millrace.plan.statements.query_scope import QueryScope, aliased
from millrace.plan.statements.select_block import select_block, select_over
from millrace.plan.statements.set_operations import set_operation
from millrace.plan.statements.subqueries import filtered
from millrace.plan.statements.table_sources import table_source, with_pivots
from millrace.sql.typed_sql import ExpressionRefused, NotNative


def statement_relation(context: BuildContext, tree: exp.Expression) -> Relation:
    """The rows of a query."""
    scope = QueryScope(context=context, parts=_Parts())
    tree = noted_calls(context, tree)
    try:
        return _build(scope, tree).only_visible()
    except NotNative:
        raise
    except ExpressionRefused as refused:
        if context.on_spark is None or not _has_subquery(tree):
            raise
        try:
            return query_on_spark(scope, tree, refused)
        except UserError:
            raise refused from None


def _has_subquery(tree: exp.Expression) -> bool:
    """Whether a query stands inside another, where names may mean more than is known here."""
    return any(query is not tree for query in tree.find_all(exp.Select))


class _Parts:
    """Builds the parts of a statement."""

    def query(self, scope: QueryScope, tree: exp.Expression) -> Relation:
        """The rows of a query."""
        return _build(scope, tree)

    def source(self, scope: QueryScope, tree: exp.Select) -> tuple[Relation, list[exp.Expression]]:
        """The rows of FROM, and the conditions that are left for a filter."""
        return from_rows(scope, tree)

    def kept(
        self, scope: QueryScope, relation: Relation, conditions: Sequence[exp.Expression]
    ) -> Relation:
        """The rows for which all conditions are true."""
        return filtered(scope, relation, conditions)

    def as_columns(
        self, scope: QueryScope, sides: Sequence[Relation], tree: exp.Expression
    ) -> tuple[list[Relation], exp.Expression]:
        """The sides of a join with columns for subqueries of its condition, and the condition."""
        return as_side_columns(scope, sides, tree)

    def over(self, scope: QueryScope, relation: Relation, tree: exp.Select) -> Relation:
        """The clauses behind WHERE, over given rows."""
        return select_over(scope, relation, tree)


def _build(scope: QueryScope, tree: exp.Expression) -> Relation:
    try:
        return _native(scope, tree)
    except NotNative as refused:
        if scope.context.on_spark is None or scope.is_subquery:
            raise
        return query_on_spark(scope, tree, refused)


def _native(scope: QueryScope, tree: exp.Expression) -> Relation:
    scope = _with_tables(scope, tree)
    match tree:
        case exp.Select():
            return select_block(scope, tree)
        case exp.SetOperation():
            return ordered_and_limited(scope, set_operation(scope, tree), tree)
        case exp.Subquery():
            inner = aliased(scope.query(tree.this), tree.args.get("alias"))
            inner = with_pivots(scope, inner, tree.args.get("pivots") or ())
            return ordered_and_limited(scope, inner, tree)
        case exp.Values() | exp.Table():
            return table_source(scope, tree)
        case _:
            raise NotNative(
                f"{type(tree).__name__.lower()} is not built here", found=tree.sql("spark"), fix=""
            )


def _with_tables(scope: QueryScope, tree: exp.Expression) -> QueryScope:
    """The scope with the tables of WITH, each built once."""
    tables = tree.args.get("with_")
    if tables is None:
        return scope
    if tables.args.get("recursive"):
        raise NotNative("WITH RECURSIVE is not built here", fix="")
    for table in tables.expressions:
        inside = replace(scope, is_subquery=False)
        relation = aliased(inside.query(table.this), table.args["alias"])
        scope = scope.with_table(table.alias, relation)
    return scope
