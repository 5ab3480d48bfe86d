"""Builds grouped rows, and expressions over their keys and aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_rows import check_hashable
from millrace.plan.builders.build_udf_calls import (
    NamedCall,
    aggregate_calls,
    function_called,
    is_group_call,
    project_calls,
    with_udf_columns,
)
from millrace.plan.builders.name_resolution import is_resolved, plan_column, resolve
from millrace.plan.builders.operators import (
    named,
    native_or_spark,
    select_list,
    spark_name,
    with_sql_form,
)
from millrace.plan.builders.spark_names import (
    UnnamedColumn,
    named_anew,
    names_of_spark,
    unnamed_key,
    with_names,
)
from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.node import Node
from millrace.plan.relation import Attribute, Relation, free_columns
from millrace.plan.windows.time_windows import window_mark
from millrace.sql.aggregates.aggregate_expressions import typed_aggregate
from millrace.sql.functions.function_registry import AGGREGATES
from millrace.sql.labels.spark_labels import spark_label
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_CLAUSES: Final = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def is_aggregate(tree: exp.Expression) -> bool:
    """Whether this is a call of an aggregate, with its clauses."""
    while isinstance(tree, _CLAUSES):
        tree = tree.this
    if is_group_call(tree):
        return True
    return isinstance(tree, exp.Anonymous) and tree.name.lower() in AGGREGATES


def has_aggregate(tree: exp.Expression) -> bool:
    """Whether an aggregate is called in it, other than over a window or in a subquery."""
    if isinstance(tree, exp.Query):
        return False
    if isinstance(tree, exp.Window):
        function = tree.this
        while isinstance(function, _CLAUSES):
            function = function.this
        inside = [*function.iter_expressions(), *tree.args.get("partition_by", ())]
        order = tree.args.get("order")
        return any(map(has_aggregate, [*inside, *([order] if order else [])]))
    return is_aggregate(tree) or any(map(has_aggregate, tree.iter_expressions()))


class GroupedRows:
    """Rows in groups of equal keys.

    Trees are rewritten one by one: their aggregates and keys become columns. `relation` has those
    columns then.
    """

    def __init__(
        self, context: BuildContext, relation: Relation, keys: Sequence[exp.Expression]
    ) -> None:
        self._context = context
        self._relation = relation
        self._calls: dict[exp.Expression, int] = {}
        self._keys: list[exp.Expression] = []
        self._key_attributes: list[Attribute] = []
        self._unnamed: list[UnnamedColumn | None] = []
        used = list(relation.node.schema.names)
        for key in keys:
            bare = key.this if isinstance(key, exp.Alias) else key
            resolved = resolve(bare, relation.attributes)
            if resolved not in self._keys:
                self._keys.append(resolved)
                self._key_attributes.append(self._key_attribute(key, resolved, used))
                self._unnamed.append(unnamed_key(key, resolved, relation))

    @property
    def _key_columns(self) -> list[str]:
        return [attribute.column for attribute in self._key_attributes]

    def _key_attribute(
        self, key: exp.Expression, resolved: exp.Expression, used: list[str]
    ) -> Attribute:
        """The attribute of a key; `used` are the names of columns, to which its own is added."""
        if isinstance(resolved, exp.Column):
            by_column = {a.column: a for a in self._relation.attributes}
            attribute: Attribute = key.meta.get("attribute") or by_column[resolved.name]
            written = isinstance(key, exp.Column) and not is_resolved(key)
            label = key.name if written else attribute.label
            return replace(by_column[resolved.name], label=label, hidden=False)
        label = key.alias if isinstance(key, exp.Alias) else spark_label(key)
        (column,) = free_columns([label], used)
        used.append(column)
        return Attribute(label, column, metadata=window_mark(resolved))

    @property
    def calls(self) -> dict[str, str]:
        """The names of the aggregates that are called, by the columns of their values."""
        out = {}
        for number, call in enumerate(self._calls):
            tree = call
            while isinstance(tree, _CLAUSES):
                tree = tree.this
            out[_aggregate_column(number)] = str(tree.name)
        return out

    def is_key(self, tree: exp.Expression) -> bool:
        """Whether a tree over the rows is a key of the groups."""
        return resolve(tree, self._relation.attributes) in self._keys

    def rewrite_item(self, tree: exp.Expression) -> exp.Expression:
        """An item of a select list over the grouped rows, under the label it would have here."""
        if isinstance(tree, exp.Alias):
            return named(self.rewrite(tree.this), tree.alias)
        rewritten = self.rewrite(tree)
        if isinstance(rewritten, exp.Column) and rewritten.name in self._key_columns:
            return rewritten
        resolved = resolve(tree, self._relation.attributes)
        unnamed = UnnamedColumn(resolved, self._relation, tuple(self._keys))
        return named_anew(rewritten, spark_label(tree), unnamed)

    def rewrite(self, tree: exp.Expression) -> exp.Expression:
        """A tree over the grouped rows: keys and aggregates are columns in it."""
        return self._rewritten(resolve(tree, self._relation.attributes))

    def _rewritten(self, tree: exp.Expression) -> exp.Expression:
        if tree in self._keys:
            return plan_column(self._key_columns[self._keys.index(tree)])
        if isinstance(tree, exp.Query):
            return tree
        if isinstance(tree, exp.Window):
            return self._rewritten_window(tree)
        if is_aggregate(tree):
            return plan_column(_aggregate_column(self._calls.setdefault(tree, len(self._calls))))
        if isinstance(tree, exp.Column) and is_resolved(tree):
            labels = {a.column: a.label for a in self._relation.attributes}
            label = labels.get(tree.name, tree.name)
            raise ExpressionRefused(
                f"the column {label} is neither a key nor in an aggregate",
                found=canonical(tree),
                fix=f"group by it, or write, for example, max({label})",
            )
        return self._with_children_rewritten(tree)

    def _rewritten_window(self, tree: exp.Window) -> exp.Expression:
        """A window over grouped rows: its function stays, and what is inside is rewritten."""
        tree = tree.copy()
        function = tree.this
        while isinstance(function, _CLAUSES):
            function = function.this
        function.set("expressions", [self._rewritten(a) for a in function.expressions])
        for key in ("partition_by", "order"):
            value = tree.args.get(key)
            if isinstance(value, list):
                tree.set(key, [self._rewritten(part) for part in value])
            elif value is not None:
                tree.set(key, self._rewritten(value))
        return tree

    def _with_children_rewritten(self, tree: exp.Expression) -> exp.Expression:
        tree = tree.copy()
        for key, value in list(tree.args.items()):
            if isinstance(value, exp.Expression):
                tree.set(key, self._rewritten(value))
            elif isinstance(value, list):
                parts = [
                    self._rewritten(part) if isinstance(part, exp.Expression) else part
                    for part in value
                ]
                tree.set(key, parts)
        return tree

    def relation(self) -> Relation:
        """The keys, visible, and the aggregates of all trees that were rewritten, hidden."""
        node = self._node()
        asked = names_of_spark(self._context, node, self._unnamed)
        keys = with_names(self._key_attributes, asked)
        names = [_aggregate_column(number) for number in range(len(self._calls))]
        return Relation(node, (*keys, *(Attribute(name, name, hidden=True) for name in names)))

    def _node(self) -> Node:
        if not self._keys and not self._calls:
            raise ExpressionRefused("there is nothing to calculate", fix="write count(*)")
        if any(map(has_sessions, self._keys)):
            return self._by_sessions()
        child, keys = self._child(), tuple(self._key_columns)
        if any(map(is_group_call, self._calls)):
            return self._called(child, keys)
        child, trees = with_udf_columns(self._context, child, list(self._calls))
        calls = [(_aggregate_column(number), tree) for number, tree in enumerate(trees)]

        def native() -> Node:
            check_hashable(child, keys)
            schema = child.schema
            return Aggregate(
                child, keys, tuple(typed_aggregate(name, tree, schema) for name, tree in calls)
            )

        names = [spark_name(key) for key in keys]
        listed = ", ".join([*names, *([select_list(calls)] if calls else [])])
        group = f" GROUP BY {', '.join(names)}" if keys else ""
        return native_or_spark(
            self._context, native, [child], lambda: f"SELECT {listed} FROM input_0{group}"
        )

    def _by_sessions(self) -> Node:
        """Groups by sessions, which Spark joins while it groups: as values they are not joined."""
        if self._context.on_spark is None:
            raise NotNative("sessions are Spark's", fix="use a workspace with Spark")
        below = self._relation.node
        keys = [canonical(with_sql_form(key, below.schema)) for key in self._keys]
        named_keys = zip(keys, self._key_columns, strict=True)
        calls = [(_aggregate_column(number), tree) for number, tree in enumerate(self._calls)]
        listed = [f"{key} AS {spark_name(column)}" for key, column in named_keys]
        listed += [select_list(calls)] if calls else []
        text = f"SELECT {', '.join(listed)} FROM input_0 GROUP BY {', '.join(keys)}"
        return self._context.on_spark([("input_0", below)], text, "sessions are Spark's")

    def _called(self, child: Node, keys: tuple[str, ...]) -> Node:
        """Values that users' functions make of groups; Spark mixes them with no other aggregate."""
        calls: list[NamedCall] = []
        for number, tree in enumerate(self._calls):
            function = function_called(self._context, tree)
            if function is None:
                raise ExpressionRefused(
                    "an aggregate stands beside a user's function over groups",
                    found=canonical(tree),
                    fix="aggregate in two steps and join them, or write both as functions",
                )
            calls.append((_aggregate_column(number), function, tree.expressions))
        return aggregate_calls(self._context, child, keys, calls)

    def _child(self) -> Node:
        """The rows with a column for each key; columns that aggregates read keep their names."""
        below = self._relation.node
        new = [
            (column, key)
            for key, column in zip(self._keys, self._key_columns, strict=True)
            if not isinstance(key, exp.Column)
        ]
        passed = [(name, plan_column(name)) for name in below.schema.names]
        return project_calls(self._context, below, [*passed, *new]) if new else below


def has_sessions(key: exp.Expression) -> bool:
    """Whether a key is a session, of rows that are near each other in time."""
    return any(call.name.lower() == "session_window" for call in key.find_all(exp.Anonymous))


def _aggregate_column(number: int) -> str:
    return f"__aggregate_{number}"
