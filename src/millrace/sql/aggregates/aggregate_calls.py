"""One aggregate call: what it is over, the type of its value, and its SQL in one step or in two.

Invariant: merging the partial columns of any split of the rows gives what the call gives over all
rows at once (doubles: up to the order of addition), with Spark's value and type.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.sql.aggregates.aggregate_forms import By, Count, Form, Mean, Same, Spread, Sum
from millrace.sql.aggregates.aggregate_lists import Collected, CollectedSet, Estimated
from millrace.sql.aggregates.percentiles import Approximate, Median, Percentile
from millrace.sql.expressions import Expression
from millrace.sql.terms import quoted
from millrace.sql.types import DOUBLE, LONG, PRECISION_MAX, SqlType, decimal


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """An aggregate over raw rows, before the exchange."""

    name: str
    sql: str
    type: SqlType


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What is written into a call beside columns."""

    fractions: tuple[float, ...] = ()
    is_list: bool = False
    descending: bool = False
    hashes_kept: int = 0


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One call: its function, what it is over (None for all rows), and the type of its value.

    `by` orders the rows, where the function asks for an order. Rows that FILTER takes out have
    null there and in the argument.
    """

    function: str
    argument: Expression | None
    distinct: bool
    type: SqlType
    by: Expression | None = None
    options: CallOptions = CallOptions()

    @property
    def columns(self) -> frozenset[str]:
        """The columns it reads."""
        return frozenset().union(
            *(part.columns for part in (self.argument, self.by) if part is not None)
        )

    @property
    def mergeable(self) -> bool:
        """Whether it can be calculated in parts before the exchange."""
        return not self.distinct and len(self._form().parts()) > 0

    def whole(self) -> str:
        """The DuckDB aggregate over raw rows."""
        return self._form().whole()

    def mean(self, total: str, count: str) -> str:
        """The average, given the SQL of the sum and of the count."""
        form = self._form()
        assert isinstance(form, Mean)
        return form.divided(total, count)

    def partials(self, prefix: str) -> list[PartialColumn]:
        """The columns that are calculated before the exchange."""
        assert self.mergeable
        parts = self._form().parts()
        return [PartialColumn(f"{prefix}_{n}", sql, kind) for n, (sql, kind) in enumerate(parts)]

    def merge(self, prefix: str) -> str:
        """The DuckDB aggregate over the partial columns."""
        assert self.mergeable
        form = self._form()
        return form.merge([quoted(f"{prefix}_{n}") for n in range(len(form.parts()))])

    def _form(self) -> Form:
        each = "DISTINCT " if self.distinct else ""
        if self.argument is None:
            return Count("*")
        over, kind = self.argument.sql, self.argument.type
        match self.function:
            case "count":
                return Count(each + over)
            case "sum":
                return Sum(over, self.type, each)
            case "avg":
                return Mean(
                    Sum(over, sum_type(kind) if kind.is_decimal else DOUBLE, each), self.type
                )
            case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
                return Spread(self.function, over, each)
            case "min_by" | "max_by":
                assert self.by is not None
                return By(self.function, over, self.type, self.by.sql, self.by.type)
            case "min" | "max" | "bool_and" | "bool_or" | "any_value":
                return Same(self.function, over, self.type)
            case _:
                return self._form_of_many(over, each)

    def _form_of_many(self, over: str, each: str) -> Form:
        assert self.argument is not None
        options = self.options
        match self.function:
            case "collect_list":
                return Collected(over, self.type, None if self.by is None else self.by.sql)
            case "collect_set":
                return CollectedSet(over, self.argument.type)
            case "approx_count_distinct":
                return Estimated(over, options.hashes_kept)
            case "median":
                return Median(over, each)
            case "percentile" | "percentile_disc":
                return Percentile(
                    over,
                    each,
                    fractions=options.fractions,
                    is_list=options.is_list,
                    discrete=self.function == "percentile_disc",
                    descending=options.descending,
                )
            case "percentile_approx":
                return Approximate(
                    over,
                    each,
                    fractions=options.fractions,
                    is_list=options.is_list,
                    type=self.type,
                )
            case _:
                raise AssertionError(f"no aggregate {self.function}")


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
