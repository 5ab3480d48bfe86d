"""Builds joins of relations: on any condition, or on columns that both sides have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.errors import MillraceError
from millrace.keys import HashPartitioner
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import has_udf, keep_calls
from millrace.plan.builders.name_resolution import attribute_of, plan_column, resolve
from millrace.plan.builders.operators import (
    all_of,
    expression,
    native_or_spark,
    project,
    spark_name,
    typed,
)
from millrace.plan.builders.user_code.build_join_calls import with_join_calls
from millrace.plan.nodes.join import KEEPS_LEFT, Join, JoinColumn, JoinKind
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.relation import Attribute, Relation, free_columns, picked_columns
from millrace.sql.connect_literals import cast_tree
from millrace.sql.expressions import Expression, expression_of
from millrace.sql.functions.casts import cast
from millrace.sql.parser import canonical, operands
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import SqlType, common_with_text, to_arrow

_SPARK_JOINS: Final[dict[JoinKind, str]] = {
    "inner": "JOIN",
    "cross": "CROSS JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}
_DEFAULTS: Final = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"), "0"),
    "string": "",
    "boolean": "false",
    "date": "1970-01-01",
    "timestamp": "1970-01-01 00:00:00",
    "timestamp_ntz": "1970-01-01 00:00:00",
}
"""A value of each type that null has in a key beside the mark that it is null."""
_LEFT_ONLY: Final = frozenset({"semi", "anti"})


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both sides of a join. `names` has the name of each column of the right side in the result."""

    left: Relation
    right: Relation
    names: dict[str, str]

    @property
    def right_attributes(self) -> list[Attribute]:
        """The right side's attributes, by the names that their columns have in the result."""
        return [replace(a, column=self.names[a.column]) for a in self.right.attributes]

    @property
    def attributes(self) -> list[Attribute]:
        """All attributes of both sides."""
        return [*self.left.attributes, *self.right_attributes]

    @property
    def schema(self) -> pa.Schema:
        """The columns that a condition can name."""
        theirs = self.right.node.schema
        renamed = [pa.field(name, theirs.field(source).type) for source, name in self.names.items()]
        return pa.schema([*self.left.node.schema, *renamed])

    def of_right(self, tree: exp.Expression) -> exp.Expression:
        """A tree over names of the result, as one over names of the right side."""
        sources = {name: source for source, name in self.names.items()}
        return tree.transform(
            lambda node: plan_column(sources[node.name]) if isinstance(node, exp.Column) else node
        )


@dataclass(frozen=True, slots=True)
class _Keys:
    """Expressions whose equal values join rows, and the rest of the condition."""

    left: list[Expression]
    right: list[Expression]
    rest: list[exp.Expression]


def join_on(
    context: BuildContext,
    left: Relation,
    right: Relation,
    how: JoinKind,
    condition: exp.Expression | None,
) -> Relation:
    """Pairs of rows for which the condition is true; all columns of both sides."""
    sides = _sides(left, right)
    tree = None if condition is None else resolve(condition, sides.attributes)
    kept = list(left.attributes) if how in _LEFT_ONLY else sides.attributes
    above = None
    if tree is not None and has_udf(context, tree):
        sides, tree, above = _with_calls(context, sides, tree, how)
    node = _join(context, sides, how, tree)
    if above is not None:
        node = keep_calls(context, node, above)
    return Relation(node, tuple(kept))


def _with_calls(
    context: BuildContext, sides: _Sides, tree: exp.Expression, how: JoinKind
) -> tuple[_Sides, exp.Expression | None, exp.Expression | None]:
    """The sides with columns for calls of users' functions; conditions of the join and above it."""
    pairs = [(new, source) for source, new in sides.names.items()]
    renamed = picked_columns(sides.right.node, pairs)
    calls = with_join_calls(context, sides.left.node, renamed, tree, how)
    right = Relation(calls.right, tuple(sides.right_attributes))
    names = {name: name for name in calls.right.schema.names}
    return _Sides(sides.left.over(calls.left), right, names), calls.condition, calls.above


