"""Aggregates: an expression over the values of calls such as sum and count.

Invariant: no column stands outside of a call, so the expression has one value for each group. A
call has Spark's type, or is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.sql.aggregates.aggregate_calls import (
    AggregateCall,
    AggregateInput,
    CallOptions,
    input_of,
    is_plain,
    mean_type,
    null_unless,
    sum_type,
)
from millrace.sql.aggregates.aggregate_sql import list_of
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import as_user_error, scope_of
from millrace.sql.functions.conditions import as_condition
from millrace.sql.functions.function_registry import ANY_NUMBER
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import LITERAL, canonical, read
from millrace.sql.syntax_errors import refuse_name
from millrace.sql.typed_sql import ExpressionRefused, TypedSql, as_type, read_columns
from millrace.sql.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    SqlType,
    to_arrow,
)

USAGES: Final = (
    "sum(x)",
    "count(*), count(x), count(x, y)",
    "count(DISTINCT x), count(DISTINCT x, y)",
    "count_if(condition)",
    "approx_count_distinct(x), approx_count_distinct(x, error)",
    "min(x)",
    "max(x)",
    "min_by(x, y)",
    "max_by(x, y)",
    "first(x ORDER BY y), first_value(x ORDER BY y)",
    "last(x ORDER BY y), last_value(x ORDER BY y)",
    "any_value(x)",
    "avg(x), mean(x)",
    "stddev(x), stddev_samp(x), std(x), stddev_pop(x)",
    "variance(x), var_samp(x), var_pop(x)",
    "median(x)",
    "percentile(x, p)",
    "percentile_cont(p) WITHIN GROUP (ORDER BY x)",
    "percentile_disc(p) WITHIN GROUP (ORDER BY x)",
    "percentile_approx(x, p), approx_percentile(x, p)",
    "collect_list(x), array_agg(x), list(x)",
    "collect_set(x)",
    "bool_and(x), every(x)",
    "bool_or(x), some(x), any(x)",
)
_ACCURACY_MAX: Final = 2**31 - 1
# With this many hashes kept the relative standard error is 1.6 percent.
_HASHES_KEPT: Final = 4096
_ERROR_LEAST: Final = 0.005
_ERROR_MOST: Final = 0.39


@dataclass(frozen=True, slots=True)
class AggregateExpression:
    """An expression over the values of aggregate calls.

    Its SQL is `sql_around`, with the value of a call of `calls_between` between each two texts.
    """

    name: str
    type: SqlType
    calls: tuple[AggregateCall, ...]
    columns: frozenset[str]
    text: str
    sql_around: tuple[str, ...]
    calls_between: tuple[int, ...]

    def finish(self, values: Sequence[str]) -> str:
        """The SQL over the values of its calls, in the order of `calls`."""
        assert len(values) == len(self.calls)
        out = [self.sql_around[0]]
        for number, sql in zip(self.calls_between, self.sql_around[1:], strict=True):
            out += [f"({values[number]})", sql]
        return "".join(out)


def parse_aggregate(name: str, text: str, schema: pa.Schema, *, call: str) -> AggregateExpression:
    """An expression over aggregates, such as sum(x) / count(*)."""
    with as_user_error(call):
        tree = read(text)
        refuse_name(tree, text, f"write agg({name}=...)")
        return typed_aggregate(name, tree, schema)


def typed_aggregate(name: str, tree: exp.Expression, schema: pa.Schema) -> AggregateExpression:
    """A tree over aggregates as an expression of this name."""
    collected = _AggregateMarks(ExpressionTyper(scope_of(schema)))
    term = ExpressionTyper(_NoColumns(), collected.add).typed(tree)
    if not collected.calls:
        fix = "use sum, count, min, ..."
        raise ExpressionRefused("there is no aggregate", found=canonical(tree), fix=fix)
    columns = frozenset().union(*(part.columns for part in collected.calls))
    calls, text = tuple(collected.calls), canonical(tree)
    return AggregateExpression(name, term.type, calls, columns, text, *collected.cut(term.sql))


def aggregate_call(name: str, node: exp.Expression, inner: ExpressionTyper) -> AggregateCall:
    """One call; `inner` types its arguments."""
    call = input_of(inner, name, node)
    return _TYPED_BY[call.written.function](call)


class _NoColumns(NameScope):
    """A column outside of every aggregate has many values, so it is refused."""

    def __init__(self) -> None:
        super().__init__({}, cast_first=frozenset())

    def find(self, name: str) -> TypedSql:
        raise ExpressionRefused(
            f"the column {name} stands outside of an aggregate",
            found=name,
            fix=f"group by it, or write, for example, max({name})",
        )


class _AggregateMarks:
    """The calls of one expression; its SQL has a mark for each."""

    def __init__(self, inner: ExpressionTyper) -> None:
        self._inner = inner
        self.calls: list[AggregateCall] = []

    def add(self, name: str, node: exp.Expression) -> TypedSql:
        """A call met in the tree; equal calls are kept once."""
        call = aggregate_call(name, node, self._inner)
        if call not in self.calls:
            self.calls.append(call)
        return TypedSql(sql=f"\0{self.calls.index(call)}\0", type=call.type)

    @staticmethod
    def cut(sql: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The SQL between the marks, and the calls in the order of the marks."""
        parts = sql.split("\0")
        return tuple(parts[::2]), tuple(int(number) for number in parts[1::2])


