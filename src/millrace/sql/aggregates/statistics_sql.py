"""The SQL of statistics: variance, correlation, regression, skewness and kurtosis.

Invariant: as in Spark, a NaN or an infinity among the values makes NaN, and values so large that
Spark's steps pass the largest double make what they make there. Parts hold counts, means and sums
of products of distances from the means. They are merged around the mean of the first part, because
sums of squares lose a small spread of large numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.sql.aggregates.aggregate_sql import AggregateSql, bound
from millrace.sql.typed_sql import as_type
from millrace.sql.types import DOUBLE, LONG

# Names inside of lambdas. A column of the same name would be read in their place.
_VALUES: Final = '"__lambda values"'
_EACH: Final = '"__lambda each"'
_COUNT: Final = '"__lambda count"'
_CENTRE: Final = '"__lambda centre"'
_STATE: Final = '"__lambda state"'
_NAN: Final = "CAST('NaN' AS DOUBLE)"
# Values are scaled by powers of two, which loses nothing, so that their sum stays below infinity.
_DOWN: Final = "CAST('5.421010862427522e-20' AS DOUBLE)"
_UP: Final = "CAST('18446744073709551616' AS DOUBLE)"
_PAIR_FORMULAS: Final = {
    "covar_pop": "c / n",
    "covar_samp": "CASE WHEN n = 1 THEN NULL ELSE c / (n - 1) END",
    "corr": "CASE WHEN n = 1 OR sa = 0 OR sb = 0 THEN NULL ELSE c / sqrt(sa * sb) END",
    "regr_sxy": "c",
    "regr_slope": "CASE WHEN sb = 0 THEN NULL ELSE c / sb END",
    "regr_intercept": "CASE WHEN sb = 0 THEN NULL ELSE ma - (c / sb) * mb END",
    "regr_r2": (
        "CASE WHEN sb = 0 THEN NULL WHEN sa = 0 THEN CAST(1 AS DOUBLE) "
        "ELSE pow(c / sqrt(sa * sb), 2) END"
    ),
}
"""Over the number of pairs, their means, the sums of squares and of products. NaN comes through."""
_PAIR_FIELDS: Final = ("n", "ma", "mb", "sa", "sb", "c")


def spread(function: str, over: str, distinct: str = "") -> AggregateSql:
    """Variance, deviation, and the sum of squares that both are made of."""
    x = f"CAST({over} AS DOUBLE)"
    plain, any_odd = _plain(x), f"bool_or({_is_odd(x)})"
    least = 1 if function.endswith("_samp") else 0
    spread_of_plain = f"{function}({distinct}{plain})"
    if function == "squares":
        spread_of_plain = f"var_pop({distinct}{plain}) * count({distinct}{plain})"
    whole = as_type(
        f"CASE WHEN count({distinct}{x}) <= {least} THEN NULL "
        f"WHEN {any_odd} OR isinf(max({plain}) - min({plain})) THEN {_NAN} "
        f"ELSE {spread_of_plain} END",
        DOUBLE,
    )
    parts = (
        (f"count({x})", LONG),
        (as_type(f"CASE WHEN {any_odd} THEN {_NAN} ELSE {_mean(plain)} END", DOUBLE), DOUBLE),
        (as_type(f"coalesce({_squares(plain)}, 0)", DOUBLE), DOUBLE),
    )

    def merge(columns: Sequence[str]) -> str:
        counts, means, squares = columns
        row = f"{{'n': CAST({counts} AS DOUBLE), 'mean': {means}, 'squares': {squares}}}"
        rows = f"list({row}) FILTER (WHERE {counts} > 0)"
        off = f"({_EACH}.mean - {_VALUES}[1].mean)"
        centre = _summed(f"{off} * ({_EACH}.n / {_COUNT})")
        squared = _summed(f"{_EACH}.squares + {_EACH}.n * pow({off} - {_CENTRE}, 2)")
        value = squared if function == "squares" else f"{squared} / ({_COUNT} - {least})"
        if function.startswith("stddev"):
            value = f"sqrt({value})"
        value = bound(centre, _CENTRE, value)
        value = f"CASE WHEN {_COUNT} <= {least} THEN NULL ELSE {value} END"
        value = bound(_summed(f"{_EACH}.n"), _COUNT, value)
        return as_type(bound(rows, _VALUES, value), DOUBLE)

    return AggregateSql(whole, parts, merge)


def of_pairs(function: str, first: str, second: str) -> AggregateSql:
    """Correlation, covariance and regression; both are doubles, and null in the same rows."""
    odd = f"({_is_odd(first)} OR {_is_odd(second)})"
    a, b = _plain(first), _plain(second)
    pairs = [f"CASE WHEN {odd} THEN NULL ELSE {side} END" for side in (first, second)]
    counted = f"count({first})"

    def unless_odd(value: str, *sides: str) -> str:
        any_odd = " OR ".join(f"bool_or({_is_odd(side)})" for side in sides)
        return as_type(f"CASE WHEN {any_odd} THEN {_NAN} ELSE {value} END", DOUBLE)

    values = (
        f"CAST({counted} AS DOUBLE)",
        unless_odd(_mean(a), first),
        unless_odd(_mean(b), second),
        unless_odd(f"var_pop({a}) * {counted}", first),
        unless_odd(f"var_pop({b}) * {counted}", second),
        unless_odd(f"covar_pop({', '.join(pairs)}) * {counted}", first, second),
    )

    def finish(state: str) -> str:
        formula = _PAIR_FORMULAS[function]
        # The fields are read in one more step, where they have names of their own.
        fields = {f"{_STATE}.{name}": name for name in _PAIR_FIELDS}
        value = " ".join(_with_fields(formula, fields))
        value = f"CASE WHEN coalesce({_STATE}.n, 0) = 0 THEN NULL ELSE {value} END"
        return as_type(bound(state, _STATE, value), DOUBLE)

    def merge(columns: Sequence[str]) -> str:
        row = _struct(columns)
        rows = f"list({row}) FILTER (WHERE {columns[0]} > 0)"
        off = {side: f"({_EACH}.m{side} - {_VALUES}[1].m{side})" for side in "ab"}
        centres = _struct(
            [_summed(f"{off[side]} * ({_EACH}.n / {_COUNT})") for side in "ab"], ("ma", "mb")
        )
        away = {side: f"({off[side]} - {_CENTRE}.m{side})" for side in "ab"}
        merged = _struct(
            [
                _COUNT,
                *(f"{_VALUES}[1].m{side} + {_CENTRE}.m{side}" for side in "ab"),
                *(_summed(f"{_EACH}.s{s} + {_EACH}.n * pow({away[s]}, 2)") for s in "ab"),
                _summed(f"{_EACH}.c + {_EACH}.n * {away['a']} * {away['b']}"),
            ]
        )
        state = bound(_summed(f"{_EACH}.n"), _COUNT, bound(centres, _CENTRE, merged))
        return finish(bound(rows, _VALUES, state))

    parts = tuple((value, DOUBLE) for value in values)
    return AggregateSql(finish(_struct(values)), parts, merge)


def shape(function: str, over: str, distinct: str) -> AggregateSql:
    """Skewness and kurtosis, from all values of a group."""
    values = f"list({distinct}{over}) FILTER (WHERE {over} IS NOT NULL)"
    first = f"{_VALUES}[1]"
    count = f"CAST(len({_VALUES}) AS DOUBLE)"
    # From the first value on, the mean of equal values is that value.
    centre = f"({first} + {_summed(f'{_EACH} - {first}')} / {count})"

    def moment(order: int) -> str:
        away = f"({_EACH} - {_CENTRE})"
        return _summed(" * ".join([away] * order))

    squares = moment(2)
    if function == "skewness":
        value = f"sqrt({count}) * {moment(3)} / sqrt(pow({squares}, 3))"
    else:
        value = f"{count} * {moment(4)} / ({squares} * {squares}) - 3"
    value = f"CASE WHEN {squares} = 0 THEN NULL ELSE {value} END"
    odd = f"len(list_filter({_VALUES}, lambda {_EACH}: {_is_odd(_EACH)})) > 0"
    value = f"CASE WHEN {odd} THEN {_NAN} ELSE {bound(centre, _CENTRE, value)} END"
    value = f"CASE WHEN {_VALUES} IS NULL THEN NULL ELSE {value} END"
    return AggregateSql(as_type(bound(values, _VALUES, value), DOUBLE))


def _with_fields(formula: str, fields: dict[str, str]) -> list[str]:
    """The words of a formula, with the fields of the state for their names."""
    by_name = {name: field for field, name in fields.items()}
    spaced = formula
    for mark in "(),":
        spaced = spaced.replace(mark, f" {mark} ")
    return [by_name.get(word, word) for word in spaced.split()]


def _struct(values: Sequence[str], names: Sequence[str] = _PAIR_FIELDS) -> str:
    fields = ", ".join(f"'{name}': {value}" for name, value in zip(names, values, strict=True))
    return f"{{{fields}}}"


def _is_odd(x: str) -> str:
    return f"(isnan({x}) OR isinf({x}))"


def _plain(x: str) -> str:
    return f"CASE WHEN {_is_odd(x)} THEN NULL ELSE {x} END"


def _squares(x: str) -> str:
    """The sum of squared distances from the mean; NaN where a distance passes the largest."""
    too_far = f"isinf(max({x}) - min({x}))"
    return f"(CASE WHEN {too_far} THEN {_NAN} ELSE var_pop({x}) END * count({x}))"


def _mean(x: str) -> str:
    return f"(favg({x} * {_DOWN}) * {_UP})"


def _summed(value: str) -> str:
    """The sum of an expression over each of the values."""
    return f"list_sum(list_transform({_VALUES}, lambda {_EACH}: {value}))"
