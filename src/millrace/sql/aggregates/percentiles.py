"""The SQL of percentiles. They need all values of a group together, so they have no parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.sql.aggregates.aggregate_forms import VALUES, Part, bound, typed
from millrace.sql.terms import as_type
from millrace.sql.types import DOUBLE, SqlType


@dataclass(frozen=True, slots=True)
class _InOneGo:
    over: str
    each: str

    def parts(self) -> Sequence[Part]:
        """None."""
        return []

    def merge(self, columns: Sequence[str]) -> str:
        """Never called."""
        raise AssertionError(f"there is nothing to merge in {columns}")


@dataclass(frozen=True, slots=True)
class Median(_InOneGo):
    """The middle value, or the middle between the two in the middle."""

    def whole(self) -> str:
        """The aggregate over raw rows."""
        # A negative fraction counts from the greatest value.
        x = as_type(self.over, DOUBLE)
        low, high = (f"quantile_disc({self.each}{x}, {f})" for f in ("0.5", "-0.5"))
        return as_type(_between(low, high, _double(0.5)), DOUBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile(_InOneGo):
    """percentile, percentile_cont and percentile_disc: Spark's own steps over the sorted values."""

    fractions: tuple[float, ...]
    is_list: bool
    discrete: bool
    descending: bool

    def whole(self) -> str:
        """The aggregate over raw rows."""
        x = as_type(self.over, DOUBLE)
        order = "DESC" if self.descending else "ASC"
        values = f"list_sort(list({self.each}{x}) FILTER (WHERE {x} IS NOT NULL), '{order}')"
        steps = [self._there(f) if self.discrete else self._between(f) for f in self.fractions]
        value = f"[{', '.join(steps)}]" if self.is_list else steps[0]
        return bound(values, VALUES, f"CASE WHEN {VALUES} IS NULL THEN NULL ELSE {value} END")

    @staticmethod
    def _there(fraction: float) -> str:
        at = f"CAST(ceil(len({VALUES}) * {_double(fraction)}) AS BIGINT)"
        return f"{VALUES}[greatest(1, {at})]"

    @staticmethod
    def _between(fraction: float) -> str:
        at = f"((len({VALUES}) - 1) * {_double(fraction)})"
        low, high = (f"{VALUES}[CAST({step}({at}) AS BIGINT) + 1]" for step in ("floor", "ceil"))
        return _between(low, high, f"({at} - floor({at}))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate(_InOneGo):
    """percentile_approx: a value that is there; here it is the exact one."""

    fractions: tuple[float, ...]
    is_list: bool
    type: SqlType

    def whole(self) -> str:
        """The aggregate over raw rows."""
        steps = [_double(fraction) for fraction in self.fractions]
        at = f"[{', '.join(steps)}]" if self.is_list else steps[0]
        return typed(f"quantile_disc({self.each}{self.over}, {at})", self.type)


def _between(low: str, high: str, share: str) -> str:
    """As Spark does it, which for infinities decides the value."""
    return f"CASE WHEN {low} = {high} THEN {low} ELSE {low} + ({high} - {low}) * {share} END"


def _double(value: float) -> str:
    return f"CAST('{value!r}' AS DOUBLE)"
