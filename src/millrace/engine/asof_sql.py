"""As-of joins in DuckDB's SQL.

DuckDB's own as-of join may take any of several equal rows. So rows of the right side are numbered
in the order of the input, and only the last one of equal keys and values is joined. Looking one
way, it brings its other columns along. For the nearer of two rows, these are fetched by its number.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.engine.ordered_join_sql import (
    comparable,
    distance,
    equal_keys,
    free_names,
    result_columns,
    shifted_value,
)
from millrace.plan.nodes.ordered_joins import AsOfJoin
from millrace.sql.functions.dates import Span
from millrace.sql.ordered_offsets import Offset
from millrace.sql.typed_sql import quoted


def asof_query(node: AsOfJoin, left: str, right: str) -> str:
    """The query of an as-of join over the names of its children's rows."""
    return _AsofWriter(node).query(left, right)


class _AsofWriter:
    """Writes the steps of an as-of join, under names that no column has."""

    def __init__(self, node: AsOfJoin) -> None:
        self._node = node
        names = ("row", "at", "before", "before_at", "after", "after_at")
        self._row, self._at, *ends = free_names(node, *names)
        self._before, self._before_at, self._after, self._after_at = ends
        self._left_at = comparable(f"l.{quoted(node.left_on)}", node.on_type)

    def query(self, left: str, right: str) -> str:
        """The rows of both sides."""
        match self._node.direction:
            case "backward":
                return self._one_way(left, right, ">=")
            case "forward":
                return self._one_way(left, right, "<=")
            case "nearest":
                return self._nearest(left, right)

    def _one_way(self, left: str, right: str, compared: str) -> str:
        """The last right rows of each value, joined with all of their columns."""
        node = self._node
        other = comparable(quoted(node.right_on), node.on_type)
        theirs = dict.fromkeys(c.source for c in node.columns if c.side == "right")
        kept = [name for name in theirs if name not in node.right_keys]
        listed = [*map(quoted, node.right_keys), f"{other} AS {self._at}"]
        listed += [f"arg_max_null({quoted(c)}, {self._row}) AS {quoted(c)}" for c in kept]
        groups = ", ".join(str(number + 1) for number in range(len(node.right_keys) + 1))
        last = (
            f"SELECT {', '.join(listed)} FROM (SELECT *, row_number() OVER () AS {self._row} "
            f"FROM {right}) WHERE {other} IS NOT NULL GROUP BY {groups}"
        )
        near = self._is_near(compared)
        on = [*equal_keys(node, "l", "r"), f"{self._left_at} {compared} r.{self._at}"]
        kind, where = (
            ("LEFT ", "") if node.how == "left" else ("", f" WHERE {near}" if near else "")
        )
        return (
            f"SELECT {', '.join(self._listed(near))} FROM {left} l "
            f"ASOF {kind}JOIN ({last}) r ON {' AND '.join(on)}{where}"
        )

    def _listed(self, near: str | None) -> Iterator[str]:
        """The columns of the result; those of a right row that is too far are null."""
        for column in self._node.columns:
            value = f"{'l' if column.side == 'left' else 'r'}.{quoted(column.source)}"
            if column.side == "right" and near is not None and self._node.how == "left":
                value = f"CASE WHEN {near} THEN {value} END"
            yield f"{value} AS {quoted(column.name)}"

    def _nearest(self, left: str, right: str) -> str:
        """All right rows with their numbers, the last ones of each value, the nearest of those."""
        node = self._node
        other = comparable(quoted(node.right_on), node.on_type)
        keys = ", ".join(map(quoted, node.right_keys))
        keys = f"{keys}, " if keys else ""
        numbered = f"SELECT *, row_number() OVER () AS {self._row} FROM {right}"
        last = (
            f"SELECT {keys}{other} AS {self._at}, max({self._row}) AS {self._row} FROM numbered "
            f"WHERE {other} IS NOT NULL GROUP BY {keys}{other}"
        )
        kind = "LEFT JOIN" if node.how == "left" else "INNER JOIN"
        return (
            f"WITH numbered AS MATERIALIZED ({numbered}), last AS MATERIALIZED ({last}) "
            f"SELECT {result_columns(node, 'l', 'r')} FROM ({self._matched(left)}) l "
            f"{kind} numbered r ON l.{self._row} = r.{self._row}"
        )

    def _matched(self, left: str) -> str:
        """The left rows, each with the number of its right row."""
        rows = self._joined(left, ">=", self._before, self._before_at)
        rows = self._joined(f"({rows})", "<=", self._after, self._after_at)
        return f"SELECT *, {self._nearer()} AS {self._row} FROM ({rows}) l"

    def _joined(self, left: str, compared: str, row: str, at: str) -> str:
        """Rows with the number and the value of the nearest right row that is near enough."""
        on = [*equal_keys(self._node, "l", "r"), f"{self._left_at} {compared} r.{self._at}"]
        return (
            f"SELECT l.*, {self._near_enough(compared)} AS {row}, r.{self._at} AS {at} "
            f"FROM {left} l ASOF LEFT JOIN last r ON {' AND '.join(on)}"
        )

    def _near_enough(self, compared: str) -> str:
        near = self._is_near(compared)
        return f"r.{self._row}" if near is None else f"CASE WHEN {near} THEN r.{self._row} END"

    def _is_near(self, compared: str) -> str | None:
        """The condition that the right row is near enough; None if any is."""
        kind, tolerance = self._node.on_type, self._node.tolerance
        if tolerance is None:
            return None
        back = compared == ">="
        end = shifted_value(self._left_at, kind, _back(tolerance) if back else tolerance, low=back)
        return f"r.{self._at} {'>=' if back else '<='} {end}"

    def _nearer(self) -> str:
        """The row before if it is equal, the only one, or as near; else the row after."""
        before, after, at = self._before_at, self._after_at, self._left_at
        back = distance(at, before, self._node.on_type)
        ahead = distance(after, at, self._node.on_type)
        return (
            f"CASE WHEN {self._before} IS NULL THEN {self._after} "
            f"WHEN {self._after} IS NULL OR {before} = {at} OR {back} <= {ahead} "
            f"THEN {self._before} ELSE {self._after} END"
        )


def _back(offset: Offset) -> Offset:
    if isinstance(offset, Span):
        return Span(months=-offset.months, days=-offset.days, micros=-offset.micros)
    return -offset
