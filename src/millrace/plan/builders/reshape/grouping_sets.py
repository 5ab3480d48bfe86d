"""Rows in groups of several sets of keys at once: GROUPING SETS, ROLLUP and CUBE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final, TypeVar

from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows, has_sessions, is_aggregate
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.name_resolution import plan_column, resolve
from millrace.plan.builders.operators import named, project
from millrace.plan.builders.spark_names import (
    UnnamedColumn,
    named_anew,
    names_of_spark,
    unnamed_key,
    with_names,
)
from millrace.plan.nodes.row_makers.expand import Expand
from millrace.plan.relation import Attribute, Relation, free_columns
from millrace.sql.labels.spark_labels import spark_label
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_NUMBER: Final = "__grouping_set"
T = TypeVar("T")


def rollup_sets(keys: Sequence[T]) -> list[tuple[T, ...]]:
    """All keys, all but the last, and so on, and none."""
    return [tuple(keys[:count]) for count in range(len(keys), -1, -1)]


def cube_sets(keys: Sequence[T]) -> list[tuple[T, ...]]:
    """Every choice of keys, as Spark orders them."""
    return [some for count in range(len(keys), -1, -1) for some in combinations(keys, count)]


class GroupingSetRows:
    """Rows in groups, once for each set of keys; a key that a set lacks is null in its groups.

    Trees are rewritten as `GroupedRows` does. `grouping` and `grouping_id` are known by the set.
    """

    def __init__(
        self,
        context: BuildContext,
        relation: Relation,
        sets: Sequence[Sequence[exp.Expression]],
    ) -> None:
        self._relation = relation
        self._keys: list[exp.Expression] = []
        labels: list[Attribute] = []
        unnamed: list[UnnamedColumn | None] = []
        chosen: list[list[int]] = []
        for keys in sets:
            positions = []
            for key in keys:
                bare = key.this if isinstance(key, exp.Alias) else key
                resolved = resolve(bare, relation.attributes)
                if has_sessions(resolved):
                    raise NotNative("sessions in several sets of keys", found=key.sql(), fix="")
                if resolved not in self._keys:
                    self._keys.append(resolved)
                    labels.append(self._attribute(key, resolved))
                    unnamed.append(unnamed_key(key, resolved, relation))
                positions.append(self._keys.index(resolved))
            chosen.append(positions)
        self._sets = [frozenset(positions) for positions in chosen]
        used = relation.node.schema.names
        names = free_columns([f"__group_{a.label}" for a in labels], used)
        self._names = names
        passed = [(name, plan_column(name)) for name in used]
        new = list(zip(names, (key.copy() for key in self._keys), strict=True))
        rows = project(context, relation.node, [*passed, *new])
        labels = with_names(labels, names_of_spark(context, rows, unnamed))
        node = Expand(rows, tuple(names), tuple(self._kept()), _NUMBER)
        groups = [replace(a, column=n, hidden=False) for a, n in zip(labels, names, strict=True)]
        attributes = (*groups, Attribute(_NUMBER, _NUMBER, hidden=True))
        self._grouped = GroupedRows(
            context,
            Relation(node, attributes),
            [plan_column(name) for name in [*names, _NUMBER]],
        )

    def _kept(self) -> list[tuple[bool, ...]]:
        """For each set, which keys it has."""
        return [tuple(at in some for at in range(len(self._keys))) for some in self._sets]

    def _attribute(self, key: exp.Expression, resolved: exp.Expression) -> Attribute:
        if isinstance(resolved, exp.Column):
            by_column = {a.column: a for a in self._relation.attributes}
            return by_column[resolved.name]
        label = key.alias if isinstance(key, exp.Alias) else spark_label(key)
        return Attribute(label, label)

    def is_key(self, tree: exp.Expression) -> bool:
        """Whether a tree over the rows is a key of the groups."""
        return resolve(tree, self._relation.attributes) in self._keys

    def rewrite_item(self, tree: exp.Expression) -> exp.Expression:
        """An item of a select list over the grouped rows, under the label it would have here."""
        if isinstance(tree, exp.Alias):
            return named(self.rewrite(tree.this), tree.alias)
        rewritten = self.rewrite(tree)
        if isinstance(rewritten, exp.Column) and rewritten.name in self._names:
            return rewritten
        resolved = resolve(tree, self._relation.attributes)
        unnamed = UnnamedColumn(resolved, self._relation, tuple(self._keys), in_sets=True)
        return named_anew(rewritten, spark_label(tree), unnamed)

    def rewrite(self, tree: exp.Expression) -> exp.Expression:
        """A tree over the grouped rows: keys and aggregates are columns in it."""
        return self._grouped.rewrite(self._keyed(resolve(tree, self._relation.attributes)))

    def relation(self) -> Relation:
        """The keys, visible, and the aggregates of all trees that were rewritten, hidden."""
        rows = self._grouped.relation()
        return Relation(
            rows.node,
            tuple(replace(a, hidden=a.hidden or a.column == _NUMBER) for a in rows.attributes),
        )

    def _keyed(self, tree: exp.Expression) -> exp.Expression:
        """The tree with the columns of the groups for the keys, but not in aggregates."""
        if tree in self._keys:
            return plan_column(self._names[self._keys.index(tree)])
        if isinstance(tree, exp.Query) or is_aggregate(tree):
            return tree
        if isinstance(tree, exp.Anonymous) and tree.name.lower() in ("grouping", "grouping_id"):
            return self._grouping(tree)
        tree = tree.copy()
        window = isinstance(tree, exp.Window)
        for key, value in list(tree.args.items()):
            if window and key == "this":
                tree.set(key, self._in_window(value))
            elif isinstance(value, exp.Expression):
                tree.set(key, self._keyed(value))
            elif isinstance(value, list):
                tree.set(
                    key,
                    [self._keyed(p) if isinstance(p, exp.Expression) else p for p in value],
                )
        return tree

    def _in_window(self, tree: exp.Expression) -> exp.Expression:
        """The function of a window, whose arguments are over the groups."""
        tree = tree.copy()
        function = tree
        while not isinstance(function, exp.Anonymous):
            function = function.this
        function.set("expressions", [self._keyed(a) for a in function.expressions])
        return tree

    def _grouping(self, tree: exp.Anonymous) -> exp.Expression:
        """The number whose bits say which of these keys the row's set lacks."""
        keys = tree.expressions or [key.copy() for key in self._keys]
        positions = []
        for key in keys:
            if key not in self._keys:
                raise ExpressionRefused(
                    f"{tree.name} takes keys of GROUP BY", found=key.sql("spark"), fix="name a key"
                )
            positions.append(self._keys.index(key))
        single = tree.name.lower() == "grouping"
        numbers = []
        for some in self._sets:
            number = 0
            for position in positions:
                number = number * 2 + (position not in some)
            numbers.append(number)
        kind = exp.DataType.build("tinyint" if single else "bigint", dialect="spark")
        cases = [
            exp.If(
                this=exp.EQ(this=plan_column(_NUMBER), expression=exp.Literal.number(at)),
                true=exp.Literal.number(number),
            )
            for at, number in enumerate(numbers)
        ]
        return exp.Cast(this=exp.Case(ifs=cases, default=exp.Literal.number(0)), to=kind)
