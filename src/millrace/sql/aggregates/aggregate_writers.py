"""Writes an aggregate call as SQL: which function of `aggregate_sql` and `statistics_sql` it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.sql.aggregates import aggregate_sql, statistics_sql
from millrace.sql.aggregates.aggregate_sql import AggregateSql

if TYPE_CHECKING:
    from millrace.sql.aggregates.aggregate_calls import AggregateCall


def write_call(call: AggregateCall) -> AggregateSql:
    """The SQL of a call, whole and in parts."""
    distinct = "DISTINCT " if call.distinct else ""
    if call.argument is None:
        return aggregate_sql.count("*")
    over = call.argument.sql
    match call.function:
        case "count":
            return aggregate_sql.count(distinct + over)
        case "sum":
            return aggregate_sql.total(over, call.type, distinct)
        case "try_sum":
            return aggregate_sql.total_or_null(over, distinct)
        case "wrapped_sum":
            return aggregate_sql.wrapped_total(over, distinct)
        case "avg":
            return aggregate_sql.mean(over, call.summed_type, call.type, distinct)
        case "min" | "max" | "bool_and" | "bool_or" | "bit_and" | "bit_or" | "bit_xor":
            return aggregate_sql.same_again(call.function, over, call.type)
        case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop" | "squares":
            return statistics_sql.spread(call.function, over, distinct)
        case "skewness" | "kurtosis":
            return statistics_sql.shape(call.function, over, distinct)
        case "collect_list" | "collect_set" | "listagg":
            return _many(call, over, distinct)
        case "median" | "mode" | "percentile" | "percentile_disc" | "percentile_approx":
            return _percentile(call, over, distinct)
        case _:
            return _over_two(call, over)


def _over_two(call: AggregateCall, over: str) -> AggregateSql:
    assert call.by is not None
    match call.function:
        case "min_by" | "max_by":
            return aggregate_sql.value_by(call.function, over, call.type, call.by.sql, call.by.type)
        case "first" | "last":
            return aggregate_sql.end_row(call.function, over, call.type, call.by.sql)
        case _:
            return statistics_sql.of_pairs(call.function, over, call.by.sql)


def _many(call: AggregateCall, over: str, distinct: str) -> AggregateSql:
    assert call.argument is not None
    by = None if call.by is None else call.by.sql
    match call.function:
        case "collect_set":
            return aggregate_sql.collected_set(over, call.argument.type)
        case "collect_list":
            return aggregate_sql.collected(over, call.type, by)
        case _:
            return aggregate_sql.joined_text(over, distinct, call.options.separator, by)


def _percentile(call: AggregateCall, over: str, distinct: str) -> AggregateSql:
    if call.function == "median":
        return aggregate_sql.median(over, distinct)
    if call.function == "mode":
        return aggregate_sql.most_frequent(over, call.type, descending=call.options.descending)
    fractions, is_list = call.options.fractions, call.options.is_list
    if call.function == "percentile_approx":
        return aggregate_sql.approximate_percentile(
            over, distinct, call.type, fractions, is_list=is_list
        )
    return aggregate_sql.percentile(
        over,
        distinct,
        fractions,
        is_list=is_list,
        discrete=call.function == "percentile_disc",
        descending=call.options.descending,
    )
