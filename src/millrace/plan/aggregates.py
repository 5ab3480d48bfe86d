"""Aggregates: an expression over calls such as sum and count, in one step or in two.

Invariant: merging the partial columns of any split of the rows gives what the call gives over all
rows at once (doubles: up to the order of addition), with Spark's value and type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.plan.arithmetic import quotient
from millrace.plan.columns import Columns
from millrace.plan.expressions import Expression, columns_of, expression, worded
from millrace.plan.reader import canonical, read
from millrace.plan.terms import Refused, Term, as_type, quoted
from millrace.plan.types import (
    BOOLEAN,
    DOUBLE,
    LONG,
    PRECISION_MAX,
    VOID,
    SqlType,
    decimal,
)
from millrace.plan.walk import Walker

_SAME: Final = {
    "mean": "avg",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
    "every": "bool_and",
    "some": "bool_or",
    "any": "bool_or",
}
_SPREAD: Final = ("stddev_samp", "stddev_pop", "var_samp", "var_pop")
USAGES: Final = (
    "sum(x)",
    "count(*)",
    "count(x)",
    "count(DISTINCT x)",
    "min(x)",
    "max(x)",
    "avg(x), mean(x)",
    "stddev(x), stddev_samp(x), std(x), stddev_pop(x)",
    "variance(x), var_samp(x), var_pop(x)",
    "bool_and(x), every(x)",
    "bool_or(x), some(x), any(x)",
)


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """An aggregate over raw rows, before the exchange."""

    name: str
    sql: str
    type: SqlType


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One call: its function, what it is over (None for all rows), and the type of its value."""

    function: str
    argument: Expression | None
    distinct: bool
    type: SqlType

    @property
    def mergeable(self) -> bool:
        """Whether it can be calculated in parts before the exchange."""
        return not self.distinct and self.function not in _SPREAD

    def whole(self) -> str:
        """The DuckDB aggregate over raw rows."""
        if self.function == "avg":
            return _mean(self, _sum(self, self._over), f"count({self._over})")
        return self._plain(self.function)

    def mean(self, total: str, count: str) -> str:
        """The average, given the SQL of the sum and of the count."""
        return _mean(self, total, count)

    def partials(self, prefix: str) -> list[PartialColumn]:
        """The columns that are calculated before the exchange."""
        assert self.mergeable
        first, second = f"{prefix}_0", f"{prefix}_1"
        if self.function == "avg":
            total = PartialColumn(first, _sum(self, self._over), _sum_type(self))
            return [total, PartialColumn(second, f"count({self._over})", LONG)]
        return [PartialColumn(first, self._plain(self.function), self.type)]

    def merge(self, prefix: str) -> str:
        """The DuckDB aggregate over the partial columns."""
        assert self.mergeable
        first, second = quoted(f"{prefix}_0"), quoted(f"{prefix}_1")
        match self.function:
            case "avg":
                return _mean(self, _sum(self, first), f"sum({second})")
            case "count":
                return as_type(f"coalesce(sum({first}), 0)", LONG)
            case "sum":
                return _sum(self, first)
            case _:
                return as_type(f"{self.function}({first})", self.type)

    @property
    def _over(self) -> str:
        return "*" if self.argument is None else self.argument.sql

    def _plain(self, function: str) -> str:
        each = "DISTINCT " if self.distinct else ""
        if function == "sum":
            return _sum(self, self._over, each)
        if function in _SPREAD:
            return _spread(function, self._over)
        return as_type(f"{function}({each}{self._over})", self.type)


def _sum_type(call: AggregateCall) -> SqlType:
    assert call.argument is not None
    kind = call.argument.type
    if kind.is_decimal:
        return decimal(min(PRECISION_MAX, kind.precision + 10), kind.scale)
    return LONG if kind.is_integer and call.function == "sum" else DOUBLE


def _sum(call: AggregateCall, over: str, each: str = "") -> str:
    kind = _sum_type(call)
    over = as_type(over, DOUBLE) if kind == DOUBLE else over
    return as_type(f"sum({each}{over})", kind)


def _mean(call: AggregateCall, total: str, count: str) -> str:
    kind = _sum_type(call)
    if not kind.is_decimal:
        return as_type(f"({total} / nullif(CAST({count} AS DOUBLE), 0))", DOUBLE)
    one = Term(sql=total, type=kind)
    two = Term(sql=f"CAST({count} AS DECIMAL(20,0))", type=decimal(20, 0))
    value = quotient(one, two, call.type)
    return as_type(f"CASE WHEN {count} > 0 THEN {value} ELSE NULL END", call.type)


def _spread(function: str, over: str) -> str:
    x = f"CAST({over} AS DOUBLE)"
    least = 1 if function.endswith("_samp") else 0
    odd = f"bool_or(isnan({x}) OR isinf({x}))"
    plain = f"{function}(CASE WHEN isnan({x}) OR isinf({x}) THEN NULL ELSE {x} END)"
    return as_type(
        f"CASE WHEN count({x}) <= {least} THEN NULL WHEN {odd} THEN CAST('NaN' AS DOUBLE) "
        f"ELSE {plain} END",
        DOUBLE,
    )


