"""The SQL of aggregates of one value: over all rows at once, or in parts that are merged later.

Invariant: `merge` over the columns of `parts`, for any split of the rows, gives what `whole` gives
over all rows (doubles: up to the order of addition). A form without parts is done in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.sql.functions.arithmetic import quotient
from millrace.sql.terms import Term, as_type
from millrace.sql.types import DOUBLE, LONG, SqlType, decimal

Part = tuple[str, SqlType]
# Names inside of lambdas. A column of the same name would be read in their place.
VALUES: Final = '"__lambda values"'
_EACH: Final = '"__lambda each"'
_COUNT: Final = '"__lambda count"'
_CENTRE: Final = '"__lambda centre"'
_NAN: Final = "CAST('NaN' AS DOUBLE)"
# Values are scaled by powers of two, which loses nothing, so that their sum stays below infinity.
_DOWN: Final = "CAST('5.421010862427522e-20' AS DOUBLE)"
_UP: Final = "CAST('18446744073709551616' AS DOUBLE)"


class Form(Protocol):
    """How a call is written."""

    def whole(self) -> str:
        """The aggregate over raw rows."""

    def parts(self) -> Sequence[Part]:
        """The aggregates over raw rows that can be merged; none if there is no such way."""

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the columns that the parts became."""


def typed(sql: str, kind: SqlType) -> str:
    """A cast to a plain type; a nested one is left as it is."""
    return sql if kind.arrow is not None else as_type(sql, kind)


def bound(value: str, name: str, body: str) -> str:
    """A value calculated once and used several times in `body` under a name."""
    return f"list_transform([{value}], lambda {name}: {body})[1]"


@dataclass(frozen=True, slots=True)
class Same:
    """min, max and the like, which merge by themselves."""

    function: str
    over: str
    type: SqlType

    def whole(self) -> str:
        """The aggregate over raw rows."""
        return typed(f"{self.function}({self.over})", self.type)

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        return [(self.whole(), self.type)]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        return typed(f"{self.function}({columns[0]})", self.type)


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are."""

    over: str

    def whole(self) -> str:
        """The aggregate over raw rows."""
        return as_type(f"count({self.over})", LONG)

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        return [(self.whole(), LONG)]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        return as_type(f"coalesce(sum({columns[0]}), 0)", LONG)


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum in the type Spark gives it: a long, a double, or a decimal of ten more digits."""

    over: str
    type: SqlType
    each: str = ""

    def whole(self) -> str:
        """The aggregate over raw rows."""
        over = as_type(self.over, DOUBLE) if self.type == DOUBLE else self.over
        return as_type(f"sum({self.each}{over})", self.type)

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        return [(self.whole(), self.type)]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        return as_type(f"sum({columns[0]})", self.type)


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum divided by a count."""

    sum: Sum
    type: SqlType

    def whole(self) -> str:
        """The aggregate over raw rows."""
        return self.divided(self.sum.whole(), self._count())

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        return [*self.sum.parts(), (self._count(), LONG)]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        return self.divided(self.sum.merge(columns[:1]), f"sum({columns[1]})")

    def _count(self) -> str:
        return f"count({self.sum.each}{self.sum.over})"

    def divided(self, total: str, count: str) -> str:
        """The mean, given the SQL of the sum and of the count."""
        if not self.type.is_decimal:
            return as_type(f"({total} / nullif(CAST({count} AS DOUBLE), 0))", DOUBLE)
        one = Term(sql=total, type=self.sum.type)
        two = Term(sql=f"CAST({count} AS DECIMAL(20,0))", type=decimal(20, 0))
        value = quotient(one, two, self.type)
        return as_type(f"CASE WHEN {count} > 0 THEN {value} ELSE NULL END", self.type)


@dataclass(frozen=True, slots=True)
class By:
    """The value in the row where `by` is least or greatest; rows where it is null do not count."""

    function: str
    over: str
    type: SqlType
    by: str
    by_type: SqlType

    def whole(self) -> str:
        """The aggregate over raw rows."""
        return self._written(self.over, self.by)

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        best = as_type(f"{self.function.removesuffix('_by')}({self.by})", self.by_type)
        return [(self.whole(), self.type), (best, self.by_type)]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        return self._written(columns[0], columns[1])

    def _written(self, over: str, by: str) -> str:
        step = "arg_max_null" if self.function == "max_by" else "arg_min_null"
        return typed(f"{step}({over}, {by})", self.type)


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance and deviation.

    Parts are a count, a mean and a sum of squared distances from that mean, merged around one of
    the means: sums of squares would lose a small spread of large numbers.
    """

    function: str
    over: str
    each: str = ""

    def whole(self) -> str:
        """The aggregate over raw rows."""
        x, plain, odd = self._pieces()
        value = f"{self.function}({self.each}{plain})"
        return as_type(
            f"CASE WHEN count({self.each}{x}) <= {self._least} THEN NULL "
            f"WHEN {odd} THEN {_NAN} ELSE {value} END",
            DOUBLE,
        )

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        x, plain, odd = self._pieces()
        mean = f"favg({plain} * {_DOWN}) * {_UP}"
        return [
            (f"count({x})", LONG),
            (as_type(f"CASE WHEN {odd} THEN {_NAN} ELSE {mean} END", DOUBLE), DOUBLE),
            (as_type(f"coalesce(var_pop({plain}) * count({plain}), 0)", DOUBLE), DOUBLE),
        ]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        count, mean, squares = columns
        row = f"{{'n': CAST({count} AS DOUBLE), 'mean': {mean}, 'squares': {squares}}}"
        rows = f"list({row}) FILTER (WHERE {count} > 0)"
        off = f"({_EACH}.mean - {VALUES}[1].mean)"
        centre = _summed(f"{off} * ({_EACH}.n / {_COUNT})")
        squared = _summed(f"{_EACH}.squares + {_EACH}.n * pow({off} - {_CENTRE}, 2)")
        value = bound(centre, _CENTRE, f"{squared} / ({_COUNT} - {self._least})")
        if self.function.startswith("stddev"):
            value = f"sqrt({value})"
        value = f"CASE WHEN {_COUNT} <= {self._least} THEN NULL ELSE {value} END"
        value = bound(_summed(f"{_EACH}.n"), _COUNT, value)
        return as_type(bound(rows, VALUES, value), DOUBLE)

    @property
    def _least(self) -> int:
        return 1 if self.function.endswith("_samp") else 0

    def _pieces(self) -> tuple[str, str, str]:
        x = f"CAST({self.over} AS DOUBLE)"
        odd = f"isnan({x}) OR isinf({x})"
        return x, f"CASE WHEN {odd} THEN NULL ELSE {x} END", f"bool_or({odd})"


def _summed(value: str) -> str:
    """The sum of something of each of the values."""
    return f"list_sum(list_transform({VALUES}, lambda {_EACH}: {value}))"
