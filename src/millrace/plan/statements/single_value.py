"""Subqueries that stand for one value.

Invariant: a row without inner rows gets the value that the subquery has over no rows: null, or what
its counts make of 0. More than one inner row is an error when the query runs, as in Spark.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows, has_aggregate
from millrace.plan.builders.build_relation_join import join_on
from millrace.plan.builders.build_select import expand_stars
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import all_of
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.relation import Relation
from millrace.plan.statements.correlation import InnerRows, refused_columns
from millrace.plan.statements.query_scope import QueryScope, hidden, with_own_columns
from millrace.sql.expressions import Expression
from millrace.sql.typed_sql import NotNative, failure, quoted
from millrace.sql.types import from_arrow, to_duckdb

_COUNTS: Final = frozenset({"count", "count_if", "approx_count_distinct", "regr_count"})
_NULL_OVER_NOTHING: Final = frozenset(
    {"sum", "avg", "mean", "min", "max", "median", "std", "stddev", "stddev_samp", "stddev_pop"}
    | {"variance", "var_samp", "var_pop", "first", "first_value", "last", "last_value"}
    | {"any_value", "bool_and", "every", "bool_or", "some", "any", "min_by", "max_by"}
)
_TOO_MANY: Final = (
    "[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row returned by a subquery used as an "
    "expression."
)


def scalar_value(
    scope: QueryScope, relation: Relation, inner: InnerRows
) -> tuple[Relation, exp.Expression]:
    """The rows with the value of a subquery in a column, and the expression over that column."""
    items = expand_stars(inner.relation, inner.items)
    if len(items) != 1:
        raise refused_columns(len(items), 1, inner.query)
    item = items[0].this if isinstance(items[0], exp.Alias) else items[0]
    if inner.is_correlated:
        return _correlated(scope, relation, inner, item)
    rows = inner.relation
    if not _has_one_row(inner.query):
        rows = _checked(scope, rows, item.name)
    joined = join_on(scope.context, relation, rows, "cross", None)
    name = rows.attributes[0].column
    return Relation(joined.node, (*relation.attributes, hidden(name))), plan_column(name)


def _has_one_row(query: exp.Expression) -> bool:
    """Whether a query has exactly one row: an aggregate without keys."""
    return (
        isinstance(query, exp.Select)
        and not any(
            query.args.get(key) for key in ("group", "having", "qualify", "limit", "offset")
        )
        and any(map(has_aggregate, query.expressions))
    )


def _checked(scope: QueryScope, rows: Relation, column: str) -> Relation:
    """The one row of a subquery, null if there is none; several rows are an error."""
    grouped = GroupedRows(scope.context, rows, ())
    value = grouped.rewrite(_only(plan_column(column)))
    count = grouped.rewrite(exp.Anonymous(this="count", expressions=[exp.Star()]))
    name = f"__value{scope.number()}"
    node = _at_most_one(grouped.relation().node, value.name, count.name, name)
    return Relation(node, (hidden(name),))


def _only(value: exp.Expression) -> exp.Expression:
    """The value of a group of one row."""
    return exp.Anonymous(this="max", expressions=[value.copy()])


def _at_most_one(node: Node, value: str, count: str, name: str) -> Node:
    """The value of groups of one row; a group of more is an error."""
    kind = from_arrow(node.schema.field(value).type)
    sql = f"CASE WHEN {quoted(count)} > 1 THEN {failure(_TOO_MANY)} ELSE {quoted(value)} END"
    text = f"CASE WHEN `{count}` > 1 THEN raise_error('{_TOO_MANY}') ELSE `{value}` END"
    whole = Expression(
        sql if kind.arrow is not None else f"CAST({sql} AS {to_duckdb(kind)})",
        kind,
        frozenset([value, count]),
        text,
        raises=True,
    )
    kept = [n for n in node.schema.names if n not in (value, count)]
    return Project(node, (*pass_columns(node.schema, kept), (name, whole)))


def _correlated(
    scope: QueryScope, relation: Relation, inner: InnerRows, item: exp.Expression
) -> tuple[Relation, exp.Expression]:
    """The value for the keys of each row: of the group of inner rows with these keys."""
    context = scope.context
    pairs = inner.key_pairs()
    grouped = GroupedRows(context, inner.relation, [pair.inner for pair in pairs])
    keys = [grouped.rewrite(pair.inner) for pair in pairs]
    if has_aggregate(item):
        value = grouped.rewrite(item)
        rows = grouped.relation()
    else:
        first = grouped.rewrite(_only(item))
        count = grouped.rewrite(exp.Anonymous(this="count", expressions=[exp.Star()]))
        value = plan_column(f"__value{scope.number()}")
        below = grouped.relation()
        node = _at_most_one(below.node, first.name, count.name, value.name)
        rows = Relation(node, tuple(hidden(name) for name in node.schema.names))
    whole = Relation(rows.node, tuple(hidden(name) for name in rows.node.schema.names))
    right = with_own_columns(whole, relation.node.schema.names, f"__v{scope.number()}_")
    names = {
        old.column: new.column for old, new in zip(whole.attributes, right.attributes, strict=True)
    }
    equal = [pair.equality(_renamed(key, names)) for pair, key in zip(pairs, keys, strict=True)]
    joined = join_on(context, relation, right, "left", all_of(equal))
    result = Relation(joined.node, (*relation.attributes, *right.attributes))
    if not has_aggregate(item):
        return result, _renamed(value, names)
    return result, exp.Paren(this=_renamed(_over_nothing(value, grouped), names))


def _over_nothing(value: exp.Expression, grouped: GroupedRows) -> exp.Expression:
    """An expression over aggregates in which counts of no rows are 0."""
    calls = grouped.calls
    for call in calls.values():
        if call.lower() not in _COUNTS | _NULL_OVER_NOTHING:
            raise NotNative(f"{call} in a subquery with names of the outer query", fix="")

    def counted(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and calls.get(node.name, "").lower() in _COUNTS:
            return exp.Anonymous(
                this="coalesce",
                expressions=[
                    plan_column(node.name),
                    exp.Anonymous(this="__literal_L", expressions=[exp.Literal.number(0)]),
                ],
            )
        return node

    return value.transform(counted)


def _renamed(tree: exp.Expression, names: dict[str, str]) -> exp.Expression:
    return tree.transform(
        lambda node: (
            plan_column(names.get(node.name, node.name)) if isinstance(node, exp.Column) else node
        )
    )
