"""How values of rows are printed."""

from __future__ import annotations


def plain(value: object) -> str:
    """A value as text; bytes that are none are escaped."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def cell(value: object) -> str:
    """A value in a table, where null is nothing."""
    return "" if value is None else plain(value)
