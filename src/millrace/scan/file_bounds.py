"""What a table's metadata says of the values in each of its files, as a table of Arrow.

A row for each file, found by `path`. A column of the table has its lowest and its highest value and
the number of its nulls; null where nothing is known. Bounds may be wider than the values, and say
nothing of NaN. Invariant: a file that is not listed, and a column without bounds, can have any
value.
"""

from __future__ import annotations

from typing import Final

PATH: Final = "path"
ROWS: Final = "rows"


def low_of(column: str) -> str:
    """The name of the lowest values of a column."""
    return f"low {column}"


def high_of(column: str) -> str:
    """The name of the highest values of a column."""
    return f"high {column}"


def nulls_of(column: str) -> str:
    """The name of the numbers of nulls of a column."""
    return f"nulls {column}"
