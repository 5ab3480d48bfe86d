"""Parquet that the query engine can read by itself, filters and columns pushed into the file.

The engine leaves out row groups by the bounds in the footer, decodes other columns only for rows
that pass, and of a struct only the fields that are used. Bounds of floats say nothing of NaN, which
is the highest value in Spark's order: the engine is told so. Invariant: what is read here has the
rows and the values that `SplitReader.batches` gives, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from millrace.scan.input_files import InputFile
from millrace.scan.parquet_footers import has_floats
from millrace.scan.source import SplitReader, check_unchanged
from millrace.scan.splits import FileSplit, MapInput


@dataclass(frozen=True, slots=True)
class FileRows:
    """A file, and the first and the last row that is read of it if not all are."""

    file: InputFile
    rows: tuple[int, int] | None
    partition: tuple[Any, ...] = ()
    """The values of the columns in the names of its folders."""


@dataclass(frozen=True, slots=True)
class NativeRows:
    """Rows of Parquet files for the engine to read: pieces in order, and columns."""

    pieces: tuple[FileRows, ...]
    columns: tuple[str, ...]
    nan_possible: bool = False
    """Whether a value can be or contain NaN."""
    partitions: tuple[pa.Field, ...] = ()
    """Columns in the names of folders, in the order of each piece's `partition`."""

    def check_unchanged(self) -> None:
        """Raise if a file is no longer the version that was listed."""
        for piece in self.pieces:
            check_unchanged(piece.file)


def native_rows(reader: SplitReader, inputs: Sequence[MapInput]) -> NativeRows | None:
    """The same rows as `reader` reads of the inputs, for the engine; None if only as Arrow."""
    schema = reader.schema
    own = {name for name in schema.names if name not in reader.partitions}
    splits = [split for part in inputs for split in part.splits]
    if not splits or not all(
        split.engine_columns and own <= split.engine_columns for split in splits
    ):
        return None
    return NativeRows(
        pieces=tuple(_pieces(splits)),
        columns=tuple(schema.names),
        nan_possible=any(has_floats(field.type) for field in schema if field.name in own),
        partitions=tuple(reader.whole.field(name) for name in reader.partitions),
    )


def _pieces(splits: Sequence[FileSplit]) -> list[FileRows]:
    """What is read of each file; neighbours together, so that a footer is read once for them.

    All rows of a file are read without row numbers: the engine takes a condition on them for one
    that leaves few rows, and orders joins by that.
    """
    pieces: list[FileRows] = []
    for split in splits:
        piece = FileRows(split.file, split.rows, split.partition)
        if pieces and _follows(pieces[-1], piece):
            before = pieces.pop()
            assert before.rows is not None, "a piece that follows has a first row"
            assert piece.rows is not None, "as above"
            is_whole = split.ends_file and before.rows[0] == 0
            rows = None if is_whole else (before.rows[0], piece.rows[1])
            piece = replace(piece, rows=rows)
        pieces.append(piece)
    return pieces


def _follows(last: FileRows, piece: FileRows) -> bool:
    if last.rows is None or piece.rows is None or last.file != piece.file:
        return False
    return last.rows[1] + 1 == piece.rows[0]
