"""The SQL of each aggregate function: over all rows at once, or in parts that are merged later.

Invariant: merging the parts of any split of the rows gives the value over all rows (doubles: up to
the order of addition). A set is sorted, so that it does not depend on which task has which rows; a
list has its values in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.sql.functions.arithmetic import quotient
from millrace.sql.typed_sql import TypedSql, as_type, text_literal
from millrace.sql.types import (
    DOUBLE,
    LONG,
    PRECISION_MAX,
    STRING,
    SqlType,
    array_of,
    decimal,
    to_arrow,
)

# Names inside of lambdas. A column of the same name would be read in their place.
_WIDE: Final = decimal(PRECISION_MAX, 0)
_VALUES: Final = '"__lambda values"'


@dataclass(frozen=True, slots=True)
class AggregateSql:
    """One aggregate, written for DuckDB.

    `whole` is the aggregate over raw rows. `parts` are the aggregates over some of the rows, each
    with its type, and `merge` gives the aggregate over the columns that the parts became. Without
    parts it needs all rows of a group at once. `again` gives the parts of a larger group over the
    columns of its smaller groups, where that is known.
    """

    whole: str
    parts: tuple[tuple[str, SqlType], ...] = ()
    merge: Callable[[Sequence[str]], str] | None = None
    again: Callable[[Sequence[str]], tuple[str, ...]] | None = None


def typed(sql: str, kind: SqlType) -> str:
    """A cast to a plain type; a nested type stays as it is."""
    return sql if kind.arrow is not None else as_type(sql, kind)


def list_of(kind: SqlType) -> SqlType:
    """The type of a list; its elements are named as Spark names them."""
    if kind.arrow is not None:
        return SqlType("passed on", arrow=pa.list_(pa.field("element", to_arrow(kind))))
    return array_of(kind)


# One value.
def end_row(function: str, over: str, kind: SqlType, kept: str) -> AggregateSql:
    """First and last: the value in the first or last row where `kept` is not null."""

    def written(column: str, condition: str) -> str:
        return typed(f"{function}({column}) FILTER (WHERE {condition})", kind)

    # A part of no rows has no first row.
    return AggregateSql(
        written(over, f"{kept} IS NOT NULL"),
        ((written(over, f"{kept} IS NOT NULL"), kind), (f"count({kept})", LONG)),
        lambda parts: written(parts[0], f"{parts[1]} > 0"),
    )


def same_again(function: str, over: str, kind: SqlType) -> AggregateSql:
    """min, max and other functions that merge by themselves."""

    def written(column: str) -> str:
        return typed(f"{function}({column})", kind)

    return AggregateSql(
        written(over),
        ((written(over), kind),),
        merge=lambda parts: written(parts[0]),
        again=lambda parts: (written(parts[0]),),
    )


def count(over: str) -> AggregateSql:
    """The number of values that are not null, or of rows."""
    whole = as_type(f"count({over})", LONG)

    def merge(parts: Sequence[str]) -> str:
        return as_type(f"coalesce(sum({parts[0]}), 0)", LONG)

    return AggregateSql(whole, ((whole, LONG),), merge, lambda parts: (merge(parts),))


def total(over: str, kind: SqlType, distinct: str = "") -> AggregateSql:
    """A sum in the type that Spark gives it: a long, a double, or a decimal of ten more digits."""
    over = as_type(over, DOUBLE) if kind == DOUBLE else over
    whole = as_type(f"sum({distinct}{over})", kind)

    def merge(parts: Sequence[str]) -> str:
        return as_type(f"sum({parts[0]})", kind)

    return AggregateSql(whole, ((whole, kind),), merge, lambda parts: (merge(parts),))


def total_or_null(over: str, distinct: str = "") -> AggregateSql:
    """try_sum of whole numbers: null if the sum does not fit a long."""
    return _fitted_total(over, distinct, lambda value: f"TRY_CAST({value} AS BIGINT)")


def wrapped_total(over: str, distinct: str = "") -> AggregateSql:
    """A sum of whole numbers that wraps around at the ends of a long, as Java's does."""
    half, all_bits = f"CAST({1 << 63} AS HUGEINT)", f"CAST({(1 << 64) - 1} AS HUGEINT)"

    def wrapped(value: str) -> str:
        return as_type(f"((CAST({value} AS HUGEINT) + {half}) & {all_bits}) - {half}", LONG)

    return _fitted_total(over, distinct, wrapped)


def _fitted_total(over: str, distinct: str, fitted: Callable[[str], str]) -> AggregateSql:
    summed = f"sum({distinct}{over})"
    # The parts are wider than a long, so that parts that cancel each other out do.
    part = as_type(summed, _WIDE)
    return AggregateSql(fitted(summed), ((part, _WIDE),), lambda parts: fitted(f"sum({parts[0]})"))


def mean(over: str, sum_kind: SqlType, kind: SqlType, distinct: str = "") -> AggregateSql:
    """A sum divided by a count."""
    summed = total(over, sum_kind, distinct)
    counted = f"count({distinct}{over})"

    def merge(parts: Sequence[str]) -> str:
        assert summed.merge is not None
        return divided(summed.merge(parts[:1]), f"sum({parts[1]})", sum_kind, kind)

    whole = divided(summed.whole, counted, sum_kind, kind)

    def again(parts: Sequence[str]) -> tuple[str, ...]:
        assert summed.again is not None
        return *summed.again(parts[:1]), as_type(f"sum({parts[1]})", LONG)

    return AggregateSql(whole, (*summed.parts, (counted, LONG)), merge, again)