def join_using(
    context: BuildContext, left: Relation, right: Relation, how: JoinKind, names: Sequence[str]
) -> Relation:
    """Pairs of rows with equal values of columns that both sides have; those come first, once."""
    sides = _sides(left, right)
    ours = [attribute_of(_column(name), left.attributes) for name in names]
    theirs = [attribute_of(_column(name), sides.right_attributes) for name in names]
    pairs = list(zip(ours, theirs, strict=True))
    equal: list[exp.Expression] = [exp.EQ(this=_plan(a), expression=_plan(b)) for a, b in pairs]
    node = _join(context, sides, how, all_of(equal))
    our_rest = [a for a in left.attributes if a not in ours]
    if how in _LEFT_ONLY:
        return Relation(node, (*ours, *our_rest))
    their_rest = [a for a in sides.right_attributes if a not in theirs]
    hidden = {"right": ours, "full": [*ours, *theirs]}.get(how, theirs)
    keys = theirs if how == "right" else ours
    if how == "inner" and isinstance(node, Join) and _are_keys(node, sides, pairs):
        merged = {a.column for a in ours}
        sources = (replace(c, side="key") if c.name in merged else c for c in node.columns)
        node = replace(node, columns=tuple(sources))
    if how == "full":
        columns = free_columns([a.label for a in ours], node.schema.names)
        node = _with_merged(context, node, sides, list(zip(columns, pairs, strict=True)))
        keys = [Attribute(a.label, name) for a, name in zip(ours, columns, strict=True)]
    kept_hidden = [replace(a, hidden=True) for a in hidden]
    return Relation(node, (*keys, *our_rest, *their_rest, *kept_hidden))


def _with_merged(
    context: BuildContext,
    node: Node,
    sides: _Sides,
    merged: list[tuple[str, tuple[Attribute, Attribute]]],
) -> Node:
    """A full join with columns that have the left key, or else the right one."""
    if isinstance(node, Join) and _are_keys(node, sides, [pair for _, pair in merged]):
        added = (JoinColumn(name, "key", ours.column) for name, (ours, _) in merged)
        return replace(node, columns=(*node.columns, *added))
    calls = [
        (name, exp.Anonymous(this="coalesce", expressions=[_plan(a), _plan(b)]))
        for name, (a, b) in merged
    ]
    return project(context, node, [*((n, plan_column(n)) for n in node.schema.names), *calls])


def _are_keys(node: Join, sides: _Sides, pairs: Sequence[tuple[Attribute, Attribute]]) -> bool:
    """Whether the columns of all pairs are keys of the join as they are."""
    keys = [(a, sides.names.get(b)) for a, b in zip(node.left_keys, node.right_keys, strict=True)]
    return all((ours.column, theirs.column) in keys for ours, theirs in pairs)


def _sides(left: Relation, right: Relation) -> _Sides:
    columns = right.node.schema.names
    free = free_columns(columns, left.node.schema.names)
    return _Sides(left, right, dict(zip(columns, free, strict=True)))


def _join(context: BuildContext, sides: _Sides, how: JoinKind, tree: exp.Expression | None) -> Node:
    if how == "cross" and tree is not None:
        how = "inner"
    return native_or_spark(
        context,
        lambda: _native(sides, how, tree),
        [sides.left.node, sides.right.node],
        lambda: _spark_sql(sides, how, tree),
    )


def _native(sides: _Sides, how: JoinKind, tree: exp.Expression | None) -> Node:
    keys = _keys(sides, tree)
    if not keys.left and how not in KEEPS_LEFT:
        if how == "right":
            return _swapped(sides, tree)
        raise NotNative(f"a {how} join without equal keys", found=_text(tree), fix="add a key")
    rest = keys.rest or (
        [exp.Boolean(this=True)] if not keys.left and how not in ("inner", "cross") else []
    )
    condition = expression(all_of(rest), sides.schema) if rest else None
    left, left_keys = _with_keys(sides.left.node, keys.left)
    right, right_keys = _with_keys(sides.right.node, keys.right)
    columns = [JoinColumn(name, "left", name) for name in sides.left.node.schema.names]
    if how not in _LEFT_ONLY:
        columns += [JoinColumn(name, "right", source) for source, name in sides.names.items()]
    return Join(
        left=left,
        right=right,
        left_keys=left_keys,
        right_keys=right_keys,
        how="cross" if not left_keys and condition is None else how,
        columns=tuple(columns),
        condition=condition,
        right_names=tuple(sides.names.items()) if condition is not None else (),
    )


def _swapped(sides: _Sides, tree: exp.Expression | None) -> Node:
    """A right join as a left join of the other side."""
    condition = expression(tree if tree is not None else exp.Boolean(this=True), sides.schema)
    names = {name: name for name in sides.left.node.schema.names}
    right = Project(
        sides.right.node,
        tuple(
            (sides.names[source], column)
            for source, column in pass_columns(sides.right.node.schema, list(sides.names))
        ),
    )
    columns = [
        *(JoinColumn(name, "right", name) for name in names),
        *(JoinColumn(name, "left", name) for name in sides.names.values()),
    ]
    return Join(
        left=right,
        right=sides.left.node,
        left_keys=(),
        right_keys=(),
        how="left",
        columns=tuple(columns),
        condition=condition,
        right_names=tuple(names.items()),
    )


