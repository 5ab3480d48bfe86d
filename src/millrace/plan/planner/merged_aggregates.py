"""Makes one aggregate of several that have one row each, of the same rows or of parts of them.

`SELECT (SELECT avg(a) FROM t WHERE q < 5), (SELECT avg(b) FROM t WHERE q > 5)` reads `t` once: each
aggregate takes its own rows with FILTER. Conditions that differ must be about the same columns:
else each may leave out files and row groups that the others need.
Invariant: the plan's result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlglot import exp

from millrace.plan.builders.build_aggregate import is_aggregate
from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.shared_parts.made_once import with_replaced
from millrace.plan.planner.plan_identity import PlanIdentity
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression, typed_aggregate
from millrace.sql.condition_parts import parts_of, typed_expression
from millrace.sql.expressions import Expression
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused, quoted


@dataclass(frozen=True, slots=True)
class _OneRow:
    """An aggregate without keys, the rows below its filters, and their conditions by text."""

    node: Aggregate
    rows: Node
    conditions: dict[str, Expression]


def merge_aggregates(plan: Node) -> Node:
    """The same plan, reading rows once for all aggregates of them that have one row."""
    identity = PlanIdentity()
    groups: dict[int, list[_OneRow]] = {}
    for aggregate in _one_rows(plan):
        rows = identity.of(aggregate.rows)
        if rows is not None:
            groups.setdefault(rows, []).append(aggregate)
    new: dict[int, Node] = {}
    for group in groups.values():
        different = {identity.of(aggregate.node) for aggregate in group}
        if len(different) > 1:
            new |= _merged(group)
    return with_replaced(plan, new) if new else plan


def _one_rows(plan: Node) -> list[_OneRow]:
    """The aggregates that may be merged, each object once."""
    seen: dict[int, _OneRow | None] = {}
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = _one_row(node) if isinstance(node, Aggregate) else None
        waiting += reversed(node.children)
    return [aggregate for aggregate in seen.values() if aggregate is not None]


def _one_row(node: Aggregate) -> _OneRow | None:
    if node.keys or not node.mergeable or not all(map(_can_be_filtered, node.aggregates)):
        return None
    conditions: dict[str, Expression] = {}
    rows = node.child
    while isinstance(rows, Filter):
        for part in parts_of(rows.condition, rows.schema):
            if part.raises:
                return None
            conditions[part.text] = part
        rows = rows.child
    return _OneRow(node, rows, conditions)


def _can_be_filtered(aggregate: AggregateExpression) -> bool:
    """Whether no row can fail in its calls, and it has no FILTER of its own."""
    values = [value for call in aggregate.calls for value in (call.argument, call.by)]
    own_filter = read(aggregate.text).find(exp.Filter, exp.Window) is not None
    return not own_filter and not any(value.raises for value in values if value is not None)


def _merged(group: list[_OneRow]) -> dict[int, Node]:
    """For each aggregate, by identity, its columns of one aggregate of all of them."""
    common = set.intersection(*(set(one.conditions) for one in group))
    apart = [_without(one.conditions, common) for one in group]
    columns = {frozenset().union(*(e.columns for e in conditions)) for conditions in apart}
    if len(columns) > 1:
        return {}
    rows = _filtered(group[0], common, apart)
    try:
        made = [
            _named(aggregate, conditions, rows, f"__merged{at}_{number}")
            for at, (one, conditions) in enumerate(zip(group, apart, strict=True))
            for number, aggregate in enumerate(one.node.aggregates)
        ]
    except ExpressionRefused:
        return {}
    if any(aggregate is None for aggregate in made):
        return {}
    whole = Aggregate(rows, (), tuple(aggregate for aggregate in made if aggregate is not None))
    return {id(one.node): _own_columns(whole, one.node, at) for at, one in enumerate(group)}


def _without(conditions: dict[str, Expression], texts: set[str]) -> list[Expression]:
    return [condition for text, condition in conditions.items() if text not in texts]


def _filtered(one: _OneRow, common: set[str], apart: list[list[Expression]]) -> Node:
    """The rows that some aggregate takes."""
    rows = one.rows
    for text in sorted(common):
        rows = Filter(rows, one.conditions[text])
    if not all(apart):
        return rows
    trees = [_all_of(conditions) for conditions in apart]
    whole = _chain(exp.Or, {tree.sql(): tree for tree in trees}.values())
    condition = typed_expression(whole, rows.schema)
    return rows if condition.raises else Filter(rows, condition)


def _named(
    aggregate: AggregateExpression, conditions: list[Expression], rows: Node, name: str
) -> AggregateExpression | None:
    """The aggregate of the rows that meet conditions; None if its text is not all of it."""
    tree = read(aggregate.text)
    again = typed_aggregate(aggregate.name, tree, rows.schema)
    if again.calls != aggregate.calls or again.sql_around != aggregate.sql_around:
        return None
    if not conditions:
        return replace(aggregate, name=name)
    filtered = typed_aggregate(name, _with_filter(tree, _all_of(conditions)), rows.schema)
    return filtered if filtered.type == aggregate.type else None


def _with_filter(tree: exp.Expression, condition: exp.Expression) -> exp.Expression:
    """The tree with FILTER at each call of an aggregate."""
    if is_aggregate(tree):
        return exp.Filter(this=tree.copy(), expression=exp.Where(this=condition.copy()))
    out = tree.copy()
    for key, value in list(out.args.items()):
        if isinstance(value, exp.Expression):
            out.set(key, _with_filter(value, condition))
        elif isinstance(value, list):
            parts = [
                _with_filter(part, condition) if isinstance(part, exp.Expression) else part
                for part in value
            ]
            out.set(key, parts)
    return out


def _own_columns(whole: Aggregate, node: Aggregate, at: int) -> Node:
    columns = []
    for number, aggregate in enumerate(node.aggregates):
        name = f"__merged{at}_{number}"
        value = Expression(quoted(name), aggregate.type, frozenset([name]), name)
        columns.append((aggregate.name, value))
    return Project(whole, tuple(columns))


def _all_of(conditions: list[Expression]) -> exp.Expression:
    return _chain(exp.And, (read(condition.text) for condition in conditions))


def _chain(kind: type[exp.And | exp.Or], trees: Iterable[exp.Expression]) -> exp.Expression:
    first, *rest = trees
    whole: exp.Expression = exp.Paren(this=first) if rest else first
    for tree in rest:
        whole = kind(this=whole, expression=exp.Paren(this=tree))
    return whole
