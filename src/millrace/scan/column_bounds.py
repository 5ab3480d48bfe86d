"""The bounds of a column of whole numbers or days, from the footers of some files.

They are for guesses of sizes, and do not hold for files that were not looked at. Invariant: the
same files give the same bounds, so that a plan is made the same way again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.scan.file_bounds import high_of, low_of
from millrace.scan.input_files import InputFile
from millrace.scan.remote_files import random_access
from millrace.scan.source import FileSource

_FILES_MAX: Final = 8
_GROUPS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The lowest and the highest value; days are counted from 1970."""

    low: int
    high: int

    @property
    def values(self) -> int:
        """How many values there can be."""
        return self.high - self.low + 1


def column_bounds(source: FileSource, column: str) -> ColumnBounds | None:
    """The bounds of a column; None if the files do not tell."""
    if column in source.partitions:
        return _of_folders(source, column)
    kind = source.schema.field(column).type
    if source.format != "parquet" or not (pa.types.is_integer(kind) or pa.types.is_date32(kind)):
        return None
    if source.is_table:
        return None if source.bounds is None else _of_table(source.bounds, column)
    step = max(1, -(-len(source.shapes) // _FILES_MAX))
    return _of_files(tuple(shape.file for shape in source.shapes[::step]), column)


@lru_cache(maxsize=4096)
def _of_files(files: tuple[InputFile, ...], column: str) -> ColumnBounds | None:
    bounds = [of_file for file in files for of_file in _of_file(file, column)]
    if not bounds:
        return None
    return ColumnBounds(min(low for low, _ in bounds), max(high for _, high in bounds))


def _of_file(listed: InputFile, column: str) -> list[tuple[int, int]]:
    try:
        with pq.ParquetFile(random_access(listed.path, listed.options)) as file:
            meta = file.metadata
            number = file.schema_arrow.get_field_index(column)
            leaf = next(
                (n for n in range(meta.num_columns) if meta.schema.column(n).path == column), None
            )
            if number < 0 or leaf is None:
                return []
            step = max(1, -(-meta.num_row_groups // _GROUPS_MAX))
            groups = (meta.row_group(n) for n in range(0, meta.num_row_groups, step))
            known = [group.column(leaf).statistics for group in groups]
    except (pa.ArrowException, OSError):
        return []  # The task that reads the file will say what is wrong with it.
    return [
        (_number(stats.min), _number(stats.max))
        for stats in known
        if stats is not None and stats.has_min_max
    ]


def _of_table(bounds: pa.Table, column: str) -> ColumnBounds | None:
    """What the table itself says; its metadata is read anyway."""
    if low_of(column) not in bounds.column_names:
        return None
    low = pc.min(bounds[low_of(column)]).as_py()
    high = pc.max(bounds[high_of(column)]).as_py()
    if low is None or high is None:
        return None
    return ColumnBounds(_number(low), _number(high))


def _of_folders(source: FileSource, column: str) -> ColumnBounds | None:
    position = source.partitions.index(column)
    values = [shape.partition[position] for shape in source.shapes]
    numbers = [_number(value) for value in values if isinstance(value, int | date)]
    return ColumnBounds(min(numbers), max(numbers)) if numbers else None


def _number(value: int | date) -> int:
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else int(value)
