"""One aggregate call as a value: its function, its arguments, and its SQL.

Invariant: an `AggregateCall` has no clauses any more. In rows that FILTER drops its values are
null, an ORDER BY is one key to compare, and its value and type are Spark's.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.sql.aggregates import aggregate_sql
from millrace.sql.aggregates.aggregate_sql import AggregateSql
from millrace.sql.aggregates.aggregate_writers import write_call
from millrace.sql.expressions import Expression
from millrace.sql.typed_sql import quoted
from millrace.sql.types import DOUBLE, LONG, PRECISION_MAX, SqlType, decimal


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """An aggregate over raw rows, before the exchange."""

    name: str
    sql: str
    type: SqlType


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The constants of a call: fractions of percentiles, their order, what is between texts."""

    fractions: tuple[float, ...] = ()
    is_list: bool = False
    descending: bool = False
    separator: str = ""


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One call: its function, its argument (None for all rows), and the type of its value.

    `by` orders the rows, where the function asks for an order, or is the second argument. Rows that
    FILTER drops have null there and in the argument.
    """

    function: str
    argument: Expression | None
    distinct: bool
    type: SqlType
    by: Expression | None = None
    options: CallOptions = CallOptions()

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        return frozenset().union(
            *(part.columns for part in (self.argument, self.by) if part is not None)
        )

    @property
    def mergeable(self) -> bool:
        """Whether it can be calculated in parts before the exchange."""
        return not self.distinct and len(self._sql().parts) > 0

    @property
    def adds_up(self) -> bool:
        """Whether the parts of a large group can be calculated from those of smaller groups."""
        return self.mergeable and self._sql().again is not None

    def whole(self) -> str:
        """The DuckDB aggregate over raw rows."""
        return self._sql().whole

    def mean(self, summed: str, counted: str) -> str:
        """The average, from the SQL of the sum and of the count."""
        assert self.function == "avg"
        return aggregate_sql.divided(summed, counted, self.summed_type, self.type)

    def partials(self, prefix: str) -> list[PartialColumn]:
        """The columns that are calculated before the exchange."""
        assert self.mergeable
        parts = self._sql().parts
        return [PartialColumn(f"{prefix}_{n}", sql, kind) for n, (sql, kind) in enumerate(parts)]

    def merge(self, prefix: str) -> str:
        """The DuckDB aggregate over the partial columns."""
        written = self._sql()
        assert self.mergeable
        assert written.merge is not None
        return written.merge([quoted(f"{prefix}_{n}") for n in range(len(written.parts))])

    def partials_again(self, prefix: str) -> list[PartialColumn]:
        """The columns of `partials` for larger groups, over those of smaller groups."""
        again = self._sql().again
        assert again is not None
        parts = self.partials(prefix)
        added = again([quoted(part.name) for part in parts])
        return [
            PartialColumn(part.name, sql, part.type) for part, sql in zip(parts, added, strict=True)
        ]

    @property
    def summed_type(self) -> SqlType:
        """The type in which an average is summed."""
        assert self.argument is not None
        kind = self.argument.type
        return sum_type(kind) if kind.is_decimal else DOUBLE

    def _sql(self) -> AggregateSql:
        return write_call(self)


def sum_type(kind: SqlType) -> SqlType:
    """The type of a sum."""
    if kind.is_decimal:
        return decimal(min(PRECISION_MAX, kind.precision + 10), kind.scale)
    return LONG if kind.is_integer else DOUBLE


def mean_type(kind: SqlType) -> SqlType:
    """The type of a mean."""
    if kind.is_decimal:
        return decimal(min(PRECISION_MAX, kind.precision + 4), min(PRECISION_MAX, kind.scale + 4))
    return DOUBLE
