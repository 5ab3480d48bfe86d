"""The SQL of aggregates that keep many values: lists, sets and the count of distinct values.

Invariant: as in `aggregate_forms`. A set is sorted, so that it does not depend on how rows lie over
tasks; a list has its values in the order in which rows come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.sql.aggregates.aggregate_forms import VALUES, Part, bound, typed
from millrace.sql.terms import as_type
from millrace.sql.types import LONG, SqlType, to_arrow

_HASHES: Final = SqlType("passed on", arrow=pa.list_(pa.uint64()))
_HASHES_END: Final = "CAST('18446744073709551616' AS DOUBLE)"


def list_of(kind: SqlType) -> SqlType:
    """The type of a list; its elements are named as Spark names them."""
    return SqlType("passed on", arrow=pa.list_(pa.field("element", to_arrow(kind))))


@dataclass(frozen=True, slots=True)
class Collected:
    """collect_list: every value that is not null; in the order of `by` where there is one."""

    over: str
    type: SqlType
    by: str | None = None

    def whole(self) -> str:
        """The aggregate over raw rows."""
        order = "" if self.by is None else f" ORDER BY {self.by}"
        some = f"list({self.over}{order}) FILTER (WHERE {self.over} IS NOT NULL)"
        return f"coalesce({some}, [])"

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        return [] if self.by is not None else [(self.whole(), self.type)]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        return f"coalesce(flatten(list({columns[0]})), [])"


@dataclass(frozen=True, slots=True)
class CollectedSet:
    """collect_set: every distinct value that is not null, sorted."""

    over: str
    element: SqlType

    def whole(self) -> str:
        """The aggregate over raw rows."""
        over = f"({self.over} + 0)" if self.element.is_floating else self.over  # -0.0 becomes 0.0
        some = f"list(DISTINCT {typed(over, self.element)}) FILTER (WHERE {self.over} IS NOT NULL)"
        return f"coalesce(list_sort({some}), [])"

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        return [(self.whole(), list_of(self.element))]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        return f"coalesce(list_sort(list_distinct(flatten(list({columns[0]})))), [])"


@dataclass(frozen=True, slots=True)
class Estimated:
    """approx_count_distinct: the smallest hashes say how many there are, exactly while few.

    Of n values with hashes spread evenly over [0, 1) the k-th smallest is near k / n; the relative
    standard error is 1 / sqrt(k - 2).
    """

    over: str
    kept: int

    def whole(self) -> str:
        """The aggregate over raw rows."""
        return self._estimate(self._hashes())

    def parts(self) -> Sequence[Part]:
        """What is merged later."""
        return [(self._hashes(), _HASHES)]

    def merge(self, columns: Sequence[str]) -> str:
        """The aggregate over the parts."""
        hashes = f"list_distinct(flatten(list({columns[0]})))"
        return self._estimate(f"list_sort({hashes})[:{self.kept}]")

    def _hashes(self) -> str:
        some = f"list(DISTINCT hash({self.over})) FILTER (WHERE {self.over} IS NOT NULL)"
        return f"coalesce(list_sort({some}), [])[:{self.kept}]"

    def _estimate(self, hashes: str) -> str:
        share = f"(CAST({VALUES}[{self.kept}] AS DOUBLE) / {_HASHES_END})"
        value = f"round({self.kept - 1} / {share})"
        count = f"len({VALUES})"
        value = f"CASE WHEN {count} < {self.kept} THEN {count} ELSE {value} END"
        return as_type(f"coalesce({bound(hashes, VALUES, value)}, 0)", LONG)
