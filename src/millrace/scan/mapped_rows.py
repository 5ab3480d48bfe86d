"""Reads the rows of a table's file in the columns of the table, without those that are deleted.

Invariant: a row keeps its number in the file until deleted rows are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import UserError
from millrace.identity.schemas import conform, plain_schema, rebuilt_list, rebuilt_map
from millrace.scan import formats
from millrace.scan.file_mapping import ColumnSource, Filled, FromFile
from millrace.scan.splits import FileSplit


def mapped_batches(
    split: FileSplit, schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a split in these columns."""
    mapping = split.mapping
    assert mapping is not None, "files of a table have a mapping"
    sources = [mapping.columns[name] for name in schema.names]
    read = list(dict.fromkeys(source.name for source in sources if isinstance(source, FromFile)))
    deleted = None if mapping.deleted is None else mapping.deleted.positions()
    first = 0 if split.rows is None else split.rows[0]
    for batch in formats.read("parquet", split, schema, {}, batch_bytes, read):
        begin, first = first, first + batch.num_rows
        kept = batch.select(read)
        if deleted is not None:
            kept = _without(kept, deleted[slice(*np.searchsorted(deleted, (begin, first)))] - begin)
        if kept.num_rows:
            yield _in_table(kept, sources, schema, split.file.path)


def _without(batch: pa.RecordBatch, deleted: Any) -> pa.RecordBatch:  # noqa: ANN401 - numbers
    """The batch without the rows at these positions."""
    if not len(deleted):
        return batch
    kept = np.ones(batch.num_rows, np.bool_)
    kept[deleted] = False
    return batch.take(pa.array(np.flatnonzero(kept))) if batch.num_columns else _rows(kept.sum())


def _rows(count: int) -> pa.RecordBatch:
    """Rows without columns."""
    return pa.RecordBatch.from_struct_array(pa.nulls(int(count), pa.struct([])))


def _in_table(
    batch: pa.RecordBatch, sources: list[ColumnSource], schema: pa.Schema, path: str
) -> pa.RecordBatch:
    if not sources:
        return batch
    plain = conform(batch, plain_schema(batch.schema), where=f"input file {path}")
    try:
        columns = [
            pa.repeat(pa.scalar(source.value, source.type), batch.num_rows)
            if isinstance(source, Filled)
            else _taken(plain.column(source.name), source)
            for source in sources
        ]
    except pa.ArrowException as error:
        raise UserError(
            f"input file {path} has a value that its table cannot have: {error}\n"
            "  to fix: rewrite the file, or read the table with Spark"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _taken(column: pa.Array, source: FromFile) -> pa.Array:
    """A column of a file in the form that the table has it in; its encodings are undone."""
    kind, parts = source.type, source.parts
    if column.type == kind and not parts:
        return column
    if not parts:
        return _cast(column, kind)
    if pt.is_struct(kind):
        fields = [_field(column, part) for part in parts]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if pt.is_map(kind):
        key, value = parts
        return rebuilt_map(column, kind, lambda k: _part(k, key), lambda v: _part(v, value))
    if pt.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return rebuilt_list(column, kind, lambda items: _part(items, parts[0]))


def _field(column: pa.StructArray, source: ColumnSource) -> pa.Array:
    if isinstance(source, Filled):
        return pa.repeat(pa.scalar(source.value, source.type), len(column))
    return _taken(column.field(source.name), source)


def _part(column: pa.Array, source: ColumnSource) -> pa.Array:
    assert isinstance(source, FromFile), "lists and maps have their parts"
    return _taken(column, source)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values in a wider type. A time without a zone in a file is one of UTC."""
    if pt.is_timestamp(kind) and pt.is_timestamp(column.type):
        return column.cast(pa.timestamp(column.type.unit, kind.tz)).cast(kind)
    return column.cast(kind)
