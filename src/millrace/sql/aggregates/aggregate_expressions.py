"""Aggregates: an expression over the values of calls such as sum and count.

Invariant: outside of the calls stand only keys of the group, so the expression has one value for
each group. A call has Spark's type, or is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from millrace.sql.aggregates.aggregate_calls import AggregateCall
from millrace.sql.aggregates.aggregate_functions import TYPED_BY
from millrace.sql.aggregates.aggregate_input import input_of
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import as_user_error
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import canonical, read
from millrace.sql.sql_mode import SqlMode, current_mode
from millrace.sql.syntax_errors import refuse_name
from millrace.sql.typed_sql import ExpressionRefused, TypedSql
from millrace.sql.types import SqlType


@dataclass(frozen=True, slots=True)
class AggregateExpression:
    """An expression over the values of aggregate calls, and over keys of the group.

    Its SQL is `sql_around`, with the value of a call of `calls_between` between each two texts.
    `columns` are those that its calls read.
    """

    name: str
    type: SqlType
    calls: tuple[AggregateCall, ...]
    columns: frozenset[str]
    text: str
    sql_around: tuple[str, ...]
    calls_between: tuple[int, ...]
    mode: SqlMode = field(default_factory=current_mode)

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
    marks = _AggregateMarks(ExpressionTyper(NameScope(schema)))
    term = ExpressionTyper(_NoColumns(), marks.add).typed(tree)
    if not marks.calls:
        fix = "use sum, count, min, ..."
        raise ExpressionRefused("there is no aggregate", found=canonical(tree), fix=fix)
    sql_around, calls_between = marks.cut(term.sql)
    return AggregateExpression(
        name=name,
        type=term.type,
        calls=tuple(marks.calls),
        columns=frozenset().union(*(part.columns for part in marks.calls)),
        text=canonical(tree),
        sql_around=sql_around,
        calls_between=calls_between,
    )


def aggregate_call(name: str, node: exp.Expression, inner: ExpressionTyper) -> AggregateCall:
    """One call; `inner` types its arguments."""
    call = input_of(inner, name, node)
    build = TYPED_BY.get(call.written.function)
    if build is None:
        raise call.written.refused(f"{name} is not calculated here", "Spark computes it")
    return build(call)


class _NoColumns(NameScope):
    """A column outside of every aggregate has many values, so it is refused."""

    def __init__(self) -> None:
        super().__init__(pa.schema([]))

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
