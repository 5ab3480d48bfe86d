"""GROUP BY: keys by name, number or alias, grouping sets, and subqueries below the groups.

A subquery in a key or inside an aggregate becomes a column of the rows below. Others of the select
list see the groups, and are left for later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows, has_aggregate, is_aggregate
from millrace.plan.builders.name_resolution import find
from millrace.plan.builders.reshape.grouping_sets import GroupingSetRows, cube_sets, rollup_sets
from millrace.plan.relation import Relation
from millrace.plan.statements.order_clauses import check_ordinal, ordinal
from millrace.plan.statements.query_scope import QueryScope
from millrace.plan.statements.subqueries import with_subqueries
from millrace.sql.sql_mode import folded

_Set = tuple[exp.Expression, ...]


@dataclass(frozen=True, slots=True)
class _SelectList:
    """The rows and the select list that keys are found in."""

    relation: Relation
    items: Sequence[exp.Expression]

    def key(self, tree: exp.Expression) -> exp.Expression:
        """The expression that a key means."""
        number = ordinal(tree)
        if number is not None:
            return self.items[check_ordinal(number, len(self.items), "GROUP BY")]
        if isinstance(tree, exp.Column) and find(tree, self.relation.attributes) is None:
            for item in self.items:
                if isinstance(item, exp.Alias) and folded(item.alias) == folded(tree.name):
                    return item
        return tree


def grouped_rows(
    scope: QueryScope, relation: Relation, tree: exp.Select, items: Sequence[exp.Expression]
) -> GroupedRows | GroupingSetRows:
    """The groups of a query's rows; without GROUP BY, one group of all rows."""
    group = tree.args.get("group")
    if group is None:
        return GroupedRows(scope.context, relation, ())
    if group.args.get("all"):
        keys = [item for item in items if not has_aggregate(item)]
        return GroupedRows(scope.context, relation, keys)
    names = _SelectList(relation, items)
    plain = [part for part in group.expressions if not _is_sets(part)]
    sets_of = [_sets(part, names) for part in group.expressions if _is_sets(part)]
    for kind, key in ((exp.Rollup, "rollup"), (exp.Cube, "cube")):
        for clause in group.args.get(key) or ():
            listed = clause.expressions or [key.copy() for key in plain]
            if not clause.expressions:
                plain = []
            sets_of.append(_sets(kind(expressions=listed), names))
    for clause in group.args.get("grouping_sets") or ():
        sets_of.append(_sets(clause, names))
        plain = []
    common = tuple(names.key(key) for key in plain)
    if not sets_of:
        return GroupedRows(scope.context, relation, common)
    sets = [common + tuple(key for part in parts for key in part) for parts in product(*sets_of)]
    return GroupingSetRows(scope.context, relation, sets)


def _is_sets(tree: exp.Expression) -> bool:
    return isinstance(tree, exp.Rollup | exp.Cube | exp.GroupingSets)


def _sets(tree: exp.Expression, names: _SelectList) -> list[_Set]:
    """The sets of keys that one part of GROUP BY stands for, as Spark orders them."""
    parts = tree.expressions
    if isinstance(tree, exp.GroupingSets):
        return [
            inner
            for part in parts
            for inner in (_sets(part, names) if _is_sets(part) else [_keys(part, names)])
        ]
    keys = [_keys(part, names) for part in parts]
    chosen = rollup_sets(keys) if isinstance(tree, exp.Rollup) else cube_sets(keys)
    return [tuple(key for group in some for key in group) for some in chosen]


def _keys(tree: exp.Expression, names: _SelectList) -> _Set:
    if isinstance(tree, exp.Tuple):
        return tuple(names.key(key) for key in tree.expressions)
    if isinstance(tree, exp.Paren):
        return (names.key(tree.this),)
    return (names.key(tree),)


def with_group_values(
    scope: QueryScope, rows: Relation, tree: exp.Select, items: Sequence[exp.Expression]
) -> tuple[Relation, exp.Select, list[exp.Expression]]:
    """The rows with columns for these subqueries, and the query and its items over them."""
    group = tree.args.get("group")
    keys = list(group.expressions) if group is not None else []
    values = _GroupValues(scope, rows, [key for key in keys if key.find(exp.Query)])
    out = [values.over(item) for item in items]
    if values.keys:
        tree = tree.copy()
        tree.args["group"].set("expressions", [values.over(key) for key in keys])
    return values.rows, tree, out


class _GroupValues:
    """The rows, which get a column for each subquery; equal trees have the same one."""

    def __init__(self, scope: QueryScope, rows: Relation, keys: Sequence[exp.Expression]) -> None:
        self._scope, self.rows, self.keys = scope, rows, keys
        self._known: dict[exp.Expression, exp.Expression] = {}

    def over(self, tree: exp.Expression) -> exp.Expression:
        """The tree over the columns; itself if it has no such subquery."""
        if not tree.find(exp.Query):
            return tree
        if tree in self.keys or is_aggregate(tree):
            if tree not in self._known:
                self.rows, (self._known[tree],) = with_subqueries(self._scope, self.rows, [tree])
            return self._known[tree].copy()
        if isinstance(tree, exp.Query):
            return tree
        changed, out = False, tree.copy()
        for key, value in tree.args.items():
            parts = value if isinstance(value, list) else [value]
            new = [self.over(p) if isinstance(p, exp.Expression) else p for p in parts]
            if any(one is not other for one, other in zip(new, parts, strict=True)):
                out.set(key, new if isinstance(value, list) else new[0])
                changed = True
        return out if changed else tree
