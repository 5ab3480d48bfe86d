"""Looks at some rows of a source, always the same ones, to choose range bounds by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from millrace.config import MIB, Config
from millrace.scan.source import FileSource
from millrace.scan.splits import FileShape, FileSplit, MapInput

_PIECE_BYTES: Final = 64 * MIB


def sample(source: FileSource, columns: Sequence[str], config: Config) -> pa.Table:
    """Key columns of rows spread evenly over the source."""
    pieces = [split for shape in source.shapes for split in _pieces(shape)]
    chosen = _evenly(pieces, config.sample_pieces_max)
    rows_each = max(1, config.sample_rows_max // max(1, len(chosen)))
    reader = source.reader(columns)
    tables = [reader.schema.empty_table()]
    for split in chosen:
        first = next(reader.batches(MapInput((split,)), _PIECE_BYTES), None)
        if first is not None:
            tables.append(_every(pa.Table.from_batches([first]), rows_each))
    return pa.concat_tables(tables)


def _every(rows: pa.Table, count: int) -> pa.Table:
    """At most so many rows, evenly spread."""
    step = max(1, -(-rows.num_rows // count))
    return rows.take(pa.array(range(0, rows.num_rows, step), pa.int64()))


def _pieces(shape: FileShape) -> list[FileSplit]:
    if shape.row_group_bytes is None:
        return [shape.split(None, shape.file.size)]
    return [shape.split((number,), size) for number, size in enumerate(shape.row_group_bytes)]


def _evenly(pieces: Sequence[FileSplit], count: int) -> list[FileSplit]:
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[position * len(pieces) // count] for position in range(count)]
