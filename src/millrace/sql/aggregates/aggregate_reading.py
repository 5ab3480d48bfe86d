"""Reads an aggregate call out of a syntax tree and gives it its type.

Invariant: a call that is taken has Spark's type; every other one is refused, saying why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sqlglot import exp

from millrace.sql.aggregates.aggregate_calls import AggregateCall, CallOptions, mean_type, sum_type
from millrace.sql.aggregates.aggregate_lists import list_of
from millrace.sql.aggregates.aggregate_syntax import (
    AggregateInput,
    is_known,
    is_plain,
    none_null,
    number_written,
    one_if,
    only_if,
    reading_of,
    together,
)
from millrace.sql.functions.conditions import truth
from millrace.sql.functions.function_registry import ANY_NUMBER
from millrace.sql.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    SqlType,
)
from millrace.sql.typing_walk import Walker

_ACCURACY_MAX: Final = 2**31 - 1
# With this many hashes kept the relative standard error is 1.6 percent.
_HASHES_KEPT: Final = 4096
_ERROR_LEAST: Final = 0.005
_ERROR_MOST: Final = 0.39


def read_call(walker: Walker, name: str, node: exp.Expression) -> AggregateCall:
    """The call that a node is, over the columns that the walker knows."""
    reading = reading_of(walker, name, node)
    return _READERS[reading.written.function](reading)


def _is_condition(kind: SqlType) -> bool:
    return kind == BOOLEAN


def _is_number(kind: SqlType) -> bool:
    return kind.is_numeric


def _is_measure(kind: SqlType) -> bool:
    return kind.is_numeric or kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ)


def _of_number(reading: AggregateInput) -> AggregateCall:
    node = reading.takes(1, 1, "one argument")[0]
    term = reading.fitting(node, _is_number, "a number")
    kinds = {"sum": sum_type, "avg": mean_type}
    kind = kinds.get(reading.written.function, lambda _: DOUBLE)(term.type)
    return reading.call(reading.kept(term, node), kind, distinct=reading.written.distinct)


def _extreme(reading: AggregateInput) -> AggregateCall:
    node = reading.takes(1, 1, "one argument")[0]
    term = reading.fitting(node, is_plain, "a plain type")
    return reading.call(reading.kept(term, node), term.type)


def _of_condition(reading: AggregateInput) -> AggregateCall:
    node = reading.takes(1, 1, "one argument")[0]
    term = reading.fitting(node, _is_condition, "a condition")
    return reading.call(reading.kept(term, node), BOOLEAN)


def _count(reading: AggregateInput) -> AggregateCall:
    written = reading.written
    nodes = reading.takes(1, ANY_NUMBER, "at least one argument")
    if isinstance(nodes[0], exp.Star):
        if written.distinct or len(nodes) > 1:
            raise written.refused("count takes no * beside other words", "name the columns")
        if reading.where is None:
            return AggregateCall("count", None, distinct=False, type=LONG)
        return reading.call(reading.kept(one_if(), nodes[0]), LONG)
    if len(nodes) == 1:
        term = reading.term(nodes[0])
    elif written.distinct:
        term = together([reading.fitting(node, is_plain, "plain types") for node in nodes])
    else:
        term = one_if(none_null([reading.term(node) for node in nodes]))
    return reading.call(reading.kept(term, nodes[0]), LONG, distinct=written.distinct)


def _count_if(reading: AggregateInput) -> AggregateCall:
    node = reading.takes(1, 1, "one argument")[0]
    term = reading.fitting(node, lambda kind: kind in (BOOLEAN, VOID), "a condition")
    argument = reading.kept(one_if(truth(term, "count_if")), node)
    return reading.call(argument, LONG, function="count", distinct=reading.written.distinct)


def _any_value(reading: AggregateInput) -> AggregateCall:
    node, _ = _with_nulls_choice(reading)
    term = reading.fitting(node, is_known, "a value with a type")
    return reading.call(reading.kept(term, node), term.type)


def _with_nulls_choice(reading: AggregateInput) -> tuple[exp.Expression, bool]:
    """The argument, and whether nulls are passed over: said by IGNORE NULLS or a second `true`."""
    written = reading.written
    node, *more = reading.takes(1, 2, "one argument, and true to pass over nulls")
    if more and not isinstance(more[0], exp.Boolean):
        what = f"the second argument of {written.name} is true or false"
        raise written.refused(what, "write IGNORE NULLS instead")
    return node, written.ignore_nulls or bool(more and more[0].this)


def _ordered(reading: AggregateInput) -> AggregateCall:
    written = reading.written
    node, ignore_nulls = _with_nulls_choice(reading)
    function = "min_by" if written.function == "first" else "max_by"
    if not written.order:
        raise written.refused(
            f"{written.name} needs an order: which row comes {written.function} would depend on "
            "how rows lie over tasks",
            f"write {written.name}(x ORDER BY t), {function}(x, t) or any_value(x)",
        )
    term = reading.fitting(node, is_known, "a value with a type")
    key = reading.order_key()
    if ignore_nulls:
        key = only_if(none_null([term]), key)
    by = reading.kept(key, written.order[0])
    return reading.call(reading.kept(term, node), term.type, function=function, by=by)


def _by(reading: AggregateInput) -> AggregateCall:
    node, by = reading.takes(2, 2, "two arguments")
    term = reading.fitting(node, is_known, "a value with a type")
    key = reading.fitting(by, is_plain, "a plain type to compare")
    return reading.call(reading.kept(term, node), term.type, by=reading.kept(key, by))


def _collect(reading: AggregateInput) -> AggregateCall:
    written = reading.written
    node = reading.takes(1, 1, "one argument")[0]
    if written.function == "collect_set" or written.distinct:
        term = reading.fitting(node, is_plain, "a plain type to compare")
        kind = list_of(term.type)
        return reading.call(reading.kept(term, node), kind, function="collect_set")
    term = reading.fitting(node, is_known, "a value with a type")
    by = reading.kept(reading.order_key(), written.order[0]) if written.order else None
    return reading.call(reading.kept(term, node), list_of(term.type), by=by)


def _estimate(reading: AggregateInput) -> AggregateCall:
    node, *more = reading.takes(1, 2, "one argument, and the error that is allowed")
    error = number_written(more[0]) if more else _ERROR_MOST
    if error is None or not _ERROR_LEAST <= error <= _ERROR_MOST:
        raise reading.written.refused(
            f"the error is a number from {_ERROR_LEAST} to {_ERROR_MOST}, written out",
            "use count(DISTINCT x) for an exact count",
        )
    term = reading.fitting(node, is_plain, "a plain type")
    kept = max(_HASHES_KEPT, math.ceil(1 / error**2) + 2)
    return reading.call(reading.kept(term, node), LONG, options=CallOptions(hashes_kept=kept))


def _percentile(reading: AggregateInput) -> AggregateCall:
    written = reading.written
    descending = False
    if written.within:
        fraction = reading.takes(1, 1, "one argument")[0]
        if len(written.within) != 1:
            raise written.refused(
                f"{written.name} orders by one value", "name one column behind ORDER BY"
            )
        node = written.within[0].this
        descending = bool(written.within[0].args.get("desc"))
    else:
        node, fraction = reading.takes(2, 2, "a value and a percentage")
    term = reading.fitting(node, _is_number, "a number")
    fractions, is_list = _fractions(reading, fraction)
    return reading.call(
        reading.kept(term, node),
        list_of(DOUBLE) if is_list else DOUBLE,
        distinct=written.distinct,
        options=CallOptions(fractions=fractions, is_list=is_list, descending=descending),
    )


def _approximate(reading: AggregateInput) -> AggregateCall:
    written = reading.written
    node, fraction, *more = reading.takes(2, 3, "a value, a percentage and the accuracy")
    accuracy = number_written(more[0]) if more else 1
    if accuracy is None or not 1 <= accuracy <= _ACCURACY_MAX or accuracy != int(accuracy):
        raise written.refused(
            "the accuracy is a whole number from 1, written out", "write, for example, 10000"
        )
    term = reading.fitting(node, _is_measure, "a number, a date or a timestamp")
    fractions, is_list = _fractions(reading, fraction)
    return reading.call(
        reading.kept(term, node),
        list_of(term.type) if is_list else term.type,
        distinct=written.distinct,
        options=CallOptions(fractions=fractions, is_list=is_list),
    )


def _fractions(reading: AggregateInput, node: exp.Expression) -> tuple[tuple[float, ...], bool]:
    is_list = isinstance(node, exp.Anonymous) and node.name.lower() == "array"
    nodes = node.expressions if is_list else [node]
    found = [number_written(each) for each in nodes]
    fractions = tuple(each for each in found if each is not None and 0 <= each <= 1)
    if not fractions or len(fractions) < len(nodes):
        raise reading.written.refused(
            "a percentage is a number from 0 to 1, written out",
            "write, for example, 0.5 or array(0.25, 0.75)",
        )
    return fractions, is_list


_READERS: Final[dict[str, Callable[[AggregateInput], AggregateCall]]] = {
    "count": _count,
    "count_if": _count_if,
    **dict.fromkeys(("sum", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop"), _of_number),
    **dict.fromkeys(("min", "max"), _extreme),
    **dict.fromkeys(("bool_and", "bool_or"), _of_condition),
    "any_value": _any_value,
    **dict.fromkeys(("first", "last"), _ordered),
    **dict.fromkeys(("min_by", "max_by"), _by),
    **dict.fromkeys(("collect_list", "collect_set"), _collect),
    "approx_count_distinct": _estimate,
    "median": _of_number,
    **dict.fromkeys(("percentile", "percentile_disc"), _percentile),
    "percentile_approx": _approximate,
}
