"""ORDER BY, SORT BY, CLUSTER BY, LIMIT and OFFSET."""

from __future__ import annotations

from sqlglot import exp

from millrace.plan.builders.build_sort import sort
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.sort_orders import first_rows
from millrace.plan.relation import Relation
from millrace.plan.statements.query_scope import QueryScope
from millrace.sql.typed_sql import ExpressionRefused, NotNative


def orders_of(tree: exp.Expression) -> list[exp.Ordered]:
    """What rows are sorted by: for all rows, or in each partition, where any order does."""
    orders: list[exp.Ordered] = []
    for key in ("order", "sort", "cluster"):
        clause = tree.args.get(key)
        if clause is not None:
            orders += [
                part if isinstance(part, exp.Ordered) else exp.Ordered(this=part, nulls_first=True)
                for part in clause.expressions
            ]
    return orders


def ordered_and_limited(scope: QueryScope, relation: Relation, tree: exp.Expression) -> Relation:
    """Rows of a query in the order, and as many of them, as the clauses behind it say."""
    orders = [_over_columns(order, relation) for order in orders_of(tree)]
    if orders:
        relation = sort(scope.context, relation, orders)
    return limited(relation, tree)


def limited(relation: Relation, tree: exp.Expression) -> Relation:
    """The rows that LIMIT and OFFSET leave."""
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    rows = None
    if limit is not None and limit.expression.name.upper() != "ALL":
        rows = row_count(limit.expression)
    skipped = 0 if offset is None else row_count(offset.expression)
    return relation.over(first_rows(relation.node, rows, skipped))


def row_count(tree: exp.Expression) -> int:
    """The number of rows that a literal says."""
    if isinstance(tree, exp.Paren):
        return row_count(tree.this)
    if not isinstance(tree, exp.Literal) or not tree.name.isdigit():
        raise NotNative("LIMIT takes a whole number here", found=tree.sql("spark"), fix="")
    return int(tree.name)


def ordinal(tree: exp.Expression) -> int | None:
    """The number of the column that `ORDER BY 2` or `GROUP BY 2` means."""
    if isinstance(tree, exp.Literal) and not tree.is_string and tree.name.isdigit():
        return int(tree.name)
    return None


def check_ordinal(number: int, columns: int, clause: str) -> int:
    """The position of the column that a number means."""
    if not 1 <= number <= columns:
        raise ExpressionRefused(
            f"{clause} {number} names no column",
            found=f"{columns} columns",
            fix=f"write a number from 1 to {columns}",
        )
    return number - 1


def _over_columns(order: exp.Ordered, relation: Relation) -> exp.Expression:
    number = ordinal(order.this)
    if number is None:
        return order
    position = check_ordinal(number, len(relation.visible), "ORDER BY")
    order = order.copy()
    order.set("this", plan_column(relation.visible[position].column))
    return order
