"""Builds sorts of relations, by any expressions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import with_udf_columns
from millrace.plan.builders.build_windows import with_window_columns
from millrace.plan.builders.name_resolution import plan_column, resolve
from millrace.plan.builders.operators import native_or_spark, project, spark_name
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.sort import Sort, SortKey
from millrace.plan.relation import Relation, free_columns
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import from_arrow


def sort(context: BuildContext, relation: Relation, orders: Sequence[exp.Expression]) -> Relation:
    """All rows in order. A tree that is not an `exp.Ordered` sorts upwards, nulls first."""
    trees = [resolve(_key_of(order), relation.attributes) for order in orders]
    node, trees = with_udf_columns(context, relation.node, trees)
    node, trees = with_window_columns(context, node, trees)
    node, trees = with_udf_columns(context, node, trees)
    names: list[str] = []
    added: list[tuple[str, exp.Expression]] = []
    for tree in trees:
        if isinstance(tree, exp.Column):
            names.append(tree.name)
            continue
        (name,) = free_columns(["__order"], [*node.schema.names, *(name for name, _ in added)])
        names.append(name)
        added.append((name, tree))
    if added:
        passed = [(name, plan_column(name)) for name in node.schema.names]
        node = project(context, node, [*passed, *added])
    keys = tuple(_sort_key(name, order) for name, order in zip(names, orders, strict=True))
    by = ", ".join(_spark_order(key) for key in keys)

    def native() -> Node:
        for name in names:
            kind = from_arrow(node.schema.field(name).type)
            if not kind.is_plain:
                raise NotNative(f"rows cannot be sorted by type {kind.arrow or kind} here", fix="")
        return Sort(node, keys)

    sorted_rows = native_or_spark(
        context, native, [node], lambda: f"SELECT * FROM input_0 ORDER BY {by}"
    )
    return relation.over(sorted_rows)


def _key_of(order: exp.Expression) -> exp.Expression:
    return order.this if isinstance(order, exp.Ordered) else order


def _sort_key(name: str, order: exp.Expression) -> SortKey:
    if not isinstance(order, exp.Ordered):
        return SortKey(name, descending=False, nulls_first=True)
    return SortKey(name, bool(order.args.get("desc")), bool(order.args.get("nulls_first")))


def _spark_order(key: SortKey) -> str:
    way = "DESC" if key.descending else "ASC"
    return f"{spark_name(key.column)} {way} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
