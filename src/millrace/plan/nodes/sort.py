"""Sorts: all rows, or the first rows of the order."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import ByRange, Placement, ToOne
from millrace.sql.typed_sql import quoted


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool
    nulls_first: bool

    @property
    def plain(self) -> bool:
        """Whether nulls are with the lowest values, as they are in Spark by default."""
        return self.nulls_first != self.descending

    def sql(self) -> str:
        """The key in DuckDB's SQL."""
        way = "DESC" if self.descending else "ASC"
        return f"{quoted(self.column)} {way} NULLS {'FIRST' if self.nulls_first else 'LAST'}"

    def __str__(self) -> str:
        text = f"{self.column} DESC" if self.descending else self.column
        if self.plain:
            return text
        return f"{text} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True, slots=True, eq=False)
class Sort(UnaryNode):
    """Rows in order; with `rows`, only that many, after those that are skipped."""

    child: Node
    order: tuple[SortKey, ...]
    rows: int | None = None
    skipped: int = 0

    @property
    def output_placement(self) -> Placement | None:
        """One task, if the child has one."""
        lies = self.child.output_placement
        return lies if isinstance(lies, ToOne) else None

    def requires_shuffle(self) -> bool:
        """All rows have one order."""
        return True

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Any filter, unless only the first rows are kept."""
        whole = self.rows is None and not self.skipped
        return ({name: name for name in columns} if whole else None,)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns and the sort keys."""
        return self, (needed | {key.column for key in self.order},)

    def describe(self) -> str:
        """The order."""
        first = "" if self.rows is None else f", first {self.rows}"
        skipped = f", without the first {self.skipped}" if self.skipped else ""
        return f"sort by {', '.join(map(str, self.order))}{first}{skipped}"


def range_of(order: tuple[SortKey, ...], partitions: int) -> ByRange | None:
    """The placement by range that follows this order; None if there is none."""
    if not order[0].plain:
        return None
    keys = []
    for key in order:
        if not key.plain or key.descending != order[0].descending:
            break
        keys.append(key.column)
    return ByRange(tuple(keys), order[0].descending, partitions)
