"""Aggregates: an expression over the values of calls such as sum and count.

Invariant: no column stands outside of a call, so the expression has one value for each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.sql.aggregates.aggregate_calls import AggregateCall, PartialColumn
from millrace.sql.aggregates.aggregate_reading import read_call
from millrace.sql.expressions import columns_of, worded
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import canonical, read
from millrace.sql.syntax_errors import refuse_name
from millrace.sql.terms import ExpressionRefused, Term
from millrace.sql.types import SqlType
from millrace.sql.typing_walk import Walker

__all__ = [
    "USAGES",
    "AggregateCall",
    "AggregateExpression",
    "PartialColumn",
    "aggregate_call",
    "parse_aggregate",
]
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
        refuse_name(tree, text, f"write agg({name}=...)")
        collected = _AggregateMarks(Walker(columns_of(schema)))
        term = Walker(_Outside(), collected.add).walk(tree)
        if not collected.calls:
            raise ExpressionRefused(
                "there is no aggregate", found=text, fix="use sum, count, min, ..."
            )
        pieces, order = collected.cut(term.sql)
        return AggregateExpression(
            name=name,
            type=term.type,
            calls=tuple(collected.calls),
            columns=frozenset().union(*(one.columns for one in collected.calls)),
            text=canonical(tree),
            pieces=pieces,
            order=order,
        )


def aggregate_call(name: str, node: exp.Expression, inner: Walker) -> AggregateCall:
    """One call by itself; `inner` types what it is over."""
    return read_call(inner, name, node)


class _Outside(NameScope):
    """A column outside of every aggregate has many values, so it is refused."""

    def __init__(self) -> None:
        super().__init__({}, cast_first=frozenset())

    def find(self, name: str) -> Term:
        raise ExpressionRefused(
            f"the column {name} stands outside of an aggregate",
            found=name,
            fix=f"group by it, or write, for example, max({name})",
        )


class _AggregateMarks:
    """The calls of one expression, each standing as a mark in the SQL around them."""

    def __init__(self, inner: Walker) -> None:
        self._inner = inner
        self.calls: list[AggregateCall] = []

    def add(self, name: str, node: exp.Expression) -> Term:
        """A call met in the tree; equal calls are kept once."""
        call = read_call(self._inner, name, node)
        if call not in self.calls:
            self.calls.append(call)
        return Term(sql=f"\0{self.calls.index(call)}\0", type=call.type)

    @staticmethod
    def cut(sql: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The SQL between the marks, and the calls in the order of the marks."""
        parts = sql.split("\0")
        return tuple(parts[::2]), tuple(int(number) for number in parts[1::2])