@dataclass(frozen=True, slots=True)
class AggregateExpression:
    """An expression over the values of aggregate calls."""

    name: str
    type: SqlType
    calls: tuple[AggregateCall, ...]
    columns: frozenset[str]
    text: str
    pieces: tuple[str, ...]
    order: tuple[int, ...]

    def finish(self, values: Sequence[str]) -> str:
        """The SQL over the values of its calls, in the order of `calls`."""
        assert len(values) == len(self.calls)
        out = [self.pieces[0]]
        for number, piece in zip(self.order, self.pieces[1:], strict=True):
            out += [f"({values[number]})", piece]
        return "".join(out)


def parse_aggregate(name: str, text: str, schema: pa.Schema, *, call: str) -> AggregateExpression:
    """An expression over aggregates, such as sum(x) / count(*)."""
    with worded(call):
        tree = read(text)
        if isinstance(tree, exp.Alias):
            raise Refused("a name has no place here", found=text, fix=f"write agg({name}=...)")
        collected = _Calls(Walker(columns_of(schema)))
        term = Walker(_Outside(), collected.add).walk(tree)
        if not collected.calls:
            raise Refused("there is no aggregate", found=text, fix="use sum, count, min, ...")
        pieces, order = collected.cut(term.sql)
        return AggregateExpression(
            name=name,
            type=term.type,
            calls=tuple(collected.calls),
            columns=frozenset().union(
                *(one.argument.columns for one in collected.calls if one.argument is not None)
            ),
            text=canonical(tree),
            pieces=pieces,
            order=order,
        )


def aggregate_call(name: str, node: exp.Anonymous, inner: Walker) -> AggregateCall:
    """One call by itself; `inner` types what it is over."""
    collected = _Calls(inner)
    collected.add(name, node)
    return collected.calls[0]


class _Outside(Columns):
    """A column outside of every aggregate has many values, so it is refused."""

    def __init__(self) -> None:
        super().__init__({}, cast_first=frozenset())

    def find(self, name: str) -> Term:
        raise Refused(
            f"the column {name} stands outside of an aggregate",
            found=name,
            fix=f"group by it, or write, for example, max({name})",
        )


class _Calls:
    """The calls of one expression, each standing as a mark in the SQL around them."""

    def __init__(self, inner: Walker) -> None:
        self._inner = inner
        self.calls: list[AggregateCall] = []

    def add(self, name: str, node: exp.Anonymous) -> Term:
        """A call met in the tree; equal calls are kept once."""
        call = self._call(_SAME.get(name, name), node)
        if call not in self.calls:
            self.calls.append(call)
        return Term(sql=f"\0{self.calls.index(call)}\0", type=call.type)

    def _call(self, function: str, node: exp.Anonymous) -> AggregateCall:
        shown = node.sql(dialect="spark")
        arguments = node.expressions
        distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
        if distinct:
            arguments = arguments[0].expressions
        if len(arguments) != 1:
            raise Refused(f"{function} takes one argument", found=shown)
        if isinstance(arguments[0], exp.Star):
            if function != "count" or distinct:
                raise Refused(f"{function} takes no *", found=shown, fix="name a column")
            return AggregateCall(function, None, distinct=False, type=LONG)
        if distinct and function in ("min", "max", "bool_and", "bool_or"):
            distinct = False
        if distinct and function not in ("count", "sum"):
            raise Refused(f"{function} does not take DISTINCT", found=shown)
        argument = self._inner.walk(arguments[0])
        kind = _value_type(function, argument, shown)
        over = expression(arguments[0], argument)
        return AggregateCall(function, over, distinct=distinct, type=kind)

    @staticmethod
    def cut(sql: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The SQL between the marks, and the calls in the order of the marks."""
        parts = sql.split("\0")
        return tuple(parts[::2]), tuple(int(number) for number in parts[1::2])


def _value_type(function: str, argument: Term, shown: str) -> SqlType:
    kind = argument.type
    if function == "count":
        return LONG
    if function in ("min", "max"):
        fits, wanted = kind.arrow is None and kind != VOID, "a plain type"
    elif function in ("bool_and", "bool_or"):
        fits, wanted = kind == BOOLEAN, "a condition"
    else:
        fits, wanted = kind.is_numeric, "a number"
    if not fits:
        raise Refused(
            f"{function} needs {wanted}", found=f"{shown} over {kind}", fix="cast the argument"
        )
    if function in ("min", "max", "bool_and", "bool_or"):
        return kind
    if kind.is_decimal and function == "sum":
        return decimal(min(PRECISION_MAX, kind.precision + 10), kind.scale)
    if kind.is_decimal and function == "avg":
        return decimal(min(PRECISION_MAX, kind.precision + 4), min(PRECISION_MAX, kind.scale + 4))
    return LONG if kind.is_integer and function == "sum" else DOUBLE
