"""Parquet that the query engine can read by itself, filters and columns pushed into the file.

The engine leaves out row groups by the bounds in the footer, decodes other columns only for rows
that pass, and of a struct only the fields that are used. Bounds of floats say nothing of NaN, which
is the highest value in Spark's order: the engine is told so. Invariant: what is read here has the
rows and the values that `SplitReader.batches` gives, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from millrace.identity.schemas import plain_type
from millrace.scan.file_mapping import ColumnSource, DeletedRows, Filled
from millrace.scan.formats import Footer
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
    sources: tuple[ColumnSource, ...] | None = None
    """Where each column comes from that is not in `partition`; None: from the one of its name."""


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
    named = [name for name in schema.names if name in own]
    return NativeRows(
        pieces=tuple(_pieces(splits, named)),
        columns=tuple(schema.names),
        nan_possible=any(has_floats(field.type) for field in schema if field.name in own),
        partitions=tuple(reader.whole.field(name) for name in reader.partitions),
    )


def engine_columns(
    columns: Mapping[str, ColumnSource], footer: Footer, deleted: DeletedRows | None
) -> frozenset[str]:
    """Columns of a table that the engine reads of a file by itself."""
    if deleted is not None or not footer.engine_columns:
        return frozenset()
    return frozenset(
        name
        for name, source in columns.items()
        if isinstance(source, Filled)
        or (
            source.name in footer.engine_columns
            and not source.parts
            and _reads_as(plain_type(footer.schema.field(source.name).type), source.type)
        )
    )


def _reads_as(have: pa.DataType, kind: pa.DataType) -> bool:
    """Whether the engine makes the same values of a wider type as Arrow does."""
    wider = {pa.int32(): (pa.int64(),), pa.float32(): (pa.float64(),)}
    text = pt.is_large_string(have) and pt.is_string(kind)
    return bool(
        have == kind
        or kind in wider.get(have, ())
        or text
        or (pt.is_decimal(have) and pt.is_decimal(kind))
    )


def _pieces(splits: Sequence[FileSplit], columns: Sequence[str]) -> list[FileRows]:
    """What is read of each file; neighbours together, so that a footer is read once for them.

    All rows of a file are read without row numbers: the engine takes a condition on them for one
    that leaves few rows, and orders joins by that.
    """
    pieces: list[FileRows] = []
    for split in splits:
        piece = FileRows(split.file, split.rows, split.partition, _sources(split, columns))
        if pieces and _follows(pieces[-1], piece):
            before = pieces.pop()
            assert before.rows is not None, "a piece that follows has a first row"
            assert piece.rows is not None, "as above"
            is_whole = split.ends_file and before.rows[0] == 0
            rows = None if is_whole else (before.rows[0], piece.rows[1])
            piece = replace(piece, rows=rows)
        pieces.append(piece)
    return pieces


def _sources(split: FileSplit, columns: Sequence[str]) -> tuple[ColumnSource, ...] | None:
    if split.mapping is None:
        return None
    return tuple(split.mapping.columns[name] for name in columns)


def _follows(last: FileRows, piece: FileRows) -> bool:
    if last.rows is None or piece.rows is None or last.file != piece.file:
        return False
    return last.rows[1] + 1 == piece.rows[0]
