"""Parquet that the query engine can read by itself, filters and columns pushed into the file.

The engine leaves out row groups by the bounds in the footer. Bounds of floats say nothing of NaN,
which is the highest value in Spark's order, and early writers got bounds of texts wrong: such files
are read as Arrow instead. Invariant: what is read here has the rows and the values that
`SplitReader.batches` gives, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from millrace.errors import UserError
from millrace.identity.schemas import plain_type
from millrace.scan.input_files import InputFile
from millrace.scan.source import SplitReader, check_unchanged
from millrace.scan.splits import FileSplit, MapInput

_WRITERS: Final = re.compile(
    r"parquet-cpp-arrow |parquet-rs |DuckDB |Polars|parquet-mr version 1\.(1[0-9]|[2-9][0-9])\."
)
_WILD: Final = re.compile(r"[*?\[\]{}]")
_EXACT: Final = (
    pt.is_boolean,
    pt.is_signed_integer,
    pt.is_string,
    pt.is_binary,
    pt.is_date32,
    pt.is_decimal128,
)


@dataclass(frozen=True, slots=True)
class FileRows:
    """A file, and the first and the last row that is read of it if not all are."""

    file: InputFile
    rows: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class NativeRows:
    """Rows of Parquet files for the engine to read: pieces in order, and columns."""

    pieces: tuple[FileRows, ...]
    columns: tuple[str, ...]

    def check_unchanged(self) -> None:
        """Raise if a file is no longer the version that was listed."""
        for piece in self.pieces:
            check_unchanged(piece.file)


def native_rows(reader: SplitReader, inputs: Sequence[MapInput]) -> NativeRows | None:
    """The same rows as `reader` reads of the inputs, for the engine; None if only as Arrow."""
    if reader.format != "parquet" or not all(_exact(field.type) for field in reader.schema):
        return None
    pieces = []
    for split in (split for part in inputs for split in part.splits):
        piece = _piece(split, reader.schema)
        if piece is None:
            return None
        pieces.append(piece)
    return NativeRows(tuple(pieces), tuple(reader.schema.names)) if pieces else None


def _exact(kind: pa.DataType) -> bool:
    """Whether a type is the same for both, and the bounds of its values are true ones."""
    if pt.is_timestamp(kind):
        return bool(kind.unit == "us")
    return any(check(kind) for check in _EXACT)


def _piece(split: FileSplit, expected: pa.Schema) -> FileRows | None:
    if _WILD.search(split.file.path):
        return None
    try:
        with pq.ParquetFile(split.file.path) as file:
            meta, schema = file.metadata, file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
        raise UserError(
            f"input file {split.file.path} cannot be read as parquet: {text}\n"
            "  to fix: repair or leave out the file"
        ) from error
    if not _WRITERS.match(meta.created_by or "") or _alike(schema.names):
        return None
    if any(_decoded(schema.field(field.name).type) != field.type for field in expected):
        return None
    return FileRows(split.file, _rows(meta, split.row_groups))


def _decoded(kind: pa.DataType) -> pa.DataType:
    """The type of a column whose writer noted how it held it in memory, which files do not show."""
    if pt.is_dictionary(kind) or pt.is_string_view(kind) or pt.is_binary_view(kind):
        return plain_type(kind)
    return kind


def _rows(meta: pq.FileMetaData, groups: tuple[int, ...] | None) -> tuple[int, int] | None:
    """The rows of row groups that follow one another."""
    if groups is None:
        return None
    sizes = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
    assert list(groups) == list(range(groups[0], groups[-1] + 1)), "a split is one piece of a file"
    return sum(sizes[: groups[0]]), sum(sizes[: groups[-1] + 1]) - 1


def _alike(names: Sequence[str]) -> bool:
    """Whether names differ only in the case of letters, which the engine does not tell apart."""
    return len({name.lower() for name in names}) < len(names)