def _is_condition(kind: SqlType) -> bool:
    return kind == BOOLEAN


def _is_number(kind: SqlType) -> bool:
    return kind.is_numeric


def _is_measure(kind: SqlType) -> bool:
    return kind.is_numeric or kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ)


def _over_number(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.fitting(node, _is_number, "a number")
    kinds = {"sum": sum_type, "avg": mean_type}
    kind = kinds.get(call.written.function, lambda _: DOUBLE)(term.type)
    return call.build(call.filtered(term, node), kind, distinct=call.written.distinct)


def _extreme(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.fitting(node, is_plain, "a plain type")
    return call.build(call.filtered(term, node), term.type)


def _over_condition(call: AggregateInput) -> AggregateCall:
    node = call.arguments(1, 1, "one argument")[0]
    term = call.fitting(node, _is_condition, "a condition")
    return call.build(call.filtered(term, node), BOOLEAN)


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


def _any_value(call: AggregateInput) -> AggregateCall:
    node, _ = _with_nulls_choice(call)
    term = call.fitting(node, is_known, "a value with a type")
    return call.build(call.filtered(term, node), term.type)


def _with_nulls_choice(call: AggregateInput) -> tuple[exp.Expression, bool]:
    """The argument, and whether IGNORE NULLS or a second argument `true` skips nulls."""
    written = call.written
    node, *more = call.arguments(1, 2, "one argument, and true to pass over nulls")
    if more and not isinstance(more[0], exp.Boolean):
        what = f"the second argument of {written.name} is true or false"
        raise written.refused(what, "write IGNORE NULLS instead")
    return node, written.ignore_nulls or bool(more and more[0].this)


def _ordered(call: AggregateInput) -> AggregateCall:
    written = call.written
    node, ignore_nulls = _with_nulls_choice(call)
    function = "min_by" if written.function == "first" else "max_by"
    if not written.order:
        raise written.refused(
            f"{written.name} needs an order: which row comes {written.function} would depend on "
            "how rows lie over tasks",
            f"write {written.name}(x ORDER BY t), {function}(x, t) or any_value(x)",
        )
    term = call.fitting(node, is_known, "a value with a type")
    key = call.order_key()
    if ignore_nulls:
        key = null_unless(none_null([term]), key)
    by = call.filtered(key, written.order[0])
    return call.build(call.filtered(term, node), term.type, function=function, by=by)


def _by(call: AggregateInput) -> AggregateCall:
    node, by = call.arguments(2, 2, "two arguments")
    term = call.fitting(node, is_known, "a value with a type")
    key = call.fitting(by, is_plain, "a plain type to compare")
    return call.build(call.filtered(term, node), term.type, by=call.filtered(key, by))


def _collect(call: AggregateInput) -> AggregateCall:
    written = call.written
    node = call.arguments(1, 1, "one argument")[0]
    if written.function == "collect_set" or written.distinct:
        term = call.fitting(node, is_plain, "a plain type to compare")
        kind = list_of(term.type)
        return call.build(call.filtered(term, node), kind, function="collect_set")
    term = call.fitting(node, is_known, "a value with a type")
    by = call.filtered(call.order_key(), written.order[0]) if written.order else None
    return call.build(call.filtered(term, node), list_of(term.type), by=by)


def _estimate(call: AggregateInput) -> AggregateCall:
    node, *more = call.arguments(1, 2, "one argument, and the error that is allowed")
    error = number_written(more[0]) if more else _ERROR_MOST
    if error is None or not _ERROR_LEAST <= error <= _ERROR_MOST:
        raise call.written.refused(
            f"the error is a number from {_ERROR_LEAST} to {_ERROR_MOST}, written out",
            "use count(DISTINCT x) for an exact count",
        )
    term = call.fitting(node, is_plain, "a plain type")
    kept = max(_HASHES_KEPT, math.ceil(1 / error**2) + 2)
    return call.build(call.filtered(term, node), LONG, options=CallOptions(hashes_kept=kept))


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
    term = call.fitting(node, _is_number, "a number")
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


_TYPED_BY: Final[dict[str, Callable[[AggregateInput], AggregateCall]]] = {
    "count": _count,
    "count_if": _count_if,
    **dict.fromkeys(
        ("sum", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop"), _over_number
    ),
    **dict.fromkeys(("min", "max"), _extreme),
    **dict.fromkeys(("bool_and", "bool_or"), _over_condition),
    "any_value": _any_value,
    **dict.fromkeys(("first", "last"), _ordered),
    **dict.fromkeys(("min_by", "max_by"), _by),
    **dict.fromkeys(("collect_list", "collect_set"), _collect),
    "approx_count_distinct": _estimate,
    "median": _over_number,
    **dict.fromkeys(("percentile", "percentile_disc"), _percentile),
    "percentile_approx": _approximate,
}


def is_known(kind: SqlType) -> bool:
    """Whether it has a type other than that of NULL."""
    return kind != VOID


def one_if(condition: TypedSql | None = None) -> TypedSql:
    """1 where the condition is true."""
    number_one = TypedSql(sql=as_type("1", INT), type=INT)
    return number_one if condition is None else null_unless(condition, number_one)


def none_null(terms: Sequence[TypedSql]) -> TypedSql:
    """Whether no term is null."""
    sql = " AND ".join(f"({term.sql} IS NOT NULL)" for term in terms)
    raises = any(term.raises for term in terms)
    return TypedSql(sql=sql, type=BOOLEAN, columns=read_columns(terms), raises=raises)


def row_of(terms: Sequence[TypedSql]) -> TypedSql:
    """A row of the terms, null where one of them is."""
    fields = [pa.field(f"v{n}", to_arrow(term.type)) for n, term in enumerate(terms)]
    listed = ", ".join(term.sql for term in terms)
    kind = SqlType("passed on", arrow=pa.struct(fields))
    return null_unless(
        none_null(terms), TypedSql(sql=f"row({listed})", type=kind, columns=read_columns(terms))
    )


def number_written(node: exp.Expression) -> float | None:
    """A number written in the text, with or without a suffix."""
    if isinstance(node, exp.Anonymous) and node.name.startswith(LITERAL):
        node = node.expressions[0]
    if isinstance(node, exp.Literal) and not node.is_string:
        return float(node.name)
    return None