def _keys(sides: _Sides, tree: exp.Expression | None) -> _Keys:
    keys = _Keys([], [], [])
    parts = [] if tree is None else operands(tree, exp.And, through_brackets=True)
    for part in [key for whole in parts for key in _without_null_safety(sides, whole)]:
        pair = _pair(sides, part)
        if pair is None:
            keys.rest.append(part)
        else:
            keys.left.append(pair[0])
            keys.right.append(pair[1])
    return keys


def _without_null_safety(sides: _Sides, part: exp.Expression) -> list[exp.Expression]:
    """`a <=> b` of the sides as two equalities, as Spark joins by it; any other part as it is."""
    bare = part
    while isinstance(bare, exp.Paren):
        bare = bare.this
    if not isinstance(bare, exp.NullSafeEQ):
        return [part]
    values = [bare.this, bare.expression]
    pair = _pair(sides, exp.EQ(this=values[0].copy(), expression=values[1].copy()))
    default = None if pair is None else _DEFAULTS.get(pair[0].type.name)
    if pair is None or default is None:
        return [part]
    kind = str(pair[0].type)
    some = [
        exp.Anonymous(
            this="coalesce",
            expressions=[
                cast_tree(value.copy(), kind),
                cast_tree(exp.Literal.string(default), kind),
            ],
        )
        for value in values
    ]
    missing = [exp.Is(this=exp.Paren(this=v.copy()), expression=exp.Null()) for v in values]
    return [
        exp.EQ(this=some[0], expression=some[1]),
        exp.EQ(this=exp.Paren(this=missing[0]), expression=exp.Paren(this=missing[1])),
    ]


def _pair(sides: _Sides, part: exp.Expression) -> tuple[Expression, Expression] | None:
    """The sides of an equality as keys, of one type; None if it is none between both sides."""
    while isinstance(part, exp.Paren):
        part = part.this
    if not isinstance(part, exp.EQ):
        return None
    ours, theirs = set(sides.left.node.schema.names), set(sides.names.values())
    first, second = part.this, part.expression
    if _names(first) <= theirs and _names(second) <= ours:
        first, second = second, first
    if not (
        _names(first) and _names(second) and _names(first) <= ours and _names(second) <= theirs
    ):
        return None
    second = sides.of_right(second)
    left = typed(first, sides.left.node.schema)
    right = typed(second, sides.right.node.schema)
    kind = common_with_text(left.type, right.type)
    if kind is None or not _can_be_key(kind):
        return None
    pair = [
        expression_of(side, term if term.type == kind else cast(term, kind))
        for side, term in ((first, left), (second, right))
    ]
    return pair[0], pair[1]


def _can_be_key(kind: SqlType) -> bool:
    try:
        HashPartitioner(("key",), 1).check(pa.schema([("key", to_arrow(kind))]))
    except MillraceError:
        return False
    return True


def _with_keys(node: Node, keys: Sequence[Expression]) -> tuple[Node, tuple[str, ...]]:
    """The plan with a column for each key, and the names of these columns."""
    used = list(node.schema.names)
    names, added = [], []
    for key in keys:
        if key.is_column and next(iter(key.columns)) not in names:
            names.append(next(iter(key.columns)))
            continue
        (name,) = free_columns(["__key"], [*used, *names])
        names.append(name)
        added.append((name, key))
    if added:
        node = Project(node, (*pass_columns(node.schema, used), *added))
    return node, tuple(names)


def _spark_sql(sides: _Sides, how: JoinKind, tree: exp.Expression | None) -> str:
    ours = [spark_name(name) for name in sides.left.node.schema.names]
    theirs = [spark_name(name) for name in sides.names.values()]
    renamed = ", ".join(f"{spark_name(old)} AS {spark_name(n)}" for old, n in sides.names.items())
    listed = ", ".join(ours if how in _LEFT_ONLY else [*ours, *theirs])
    on = f" ON {canonical(tree)}" if tree is not None else ""
    right = f"(SELECT {renamed} FROM input_1)"
    return f"SELECT {listed} FROM input_0 {_SPARK_JOINS[how]} {right}{on}"


def _names(tree: exp.Expression) -> set[str]:
    return {column.name for column in tree.find_all(exp.Column)}


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))


def _plan(attribute: Attribute) -> exp.Expression:
    return plan_column(attribute.column)


def _text(tree: exp.Expression | None) -> str:
    return "no condition" if tree is None else canonical(tree)
