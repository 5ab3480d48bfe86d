"""Builds the relation of a SQL statement, and of a method of datasets with subqueries in it.

What has no native form goes to Spark as the smallest operator that holds it; where a whole query
has none, Spark runs that query over the tables that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_relation_join import join_on
from millrace.plan.builders.build_select import select, where
from millrace.plan.builders.build_udf_calls import noted_calls
from millrace.plan.builders.generators.build_generate import generator_of
from millrace.plan.builders.name_resolution import find
from millrace.plan.nodes.join import JoinKind
from millrace.plan.relation import Relation
from millrace.plan.statements.from_clause import from_rows, join_with_subqueries
from millrace.plan.statements.lateral_joins import lateral_join, lateral_over
from millrace.plan.statements.on_subqueries import as_side_columns
from millrace.plan.statements.order_clauses import ordered_and_limited
from millrace.plan.statements.query_on_spark import query_on_spark
from millrace.plan.statements.query_scope import QueryScope, aliased, with_own_columns
from millrace.plan.statements.select_block import select_block, select_over
from millrace.plan.statements.set_operations import set_operation
from millrace.plan.statements.subqueries import conjuncts, filtered, with_subqueries
from millrace.plan.statements.table_sources import table_source, with_pivots
from millrace.sql.connect_expressions import ORIGIN
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_ROWS: Final = "__rows"
"""The name of given rows in a query for Spark."""


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


def rows_where(
    context: BuildContext, rows: Relation, condition: exp.Expression, tables: Mapping[str, Relation]
) -> Relation:
    """The rows for which a condition is true; its subqueries name these tables or the catalog's."""
    if not condition.find(exp.Query):
        return where(context, rows, condition)
    scope = _scope(context, tables)
    native = lambda: rows.over(filtered(scope, rows, conjuncts(condition)).node)  # noqa: E731
    whole = exp.Select(expressions=[exp.Star()], where=exp.Where(this=condition))
    kept = _native_or_query(scope, rows, native, whole)
    if kept.attributes == rows.attributes:
        return kept
    pairs = zip(rows.visible, kept.visible, strict=True)
    return Relation(kept.node, tuple(replace(a, column=b.column) for a, b in pairs))


def rows_selected(
    context: BuildContext,
    rows: Relation,
    items: Sequence[exp.Expression],
    tables: Mapping[str, Relation],
) -> Relation:
    """The columns of a select list; its subqueries name these tables, or the catalog's."""
    if not any(item.find(exp.Query) for item in items):
        return select(context, rows, items)
    scope = _scope(context, tables)
    whole = exp.Select(expressions=list(items))
    return _native_or_query(scope, rows, lambda: select_over(scope, rows, whole), whole)


def rows_grouped(
    context: BuildContext,
    rows: Relation,
    keys: Sequence[exp.Expression],
    items: Sequence[exp.Expression],
    tables: Mapping[str, Relation],
) -> Relation:
    """Groups by keys, with subqueries in the keys or the items: the keys, then the items."""
    scope = _scope(context, tables)
    bare = [key.this if isinstance(key, exp.Alias) else key for key in keys]
    whole = exp.Select(expressions=[*keys, *items])
    if keys:
        whole.set("group", exp.Group(expressions=[key.copy() for key in bare]))
    return _native_or_query(scope, rows, lambda: select_over(scope, rows, whole), whole)


def rows_with_values(
    context: BuildContext,
    rows: Relation,
    trees: Sequence[exp.Expression],
    tables: Mapping[str, Relation],
) -> tuple[Relation, list[exp.Expression]]:
    """The rows with hidden columns for subqueries in the trees, and the trees over them."""
    if not any(tree.find(exp.Query) for tree in trees):
        return rows, list(trees)
    return with_subqueries(_scope(context, tables), rows, trees)


def rows_joined(
    context: BuildContext,
    sides: tuple[Relation, Relation],
    how: JoinKind,
    on: exp.Expression | None,
    tables: Mapping[str, Relation],
) -> Relation:
    """Pairs of rows for which a condition is true; its subqueries name these tables."""
    left, right = sides
    if on is None or not on.find(exp.Query):
        return join_on(context, left, right, how, on)
    right = with_own_columns(right, left.node.schema.names)
    return join_with_subqueries(_scope(context, tables), left, right, how, on)


def rows_joined_laterally(
    context: BuildContext,
    rows: Relation,
    lateral: exp.Lateral,
    how: JoinKind,
    on: exp.Expression | None,
    tables: Mapping[str, Relation],
) -> Relation:
    """Each row with the rows of a subquery that names its columns."""
    scope = _scope(context, tables)
    join = exp.Join(this=lateral, on=on, kind="CROSS" if how == "cross" else None)
    if how == "left":
        join.set("side", "LEFT")
    whole = exp.Select(expressions=[exp.Star()], joins=[join])
    call = lateral.this.this.args["from_"].this.this
    if generator_of(call) is None:
        native = lambda: lateral_join(scope, rows, lateral, how, on)  # noqa: E731
    else:
        native = lambda: lateral_over(scope, rows, lateral, how, on)  # noqa: E731
    return _native_or_query(scope, rows, native, whole)


def _scope(context: BuildContext, tables: Mapping[str, Relation]) -> QueryScope:
    by_name = {name.lower(): relation for name, relation in tables.items()}
    return QueryScope(context=context, parts=_Parts(), tables=by_name)


def _native_or_query(
    scope: QueryScope, rows: Relation, native: Callable[[], Relation], whole: exp.Select
) -> Relation:
    """Rows over given ones, built here; else by a query that Spark runs over them."""
    try:
        return native()
    except ExpressionRefused as refused:
        if scope.context.on_spark is None:
            raise
        query = whole.copy()
        table = exp.Table(this=exp.to_identifier(_ROWS))
        qualifiers = {a.qualifier for a in rows.visible}
        alias = qualifiers.pop()[-1:] if len(qualifiers) == 1 else ()
        name = alias[0] if alias else _ROWS
        table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
        query.set("from_", exp.From(this=table))
        by_name = {**scope.tables, _ROWS: rows}
        aliases = _aliases(query, by_name)
        if len({alias.lower() for alias, _ in aliases}) < len(aliases):
            raise  # A column that was named through a dataset may be another one in the text.
        tables = {alias: by_name[own] for alias, own in aliases}
        named = query.transform(lambda node: _by_label(node, tables))
        try:
            return query_on_spark(scope.with_table(_ROWS, rows.only_visible()), named, refused)
        except UserError:
            if isinstance(refused, NotNative):
                raise
            raise refused from None


def _aliases(query: exp.Expression, tables: Mapping[str, Relation]) -> set[tuple[str, str]]:
    """The names that tables have in a query, with their own names."""
    known = [table for table in query.find_all(exp.Table) if table.name.lower() in tables]
    return {(table.alias or table.name, table.name.lower()) for table in known}


def _by_label(node: exp.Expression, tables: Mapping[str, Relation]) -> exp.Expression:
    """A column that was named through a dataset, or is one of a plan, by its table and label."""
    if not isinstance(node, exp.Column) or not node.meta.get(ORIGIN):
        attribute = node.meta.get("attribute") if isinstance(node, exp.Column) else None
        return (
            node
            if attribute is None
            else exp.column(exp.to_identifier(attribute.label, quoted=True))
        )
    for name, relation in tables.items():
        attribute = find(node, relation.attributes)
        if attribute is not None:
            label = exp.to_identifier(attribute.label, quoted=True)
            return exp.Column(this=label, table=exp.to_identifier(name, quoted=True))
    return node


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
