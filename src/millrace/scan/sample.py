"""Looks at some rows of a source, always the same ones, to choose range bounds by."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.config import MIB, Config
from millrace.scan import formats
from millrace.scan.source import Source
from millrace.scan.splits import FileShape, Split
from millrace.shuffle.schema import conform


def sample(source: Source, columns: Sequence[str], config: Config) -> pa.Table:
    """Key columns of rows spread evenly over the source."""
    pieces = [split for shape in source.shapes for split in _pieces(shape)]
    chosen = _evenly(pieces, config.sample_pieces_max)
    rows_each = max(1, config.sample_rows_max // max(1, len(chosen)))
    schema = pa.schema([source.schema.field(name) for name in columns])
    tables = [schema.empty_table()]
    for split in chosen:
        batches = formats.read(
            source.format, split, source.schema, source.options, 64 * MIB, columns
        )
        first = next(iter(batches), None)
        if first is not None:
            step = max(1, -(-first.num_rows // rows_each))
            rows = first.select(list(columns)).take(pa.array(range(0, first.num_rows, step)))
            where = f"input file {split.file.path}"
            tables.append(pa.Table.from_batches([conform(rows, schema, where=where)]))
    return pa.concat_tables(tables)


def _pieces(shape: FileShape) -> list[Split]:
    if shape.row_group_bytes is None:
        return [Split(file=shape.file, row_groups=None, bytes=shape.file.size)]
    return [
        Split(file=shape.file, row_groups=(number,), bytes=size)
        for number, size in enumerate(shape.row_group_bytes)
    ]


def _evenly(pieces: Sequence[Split], count: int) -> list[Split]:
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[position * len(pieces) // count] for position in range(count)]
