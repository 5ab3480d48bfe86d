"""Builds rows with other values in place of some: of nulls and NaN, or of given ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import attribute_tree, select, where
from millrace.plan.builders.operators import named
from millrace.plan.relation import Attribute, Relation
from millrace.sql.connect_literals import cast_tree, number_tree
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import SqlType, from_arrow

Fill = bool | int | float | str
_FLOATS: Final = frozenset({"float", "double"})
_NUMBERS: Final = _FLOATS | {"tinyint", "smallint", "int", "bigint", "decimal"}


def filled(
    context: BuildContext, relation: Relation, values: Mapping[str, Fill], *, exact: bool
) -> Relation:
    """Rows with values in place of null and NaN, by the columns' labels in lower case.

    A value fills only columns of its own kind, unless `exact`: then it is cast.
    """
    new = {}
    for attribute, kind in _kinds(relation):
        value = values.get(folded(attribute.label))
        if value is not None and (exact or _fits(value, kind)):
            new[attribute.column] = _filled(attribute, kind, value)
    return _with_values(context, relation, new)


def without_missing(
    context: BuildContext, relation: Relation, labels: Collection[str], least: int | None
) -> Relation:
    """Rows with at least so many values that are neither null nor NaN; None: with no other.

    `labels` are those of the columns that count, in lower case.
    """
    present = [_present(a, kind) for a, kind in _kinds(relation) if folded(a.label) in labels]
    needed = len(present) if least is None else least
    if needed <= 0 or not present:
        return relation
    if needed == len(present):
        return where(context, relation, _joined(exp.And, present))
    if needed == 1:
        return where(context, relation, _joined(exp.Or, present))
    total: exp.Expression | None = None
    for part in present:
        one = exp.If(this=part, true=exp.Literal.number(1))
        counted = exp.Case(ifs=[one], default=exp.Literal.number(0))
        total = counted if total is None else exp.Add(this=total, expression=counted)
    enough = exp.GTE(this=total, expression=exp.Literal.number(needed))
    return where(context, relation, enough)


def replaced(
    context: BuildContext,
    relation: Relation,
    pairs: Sequence[tuple[Fill, Fill | None]],
    labels: Collection[str],
) -> Relation:
    """Rows with other values in place of given ones, in the columns of these labels.

    As in Spark, the first given value says which columns can have it, numbers are compared as the
    column's type has them, and no value is replaced twice.
    """
    if not pairs:
        return relation
    first = pairs[0][0]
    new = {}
    for attribute, kind in _kinds(relation):
        if folded(attribute.label) in labels and _fits(first, kind):
            new[attribute.column] = _changed(attribute, kind, pairs)
    return _with_values(context, relation, new)


def _kinds(relation: Relation) -> list[tuple[Attribute, SqlType]]:
    pairs = zip(relation.visible, relation.schema, strict=True)
    return [(attribute, from_arrow(field.type)) for attribute, field in pairs]


def _with_values(
    context: BuildContext, relation: Relation, new: Mapping[str, exp.Expression]
) -> Relation:
    if not new:
        return relation
    items = [
        named(new[a.column], a.label) if a.column in new else attribute_tree(a)
        for a in relation.visible
    ]
    return select(context, relation, items)


def _fits(value: Fill, kind: SqlType) -> bool:
    """Whether Spark puts this value into columns of this type."""
    if isinstance(value, bool):
        return kind.name == "boolean"
    if isinstance(value, str):
        return kind.name == "string"
    return kind.name in _NUMBERS


def _filled(attribute: Attribute, kind: SqlType, value: Fill) -> exp.Expression:
    column = attribute_tree(attribute)
    if kind.name in _FLOATS:
        column = _call("nanvl", column, cast_tree(exp.Null(), str(kind)))
    return _call("coalesce", column, cast_tree(_literal(value), str(kind)))


def _changed(
    attribute: Attribute, kind: SqlType, pairs: Sequence[tuple[Fill, Fill | None]]
) -> exp.Expression:
    column = attribute_tree(attribute)
    integers = kind.name in _NUMBERS - _FLOATS - {"decimal"}
    seen = [int(old) if integers and isinstance(old, float) else old for old, _ in pairs]
    if len(set(seen)) < len(seen):
        raise NotNative("replace() of values that are one in a column", found=str(seen), fix="")
    cases = [
        exp.If(
            this=exp.EQ(
                this=column.copy(), expression=cast_tree(_literal(_as_double(old)), str(kind))
            ),
            true=cast_tree(exp.Null() if value is None else _literal(_as_double(value)), str(kind)),
        )
        for old, value in pairs
    ]
    return exp.Case(ifs=cases, default=column)


def _as_double(value: Fill) -> Fill:
    """Spark brings numbers to doubles first."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _present(attribute: Attribute, kind: SqlType) -> exp.Expression:
    column = attribute_tree(attribute)
    there: exp.Expression = exp.Not(this=exp.Is(this=column, expression=exp.Null()))
    if kind.name in _FLOATS:
        number = exp.Not(this=_call("isnan", column.copy()))
        there = exp.Paren(this=exp.And(this=there, expression=number))
    return there


def _joined(kind: type[exp.And | exp.Or], parts: Sequence[exp.Expression]) -> exp.Expression:
    whole = parts[0]
    for part in parts[1:]:
        whole = kind(this=whole, expression=part)
    return whole


def _literal(value: Fill) -> exp.Expression:
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, float):
        return cast_tree(exp.Literal.string(repr(value)), "DOUBLE")
    return number_tree(str(value))


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))