def divided(summed: str, counted: str, sum_kind: SqlType, kind: SqlType) -> str:
    """The mean, from the SQL of the sum and of the count."""
    if not kind.is_decimal:
        return as_type(f"({summed} / nullif(CAST({counted} AS DOUBLE), 0))", DOUBLE)
    divisor = TypedSql(sql=f"CAST({counted} AS DECIMAL(20,0))", type=decimal(20, 0))
    value = quotient(TypedSql(sql=summed, type=sum_kind), divisor, kind)
    return as_type(f"CASE WHEN {counted} > 0 THEN {value} ELSE NULL END", kind)


def value_by(function: str, over: str, kind: SqlType, by: str, by_kind: SqlType) -> AggregateSql:
    """min_by and max_by: the value in the row where `by` is least or greatest; never where null."""
    step = "arg_max_null" if function == "max_by" else "arg_min_null"

    def written(column: str, order: str) -> str:
        return typed(f"{step}({column}, {order})", kind)

    best = as_type(f"{function.removesuffix('_by')}({by})", by_kind)
    return AggregateSql(
        written(over, by),
        ((written(over, by), kind), (best, by_kind)),
        lambda parts: written(parts[0], parts[1]),
    )


# Many values.
def collected(over: str, kind: SqlType, by: str | None = None) -> AggregateSql:
    """collect_list: every value that is not null; in the order of `by` where there is one."""
    order = "" if by is None else f" ORDER BY {by}"
    whole = f"coalesce(list({over}{order}) FILTER (WHERE {over} IS NOT NULL), [])"
    if by is not None:
        return AggregateSql(whole)
    return AggregateSql(
        whole, ((whole, kind),), lambda parts: f"coalesce(flatten(list({parts[0]})), [])"
    )


def collected_set(over: str, element: SqlType) -> AggregateSql:
    """collect_set: every distinct value that is not null, sorted."""
    value = f"({over} + 0)" if element.is_floating else over  # -0.0 becomes 0.0
    some = f"list(DISTINCT {typed(value, element)}) FILTER (WHERE {over} IS NOT NULL)"
    whole = f"coalesce(list_sort({some}), [])"
    return AggregateSql(
        whole,
        ((whole, list_of(element)),),
        lambda parts: f"coalesce(list_sort(list_distinct(flatten(list({parts[0]})))), [])",
    )


def joined_text(over: str, distinct: str, separator: str, by: str | None) -> AggregateSql:
    """listagg: texts that are not null, one behind the other; null if there is none."""
    order = "" if by is None else f" ORDER BY {by}"
    between = text_literal(separator)

    def written(column: str) -> str:
        return f"string_agg({distinct}{column}, {between}{order})"

    if by is not None or distinct:
        return AggregateSql(written(over))
    return AggregateSql(written(over), ((written(over), STRING),), lambda parts: written(parts[0]))


def most_frequent(over: str, kind: SqlType, *, descending: bool) -> AggregateSql:
    """mode: the most frequent value; of several the lowest, or the highest."""
    way = "DESC" if descending else "ASC"
    return AggregateSql(typed(f"mode({over} ORDER BY {over} {way})", kind))


# Percentiles need all values of a group at once.
def median(over: str, distinct: str) -> AggregateSql:
    """The middle value, or the middle between the two in the middle."""
    # A negative fraction counts from the greatest value.
    x = as_type(over, DOUBLE)
    low, high = (f"quantile_disc({distinct}{x}, {fraction})" for fraction in ("0.5", "-0.5"))
    return AggregateSql(as_type(_between(low, high, _double(0.5)), DOUBLE))


def percentile(
    over: str,
    distinct: str,
    fractions: Sequence[float],
    *,
    is_list: bool,
    discrete: bool,
    descending: bool,
) -> AggregateSql:
    """percentile, percentile_cont and percentile_disc: Spark's own steps over the sorted values."""
    x = as_type(over, DOUBLE)
    order = "DESC" if descending else "ASC"
    values = f"list_sort(list({distinct}{x}) FILTER (WHERE {x} IS NOT NULL), '{order}')"
    steps = [_at_fraction(f) if discrete else _around_fraction(f) for f in fractions]
    value = f"[{', '.join(steps)}]" if is_list else steps[0]
    return AggregateSql(
        bound(values, _VALUES, f"CASE WHEN {_VALUES} IS NULL THEN NULL ELSE {value} END")
    )


def approximate_percentile(
    over: str, distinct: str, kind: SqlType, fractions: Sequence[float], *, is_list: bool
) -> AggregateSql:
    """percentile_approx: a value of the group; here it is the exact one."""
    steps = [_double(fraction) for fraction in fractions]
    at = f"[{', '.join(steps)}]" if is_list else steps[0]
    return AggregateSql(typed(f"quantile_disc({distinct}{over}, {at})", kind))


def _at_fraction(fraction: float) -> str:
    at = f"CAST(ceil(len({_VALUES}) * {_double(fraction)}) AS BIGINT)"
    return f"{_VALUES}[greatest(1, {at})]"


def _around_fraction(fraction: float) -> str:
    at = f"((len({_VALUES}) - 1) * {_double(fraction)})"
    low, high = (f"{_VALUES}[CAST({step}({at}) AS BIGINT) + 1]" for step in ("floor", "ceil"))
    return _between(low, high, f"({at} - floor({at}))")


def _between(low: str, high: str, share: str) -> str:
    """Between two values, in Spark's order of steps, which matters for infinities."""
    return f"CASE WHEN {low} = {high} THEN {low} ELSE {low} + ({high} - {low}) * {share} END"


def bound(value: str, name: str, body: str) -> str:
    """A value that is calculated once and used several times in `body` under a name."""
    return f"list_transform([{value}], lambda {name}: {body})[1]"


def _double(value: float) -> str:
    return f"CAST('{value!r}' AS DOUBLE)"
