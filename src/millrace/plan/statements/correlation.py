"""The rows of a subquery without the conditions that name columns of the query around it.

Those conditions become conditions of a join. Invariant: no column of the inner rows has the name of
a column of the outer ones, so that a condition can name columns of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from millrace.plan.builders.build_aggregate import has_aggregate
from millrace.plan.builders.name_resolution import find, is_resolved, plan_column, resolve
from millrace.plan.relation import Attribute, Relation
from millrace.plan.statements.domain_rows import domain_rows
from millrace.plan.statements.query_scope import QueryScope, columns_in, with_own_columns
from millrace.sql.labels.spark_labels import OUTER_NAMES
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_SIMPLE = frozenset({"expressions", "from_", "joins", "where", "distinct", "laterals", "kind"})
_ORDERS = ("order", "sort", "cluster", "distribute")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A value of the outer query and one of the inner that are equal; nulls too, if `nulls`."""

    outer: exp.Expression
    inner: exp.Expression
    nulls: bool = False

    def equality(self, inner: exp.Expression) -> exp.Expression:
        """The condition, with another expression for the inner value."""
        kind = exp.NullSafeEQ if self.nulls else exp.EQ
        return kind(this=self.outer.copy(), expression=inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerRows:
    """Rows of a subquery.

    The conditions `inside` name inner columns and are still to be applied. `conditions` name
    columns of both queries, `items` are the select list over inner columns. Rows of a query that
    names nothing of the outer one are its result, and have no conditions.
    """

    relation: Relation
    inside: tuple[exp.Expression, ...]
    conditions: tuple[exp.Expression, ...]
    items: tuple[exp.Expression, ...]
    query: exp.Expression

    @property
    def is_correlated(self) -> bool:
        """Whether a condition names a column of the outer query."""
        return bool(self.conditions)

    def key_pairs(self) -> list[KeyPair]:
        """The conditions as pairs of equal values."""
        inside = set(self.relation.node.schema.names)
        return [_pair(condition, inside) for condition in self.conditions]


Use = Literal["rows", "keys", "value"]
"""What is made of a subquery: pairs of rows, rows by equal keys, or one value by equal keys."""


def read_subquery(scope: QueryScope, outer: Relation, query: exp.Expression, use: Use) -> InnerRows:
    """The rows of a subquery of the query whose rows are `outer`."""
    bare = query
    while isinstance(bare, exp.Subquery) and not bare.args.get("with_"):
        bare = bare.this
    if (
        isinstance(bare, exp.Select)
        and bare.args.get("with_") is None
        and _names_outer(scope, outer, bare)
    ):
        try:
            return _usable(_correlated(scope, outer, bare, use), use)
        except NotNative as refused:
            # Spark applies LIMIT before it compares with the outer row, or after, as it is written.
            if bare.args.get("limit") is not None or bare.args.get("offset") is not None:
                raise
            return _by_domain(scope, outer, bare, refused)
    result = scope.subquery(bare)
    prefixed = with_own_columns(result, outer.node.schema.names, _prefix(scope))
    items = tuple(plan_column(a.column) for a in prefixed.visible)
    return InnerRows(relation=prefixed, inside=(), conditions=(), items=items, query=bare)


def _usable(inner: InnerRows, use: Use) -> InnerRows:
    """The same rows, if this use can be made of them."""
    if use != "value" and any(map(has_aggregate, inner.items)):
        raise NotNative("a subquery that is an aggregate", found=inner.query.sql("spark"), fix="")
    if use != "rows":
        inner.key_pairs()
    return inner


def _by_domain(
    scope: QueryScope, outer: Relation, query: exp.Select, refused: NotNative
) -> InnerRows:
    """The rows of a subquery for all outer values that it names, which then are keys."""
    rows = domain_rows(scope, outer, query)
    if not rows.keys:
        raise refused
    relation = with_own_columns(rows.relation, outer.node.schema.names, _prefix(scope))
    names = {
        old.column: new.column
        for old, new in zip(rows.relation.attributes, relation.attributes, strict=True)
    }
    keys = replace(rows, keys=tuple((key, names[own]) for key, own in rows.keys))
    return InnerRows(
        relation=relation,
        inside=(),
        conditions=tuple(keys.conditions()),
        items=tuple(plan_column(a.column) for a in relation.visible),
        query=query,
    )


def _prefix(scope: QueryScope) -> str:
    return f"__q{scope.number()}_"


def _names_outer(scope: QueryScope, outer: Relation, query: exp.Select) -> bool:
    """Whether a name of a query's own clauses is a column of the outer query alone."""
    return bool(_outer_columns(scope, outer, query))


def with_outer_names(scope: QueryScope, outer: Relation, tree: exp.Expression) -> exp.Expression:
    """The tree, in which each subquery knows the outer columns that it names, for its label."""
    tree = tree.copy()
    for node in tree.find_all(exp.Subquery, exp.Exists):
        query = node.this
        if isinstance(query, exp.Select) and query.args.get("with_") is None:
            columns = _outer_columns(scope, outer, query)
            node.meta[OUTER_NAMES] = list(dict.fromkeys(column.name for column in columns))
    return tree


def _outer_columns(scope: QueryScope, outer: Relation, query: exp.Select) -> list[exp.Column]:
    """The names of a query's own clauses that are columns of the outer query alone."""
    rows, _ = scope.source(query)
    parts = [
        *query.expressions,
        *(query.args[key] for key in ("where", "group", "having") if query.args.get(key)),
    ]
    labels = {folded(alias.alias) for alias in query.expressions if isinstance(alias, exp.Alias)}
    columns = [column for part in parts for column in _columns(part)]
    return [
        column
        for column in columns
        if _find(column, rows.attributes) is None
        and folded(column.name) not in labels
        and _find(column, outer.attributes) is not None
    ]


def _find(column: exp.Column, attributes: Sequence[Attribute]) -> Attribute | None:
    if isinstance(column.this, exp.Star):
        return None
    return find(column, attributes)


def _columns(tree: exp.Expression) -> list[exp.Column]:
    if isinstance(tree, exp.Column):
        return [] if isinstance(tree.this, exp.Star) else [tree]
    if isinstance(tree, exp.Query):
        return [
            column
            for clause in ("where", "having")
            if tree.args.get(clause)
            for column in _columns(tree.args[clause])
            if column.table
        ]
    return [column for part in tree.iter_expressions() for column in _columns(part)]


def _correlated(scope: QueryScope, outer: Relation, query: exp.Select, use: Use) -> InnerRows:
    _check_clauses(query, use)
    rows, parts = scope.source(query)
    prefixed = with_own_columns(rows, outer.node.schema.names, _prefix(scope))
    names = {
        old.column: new.column
        for old, new in zip(rows.attributes, prefixed.attributes, strict=True)
    }

    def outside(column: exp.Column) -> exp.Expression | None:
        attribute = _find(column, outer.attributes)
        return None if attribute is None else plan_column(attribute.column)

    inside: list[exp.Expression] = []
    conditions: list[exp.Expression] = []
    ours = set(prefixed.node.schema.names)
    for part in parts:
        renamed = _renamed(part, names)
        resolved = resolve(renamed, prefixed.attributes, outside)
        if columns_in(resolved) <= ours:
            inside.append(resolved)
        elif resolved.find(exp.Query):
            raise NotNative(
                "a subquery in a condition on the outer query", found=part.sql("spark"), fix=""
            )
        else:
            conditions.append(resolved)
    if not conditions:
        raise NotNative(
            "a subquery that names the outer query outside WHERE", found=query.sql("spark"), fix=""
        )
    return InnerRows(
        relation=prefixed,
        inside=tuple(inside),
        conditions=tuple(conditions),
        items=tuple(query.expressions),
        query=query,
    )


def _renamed(tree: exp.Expression, names: dict[str, str]) -> exp.Expression:
    """A tree whose resolved columns have their new names."""
    return tree.copy().transform(
        lambda node: (
            plan_column(names[node.name])
            if isinstance(node, exp.Column) and is_resolved(node)
            else node
        )
    )


def _check_clauses(query: exp.Select, use: Use) -> None:
    """Refuse clauses that cannot be brought outside."""
    known = _SIMPLE | set(_ORDERS)
    others = [key for key, value in query.args.items() if value and key not in known]
    if any(item.find(exp.Window) for item in query.expressions) and use != "rows":
        others.append("over")
    if others:
        raise NotNative(
            f"{others[0].upper()} in a subquery with names of the outer query",
            found=query.sql("spark"),
            fix="",
        )


def _pair(condition: exp.Expression, inside: set[str]) -> KeyPair:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.EQ | exp.NullSafeEQ):
        first, second = condition.this, condition.expression
        if columns_in(first) <= inside and columns_in(first) and not columns_in(second) & inside:
            first, second = second, first
        if columns_in(second) <= inside and columns_in(second) and not columns_in(first) & inside:
            return KeyPair(first, second, isinstance(condition, exp.NullSafeEQ))
    raise NotNative(
        "a subquery whose condition on the outer query is no equality",
        found=condition.sql("spark"),
        fix="",
    )


def refused_columns(count: int, wanted: int, query: exp.Expression) -> ExpressionRefused:
    """The refusal of a subquery with another number of columns than its use has."""
    return ExpressionRefused(
        f"a subquery of {count} columns where {wanted} are compared",
        found=query.sql("spark"),
        fix=f"select {wanted}",
    )
