"""Windows and dropped duplicates in DuckDB's SQL.

DuckDB does not promise an order of rows with equal sort keys. Where that order would change the
result, the number of the row in the input is the last sort key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.plan.nodes.drop_duplicates import DropDuplicates
from millrace.plan.nodes.window import CURRENT_ROW, FIRST, LAST, Frame, Window, WindowFunction
from millrace.sql.name_checks import free_name
from millrace.sql.typed_sql import quoted

_IN_TURN: Final = ("list", "string_agg", "arg_min_null", "arg_max_null")
"""Aggregates whose value depends on the order of the rows."""


def window_query(node: Window, rows: str) -> str:
    """The query of a window over the name of its child's rows."""
    writer = _WindowWriter(node)
    functions = node.functions
    used = [*node.child.schema.names, writer.row]
    prefix = free_name("__piece", [name[: len("__piece")] for name in used], "_")
    names = {function: quoted(f"{prefix}{number}") for number, function in enumerate(functions)}
    inner = ", ".join(f"{writer.over(function)} AS {name}" for function, name in names.items())
    new = {column.name: column.sql(names) for column in node.columns}
    outer = ", ".join(
        f"{new.get(name, quoted(name))} AS {quoted(name)}" for name in node.schema.names
    )
    numbered = f"SELECT *, row_number() OVER () AS {quoted(writer.row)} FROM {rows}"
    return f"SELECT {outer} FROM (SELECT *, {inner} FROM ({numbered}))"


def drop_duplicates_query(node: DropDuplicates, rows: str) -> str:
    """The query of the first rows over the name of the child's rows."""
    names = node.child.schema.names
    row, rank = free_name("__row", names, "_"), free_name("__place", names, "_")
    numbered = f"SELECT *, row_number() OVER () AS {quoted(row)} FROM {rows}"
    keys = ", ".join(map(quoted, node.keys))
    over = f"PARTITION BY {keys} ORDER BY {quoted(row)}"
    placed = f"SELECT *, row_number() OVER ({over}) AS {quoted(rank)} FROM ({numbered})"
    listed = ", ".join(map(quoted, names))
    return f"SELECT {listed} FROM ({placed}) WHERE {quoted(rank)} = 1"


class _WindowWriter:
    """Writes window functions over the keys, the order and the frame of a node."""

    def __init__(self, node: Window) -> None:
        self._node = node
        self.row = free_name("__row", node.child.schema.names, "_")
        self._order = [key.sql() for key in node.order]
        self._in_turn = [*self._order, quoted(self.row)]

    def over(self, function: WindowFunction) -> str:
        """A function with its window."""
        match function.scope:
            case "rows":
                return f"{_called(function)} OVER ({self._window(self._in_turn)})"
            case "ranks":
                return f"{_called(function)} OVER ({self._window(self._order)})"
            case "frame":
                return self._framed(function, self._node.frame)
            case "values":
                return self._valued(function, self._node.frame)

    def _framed(self, function: WindowFunction, frame: Frame | None) -> str:
        if frame is not None and frame.unit == "ROWS":
            return f"{_called(function)} OVER ({self._window(self._in_turn, frame)})"
        # Without an order of its own a list is in the order of the rows, also where that is free.
        listing = function.function in _IN_TURN and " ORDER BY " not in function.arguments[0]
        turn = f" ORDER BY {', '.join(self._in_turn)}" if listing else ""
        return f"{_called(function, turn)} OVER ({self._window(self._order, frame)})"

    def _valued(self, function: WindowFunction, frame: Frame | None) -> str:
        if frame is not None and frame.unit == "ROWS":
            return self._framed(function, frame)
        if not self._order:
            whole = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
            return f"{_called(function)} OVER ({self._window(self._in_turn)} {whole})"
        near = _as_rows(function, frame)
        if near:
            return f"{_called(function)} OVER ({self._window(self._in_turn)} {near})"
        turn = ", ".join(self._in_turn)
        return f"{_called(function, f' ORDER BY {turn}')} OVER ({self._window(self._order, frame)})"

    def _window(self, order: Sequence[str], frame: Frame | None = None) -> str:
        keys = ", ".join(quoted(key) for key in self._node.keys)
        parts = [f"PARTITION BY {keys}"] if keys else []
        parts += [f"ORDER BY {', '.join(order)}"] if order else []
        parts += [frame.sql()] if frame is not None else []
        return " ".join(parts)


def _as_rows(function: WindowFunction, frame: Frame | None) -> str:
    """An equal frame of rows, which costs a quarter; empty if there is none."""
    end = CURRENT_ROW if frame is None else frame.end
    if function.ignore_nulls:
        return ""
    if function.function == "first_value" and (frame is None or frame.start == FIRST):
        return "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW" if end.offset >= 0 else ""
    if function.function == "last_value" and end == LAST and frame is not None:
        return "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING" if frame.start.offset <= 0 else ""
    return ""


def _called(function: WindowFunction, order: str = "") -> str:
    nulls = " IGNORE NULLS" if function.ignore_nulls else ""
    kept = f" FILTER (WHERE {function.condition})" if function.condition else ""
    return f"{function.function}({', '.join(function.arguments)}{order}{nulls}){kept}"
