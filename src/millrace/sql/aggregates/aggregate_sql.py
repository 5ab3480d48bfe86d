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
from millrace.sql.typed_sql import TypedSql, as_type
from millrace.sql.types import DOUBLE, LONG, SqlType, array_of, decimal, to_arrow

# Names inside of lambdas. A column of the same name would be read in their place.
_VALUES: Final = '"__lambda values"'
_EACH: Final = '"__lambda each"'
_COUNT: Final = '"__lambda count"'
_CENTRE: Final = '"__lambda centre"'
_NAN: Final = "CAST('NaN' AS DOUBLE)"
# Values are scaled by powers of two, which loses nothing, so that their sum stays below infinity.
_DOWN: Final = "CAST('5.421010862427522e-20' AS DOUBLE)"
_UP: Final = "CAST('18446744073709551616' AS DOUBLE)"
_HASHES: Final = SqlType("passed on", arrow=pa.list_(pa.uint64()))
_HASHES_END: Final = _UP


@dataclass(frozen=True, slots=True)
class AggregateSql:
    """One aggregate, written for DuckDB.

    `whole` is the aggregate over raw rows. `parts` are the aggregates over some of the rows, each
    with its type, and `merge` gives the aggregate over the columns that the parts became. Without
    parts it needs all rows of a group at once.
    """

    whole: str
    parts: tuple[tuple[str, SqlType], ...] = ()
    merge: Callable[[Sequence[str]], str] | None = None


def typed(sql: str, kind: SqlType) -> str:
    """A cast to a plain type; a nested type stays as it is."""
    return sql if kind.arrow is not None else as_type(sql, kind)


def list_of(kind: SqlType) -> SqlType:
    """The type of a list; its elements are named as Spark names them."""
    if kind.arrow is not None:
        return SqlType("passed on", arrow=pa.list_(pa.field("element", to_arrow(kind))))
    return array_of(kind)


# One value.
def same_again(function: str, over: str, kind: SqlType) -> AggregateSql:
    """min, max and other functions that merge by themselves."""

    def written(column: str) -> str:
        return typed(f"{function}({column})", kind)

    return AggregateSql(written(over), ((written(over), kind),), lambda parts: written(parts[0]))


def count(over: str) -> AggregateSql:
    """The number of values that are not null, or of rows."""
    whole = as_type(f"count({over})", LONG)
    return AggregateSql(
        whole, ((whole, LONG),), lambda parts: as_type(f"coalesce(sum({parts[0]}), 0)", LONG)
    )


def total(over: str, kind: SqlType, distinct: str = "") -> AggregateSql:
    """A sum in the type that Spark gives it: a long, a double, or a decimal of ten more digits."""
    over = as_type(over, DOUBLE) if kind == DOUBLE else over
    whole = as_type(f"sum({distinct}{over})", kind)
    return AggregateSql(whole, ((whole, kind),), lambda parts: as_type(f"sum({parts[0]})", kind))


def mean(over: str, sum_kind: SqlType, kind: SqlType, distinct: str = "") -> AggregateSql:
    """A sum divided by a count."""
    summed = total(over, sum_kind, distinct)
    counted = f"count({distinct}{over})"

    def merge(parts: Sequence[str]) -> str:
        assert summed.merge is not None
        return divided(summed.merge(parts[:1]), f"sum({parts[1]})", sum_kind, kind)

    whole = divided(summed.whole, counted, sum_kind, kind)
    return AggregateSql(whole, (*summed.parts, (counted, LONG)), merge)


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


def spread(function: str, over: str, distinct: str = "") -> AggregateSql:
    """Variance and deviation.

    The parts are a count, a mean and a sum of squared distances from that mean. They are merged
    around one of the means, because sums of squares lose a small spread of large numbers.
    """
    x = f"CAST({over} AS DOUBLE)"
    is_odd = f"isnan({x}) OR isinf({x})"
    plain, any_odd = f"CASE WHEN {is_odd} THEN NULL ELSE {x} END", f"bool_or({is_odd})"
    least = 1 if function.endswith("_samp") else 0
    whole = as_type(
        f"CASE WHEN count({distinct}{x}) <= {least} THEN NULL "
        f"WHEN {any_odd} THEN {_NAN} ELSE {function}({distinct}{plain}) END",
        DOUBLE,
    )
    mean_of_part = f"favg({plain} * {_DOWN}) * {_UP}"
    parts = (
        (f"count({x})", LONG),
        (as_type(f"CASE WHEN {any_odd} THEN {_NAN} ELSE {mean_of_part} END", DOUBLE), DOUBLE),
        (as_type(f"coalesce(var_pop({plain}) * count({plain}), 0)", DOUBLE), DOUBLE),
    )

    def merge(columns: Sequence[str]) -> str:
        counts, means, squares = columns
        row = f"{{'n': CAST({counts} AS DOUBLE), 'mean': {means}, 'squares': {squares}}}"
        rows = f"list({row}) FILTER (WHERE {counts} > 0)"
        off = f"({_EACH}.mean - {_VALUES}[1].mean)"
        centre = _summed(f"{off} * ({_EACH}.n / {_COUNT})")
        squared = _summed(f"{_EACH}.squares + {_EACH}.n * pow({off} - {_CENTRE}, 2)")
        value = _bound(centre, _CENTRE, f"{squared} / ({_COUNT} - {least})")
        if function.startswith("stddev"):
            value = f"sqrt({value})"
        value = f"CASE WHEN {_COUNT} <= {least} THEN NULL ELSE {value} END"
        value = _bound(_summed(f"{_EACH}.n"), _COUNT, value)
        return as_type(_bound(rows, _VALUES, value), DOUBLE)

    return AggregateSql(whole, parts, merge)


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


def estimated_count(over: str, kept: int) -> AggregateSql:
    """approx_count_distinct, from the smallest hashes; exact while there are fewer than `kept`.

    Of n values with hashes spread evenly over [0, 1) the k-th smallest is near k / n. The relative
    standard error is 1 / sqrt(k - 2).
    """

    def estimate(smallest: str) -> str:
        share = f"(CAST({_VALUES}[{kept}] AS DOUBLE) / {_HASHES_END})"
        value = f"round({kept - 1} / {share})"
        value = f"CASE WHEN len({_VALUES}) < {kept} THEN len({_VALUES}) ELSE {value} END"
        return as_type(f"coalesce({_bound(smallest, _VALUES, value)}, 0)", LONG)

    def merge(parts: Sequence[str]) -> str:
        distinct = f"list_distinct(flatten(list({parts[0]})))"
        return estimate(f"list_sort({distinct})[:{kept}]")

    some = f"list(DISTINCT hash({over})) FILTER (WHERE {over} IS NOT NULL)"
    hashes = f"coalesce(list_sort({some}), [])[:{kept}]"
    return AggregateSql(estimate(hashes), ((hashes, _HASHES),), merge)


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
        _bound(values, _VALUES, f"CASE WHEN {_VALUES} IS NULL THEN NULL ELSE {value} END")
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


def _bound(value: str, name: str, body: str) -> str:
    """A value that is calculated once and used several times in `body` under a name."""
    return f"list_transform([{value}], lambda {name}: {body})[1]"


def _summed(value: str) -> str:
    """The sum of an expression over each of the values."""
    return f"list_sum(list_transform({_VALUES}, lambda {_EACH}: {value}))"


def _double(value: float) -> str:
    return f"CAST('{value!r}' AS DOUBLE)"
