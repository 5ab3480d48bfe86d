"""The aggregate functions: the arguments that each takes, and the type of its value.

Invariant: a call in the table has Spark's type. Other forms of it are `NotNative`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

from millrace.sql.aggregates.aggregate_calls import (
    AggregateCall,
    CallOptions,
    mean_type,
    sum_type,
)
from millrace.sql.aggregates.aggregate_input import (
    AggregateInput,
    is_comparable,
    is_kept,
    is_known,
    is_plain,
    nested_key,
    none_null,
    null_unless,
    number_written,
    one_if,
    row_of,
)
from millrace.sql.aggregates.aggregate_sql import list_of
from millrace.sql.functions.casts import cast
from millrace.sql.functions.conditions import as_condition
from millrace.sql.functions.function_registry import ANY_NUMBER
from millrace.sql.functions.nested.nested_sql import is_ordered
from millrace.sql.sql_mode import in_ansi_mode
from millrace.sql.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    PRECISION_MAX,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    SqlType,
)

USAGES: Final = (
    "sum(x), try_sum(x)",
    "count(*), count(x), count(x, y)",
    "count(DISTINCT x), count(DISTINCT x, y)",
    "count_if(condition)",
    "min(x)",
    "max(x)",
    "min_by(x, y)",
    "max_by(x, y)",
    "first(x), first_value(x), any_value(x), first(x ORDER BY y)",
    "last(x), last_value(x), last(x ORDER BY y)",
    "avg(x), mean(x), try_avg(x)",
    "stddev(x), stddev_samp(x), std(x), stddev_pop(x)",
    "variance(x), var_samp(x), var_pop(x)",
    "skewness(x), kurtosis(x)",
    "corr(x, y), covar_pop(x, y), covar_samp(x, y)",
    "regr_count(y, x), regr_avgx(y, x), regr_avgy(y, x)",
    "regr_sxx(y, x), regr_sxy(y, x), regr_syy(y, x)",
    "regr_slope(y, x), regr_intercept(y, x), regr_r2(y, x)",
    "median(x)",
    "mode(x), mode(x, true), mode() WITHIN GROUP (ORDER BY x)",
    "percentile(x, p)",
    "percentile_cont(p) WITHIN GROUP (ORDER BY x)",
    "percentile_disc(p) WITHIN GROUP (ORDER BY x)",
    "percentile_approx(x, p), approx_percentile(x, p)",
    "collect_list(x), array_agg(x), list(x)",
    "collect_set(x)",
    "listagg(x, separator), string_agg(x, separator), listagg(x) WITHIN GROUP (ORDER BY y)",
    "bool_and(x), every(x)",
    "bool_or(x), some(x), any(x)",
    "bit_and(x), bit_or(x), bit_xor(x)",
)
_ACCURACY_MAX: Final = 2**31 - 1
_SUM_DIGITS: Final = 10
"""A decimal of this many more digits holds the sum of any number of rows that there can be."""
_PAIRS: Final = (
    *("corr", "covar_pop", "covar_samp", "regr_sxy", "regr_slope", "regr_intercept", "regr_r2"),
)


def _is_condition(kind: SqlType) -> bool:
    return kind == BOOLEAN


def _is_measure(kind: SqlType) -> bool:
    return kind.is_numeric or kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ)


def _over_number(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.number(node)
    kinds = {"sum": sum_type, "avg": mean_type}
    kind = kinds.get(call.written.function, lambda _: DOUBLE)(term.type)
    name = call.written.function
    if name in kinds and (call.written.name == "try_avg" or not in_ansi_mode()):
        _refuse_overflow(call, term.type)
    name = "wrapped_sum" if name == "sum" and kind == LONG and not in_ansi_mode() else name
    argument = call.filtered(term, node)
    return call.build(argument, kind, function=name, distinct=call.written.distinct)


def _try_sum(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.number(node)
    _refuse_overflow(call, term.type)
    function = "try_sum" if term.type.is_integer else "sum"
    return call.build(
        call.filtered(term, node),
        sum_type(term.type),
        function=function,
        distinct=call.written.distinct,
    )


def _refuse_overflow(call: AggregateInput, kind: SqlType) -> None:
    if kind.is_decimal and kind.precision + _SUM_DIGITS > PRECISION_MAX:
        raise call.written.refused(
            f"{call.written.name} of {kind} may need more digits than there are",
            "cast it to a decimal of at most 28 digits",
        )


def _moments(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.number(node)
    term = term if term.type == DOUBLE else cast(term, DOUBLE)
    return call.build(call.filtered(term, node), DOUBLE, distinct=call.written.distinct)


def _pair(call: AggregateInput) -> AggregateCall:
    """A function of two numbers, over rows where neither is null."""
    written = call.written
    if written.distinct:
        raise written.refused(f"DISTINCT pairs in {written.name}", "drop duplicates before")
    nodes = call.arguments(2, 2, "two arguments")
    given = [call.number(node) for node in nodes]
    both = none_null(given)
    as_they_are = written.function in ("regr_avgx", "regr_avgy")
    numbers = [term if as_they_are or term.type == DOUBLE else cast(term, DOUBLE) for term in given]
    first, second = (
        call.filtered(null_unless(both, term), node)
        for term, node in zip(numbers, nodes, strict=True)
    )
    match written.function:
        case "regr_count":
            return call.build(first, LONG, function="count")
        case "regr_avgx":
            return call.build(second, mean_type(second.type), function="avg")
        case "regr_avgy":
            return call.build(first, mean_type(first.type), function="avg")
        case "regr_sxx":
            return call.build(second, DOUBLE, function="squares")
        case "regr_syy":
            return call.build(first, DOUBLE, function="squares")
        case _:
            return call.build(first, DOUBLE, by=second)


def _extreme(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    fits = "a type that Spark compares, and no doubles in nested values"
    term = call.fitting(node, lambda kind: is_comparable(kind) and is_kept(kind), fits)
    if term.type.is_plain:
        return call.build(call.filtered(term, node), term.type)
    by = call.filtered(nested_key(term), node)
    function = f"{call.written.function}_by"
    return call.build(call.filtered(term, node), term.type, function=function, by=by)


def _over_condition(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.fitting(node, _is_condition, "a condition")
    return call.build(call.filtered(term, node), BOOLEAN)


def _over_bits(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    if call.written.distinct and call.written.function == "bit_xor":
        raise call.written.refused("bit_xor of DISTINCT values", "drop duplicates before")
    term = call.fitting(node, lambda kind: kind.is_integer, "a whole number")
    return call.build(call.filtered(term, node), term.type)


def _count(call: AggregateInput) -> AggregateCall:
    written = call.written
    nodes = call.arguments(1, ANY_NUMBER, "at least one argument")
    if isinstance(nodes[0], exp.Star):
        if written.distinct or len(nodes) > 1:
            raise written.refused("count takes no * beside other words", "name the columns")
        if call.where is None:
            return AggregateCall("count", None, distinct=False, type=LONG)
        return call.build(call.filtered(one_if(), nodes[0]), LONG)
    if len(nodes) == 1:
        term = call.term(nodes[0])
        if written.distinct and term.type.is_nested:
            term = call.fitting(nodes[0], is_ordered, "a type without maps")
    elif written.distinct:
        term = row_of([call.fitting(node, is_plain, "plain types") for node in nodes])
    else:
        term = one_if(none_null([call.term(node) for node in nodes]))
    return call.build(call.filtered(term, nodes[0]), LONG, distinct=written.distinct)


def _count_if(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.fitting(node, lambda kind: kind in (BOOLEAN, VOID), "a condition")
    argument = call.filtered(one_if(as_condition(term, "count_if")), node)
    return call.build(argument, LONG, function="count", distinct=call.written.distinct)


def _with_nulls_choice(call: AggregateInput) -> tuple[exp.Expression, bool]:
    """The argument, and whether IGNORE NULLS or a second argument `true` skips nulls."""
    written = call.written
    node, *more = call.arguments(1, 2, "one argument, and true to pass over nulls")
    if more and not isinstance(more[0], exp.Boolean):
        what = f"the second argument of {written.name} is true or false"
        raise written.refused(what, "write IGNORE NULLS instead")
    return node, written.ignore_nulls or bool(more and more[0].this)


def _first_or_last(call: AggregateInput) -> AggregateCall:
    """The value of the first or last row: in the order of the rows, or of an ORDER BY."""
    written = call.written
    node, ignore_nulls = _with_nulls_choice(call)
    term = call.fitting(node, is_kept, "a type, and no doubles in nested values")
    if not written.order:
        kept = one_if(none_null([term]) if ignore_nulls else None)
        by = call.filtered(kept, node)
        return call.build(call.filtered(term, node), term.type, by=by)
    function = "min_by" if written.function == "first" else "max_by"
    key = call.order_key(written.order)
    if ignore_nulls:
        key = null_unless(none_null([term]), key)
    by = call.filtered(key, written.order[0])
    return call.build(call.filtered(term, node), term.type, function=function, by=by)


def _by(call: AggregateInput) -> AggregateCall:
    node, by = call.arguments(2, 2, "two arguments")
    term = call.fitting(node, is_kept, "a type, and no doubles in nested values")
    key = call.fitting(by, is_comparable, "a type that Spark compares")
    key = key if key.type.is_plain else nested_key(key)
    return call.build(call.filtered(term, node), term.type, by=call.filtered(key, by))


def _collect(call: AggregateInput) -> AggregateCall:
    written = call.written
    node = call.arguments(1, 1, "one argument")[0]
    if written.function == "collect_set" or written.distinct:
        term = call.fitting(node, is_plain, "a plain type to compare")
        kind = list_of(term.type)
        return call.build(call.filtered(term, node), kind, function="collect_set")
    term = call.fitting(node, is_known, "a value with a type")
    by = call.filtered(call.order_key(written.order), written.order[0]) if written.order else None
    return call.build(call.filtered(term, node), list_of(term.type), by=by)


def _joined_text(call: AggregateInput) -> AggregateCall:
    """listagg: texts one behind the other, in the order of the rows or of WITHIN GROUP."""
    written = call.written
    node, *more = call.arguments(1, 2, "a text, and what is put between texts")
    separator = _separator(call, more[0]) if more else ""
    if written.distinct and written.within:
        raise written.refused("listagg of DISTINCT texts in an order", "drop duplicates before")
    term = call.fitting(
        node, lambda kind: kind in (STRING, VOID) or kind.is_integer, "a text or a whole number"
    )
    term = term if term.type == STRING else cast(term, STRING)
    within = written.within
    by = call.filtered(call.order_key(within), within[0]) if within else None
    return call.build(
        call.filtered(term, node),
        STRING,
        distinct=written.distinct,
        by=by,
        options=CallOptions(separator=separator),
    )


def _separator(call: AggregateInput, node: exp.Expression) -> str:
    if isinstance(node, exp.Null):
        return ""
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise call.written.refused(
            "what is put between texts is a text, written out", "write, for example, ', '"
        )
    return str(node.name)


def _mode(call: AggregateInput) -> AggregateCall:
    """The most frequent value; the lowest of several, or the highest with DESC."""
    written = call.written
    descending = False
    if written.within:
        call.arguments(0, 0, "no argument beside WITHIN GROUP")
        if len(written.within) != 1:
            raise written.refused("mode orders by one value", "name one column behind ORDER BY")
        node = written.within[0].this
        descending = bool(written.within[0].args.get("desc"))
    else:
        node, *more = call.arguments(1, 2, "one argument, and true for the lowest")
        if more and not isinstance(more[0], exp.Boolean):
            raise written.refused("the second argument of mode is true or false", "write true")
    if written.distinct:
        raise written.refused("mode of DISTINCT values", "leave out DISTINCT")
    term = call.fitting(
        node, lambda kind: is_plain(kind) and not kind.is_floating, "a plain type, not a double"
    )
    return call.build(
        call.filtered(term, node), term.type, options=CallOptions(descending=descending)
    )


def _percentile(call: AggregateInput) -> AggregateCall:
    written = call.written
    descending = False
    if written.within:
        fraction = call.arguments(1, 1, "one argument")[0]
        if len(written.within) != 1:
            raise written.refused(
                f"{written.name} orders by one value", "name one column behind ORDER BY"
            )
        node = written.within[0].this
        descending = bool(written.within[0].args.get("desc"))
    else:
        node, fraction = call.arguments(2, 2, "a value and a percentage")
    term = call.number(node)
    fractions, is_list = _fractions(call, fraction)
    return call.build(
        call.filtered(term, node),
        list_of(DOUBLE) if is_list else DOUBLE,
        distinct=written.distinct,
        options=CallOptions(fractions=fractions, is_list=is_list, descending=descending),
    )


def _approximate(call: AggregateInput) -> AggregateCall:
    written = call.written
    node, fraction, *more = call.arguments(2, 3, "a value, a percentage and the accuracy")
    accuracy = number_written(more[0]) if more else 1
    if accuracy is None or not 1 <= accuracy <= _ACCURACY_MAX or accuracy != int(accuracy):
        raise written.refused(
            "the accuracy is a whole number from 1, written out", "write, for example, 10000"
        )
    term = call.fitting(node, _is_measure, "a number, a date or a timestamp")
    fractions, is_list = _fractions(call, fraction)
    return call.build(
        call.filtered(term, node),
        list_of(term.type) if is_list else term.type,
        distinct=written.distinct,
        options=CallOptions(fractions=fractions, is_list=is_list),
    )


def _fractions(call: AggregateInput, node: exp.Expression) -> tuple[tuple[float, ...], bool]:
    is_list = isinstance(node, exp.Anonymous) and node.name.lower() == "array"
    nodes = node.expressions if is_list else [node]
    numbers = [number_written(node) for node in nodes]
    fractions = tuple(number for number in numbers if number is not None and 0 <= number <= 1)
    if not fractions or len(fractions) < len(nodes):
        raise call.written.refused(
            "a percentage is a number from 0 to 1, written out",
            "write, for example, 0.5 or array(0.25, 0.75)",
        )
    return fractions, is_list


TYPED_BY: Final[dict[str, Callable[[AggregateInput], AggregateCall]]] = {
    "count": _count,
    "count_if": _count_if,
    **dict.fromkeys(
        ("sum", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop"), _over_number
    ),
    "try_sum": _try_sum,
    **dict.fromkeys(("skewness", "kurtosis"), _moments),
    **dict.fromkeys(
        (*_PAIRS, "regr_count", "regr_avgx", "regr_avgy", "regr_sxx", "regr_syy"), _pair
    ),
    **dict.fromkeys(("min", "max"), _extreme),
    **dict.fromkeys(("bool_and", "bool_or"), _over_condition),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor"), _over_bits),
    **dict.fromkeys(("first", "last"), _first_or_last),
    **dict.fromkeys(("min_by", "max_by"), _by),
    **dict.fromkeys(("collect_list", "collect_set"), _collect),
    "listagg": _joined_text,
    "median": _over_number,
    "mode": _mode,
    **dict.fromkeys(("percentile", "percentile_disc"), _percentile),
    "percentile_approx": _approximate,
}
