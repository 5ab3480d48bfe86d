"""The Arrow types in a shuffle's files, and how schemas are compared. Pure.

Rows of dictionary, view and run-end-encoded columns share buffers, so each partition would carry
the values of all. These columns are written decoded, and extension types as their storage. Every
field is nullable, because map outputs of files that differ in this are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.errors import UserError

_FIRST_PIECE_ROWS: Final = 4096


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as it is written: same names, encodings undone, all nullable, no metadata."""
    return pa.schema([_plain_field(field.name, field.type) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that `kind` encodes."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain_field("item", kind.value_type), kind.list_size)
    if pt.is_large_list(kind) or pt.is_large_list_view(kind):
        return pa.large_list(_plain_field("item", kind.value_type))
    if pt.is_list(kind) or pt.is_list_view(kind):
        return pa.list_(_plain_field("item", kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([_plain_field(field.name, field.type) for field in kind])
    return kind


def conform(batch: pa.RecordBatch, schema: pa.Schema, *, where: str) -> pa.RecordBatch:
    """Give the batch in `schema`, undoing encodings; any other difference is an error."""
    if batch.schema.equals(schema):
        return batch
    different = difference(plain_schema(batch.schema), schema)
    if different is not None:
        raise UserError(
            f"{where} does not have the schema of the shuffle\n  {different}\n"
            "  to fix: give all inputs the same columns and types"
        )
    columns = [_decode(column, field.type) for column, field in zip(batch, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def conform_in_pieces(
    batch: pa.RecordBatch, schema: pa.Schema, *, where: str, bytes_target: int
) -> Iterator[pa.RecordBatch]:
    """The batch in `schema`, cut so that undone encodings take about `bytes_target` at a time.

    A small dictionary can stand for any amount of bytes.
    """
    if batch.schema.equals(schema):
        yield batch
        return
    begin, rows = 0, _FIRST_PIECE_ROWS
    while begin < batch.num_rows:
        piece = conform(batch.slice(begin, rows), schema, where=where)
        begin += piece.num_rows
        rows = max(1, min(bytes_target * piece.num_rows // max(1, piece.nbytes), rows * 16))
        yield piece


def difference(schema: pa.Schema, expected: pa.Schema) -> str | None:
    """The first difference in names or types, in words; None if there is none."""
    if schema.names != expected.names:
        missing = [name for name in expected.names if name not in schema.names]
        extra = [name for name in schema.names if name not in expected.names]
        if missing or extra:
            return f"missing columns: {missing or 'none'}; columns too many: {extra or 'none'}"
        return f"columns in the order {schema.names}, expected {expected.names}"
    for field, expected_field in zip(schema, expected, strict=True):
        if field.type != expected_field.type:
            return f"column {field.name!r} is {field.type}, expected {expected_field.type}"
    return None


def _plain_field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, plain_type(kind))


def _decode(column: pa.Array, kind: pa.DataType) -> pa.Array:
    have = column.type
    if have == kind:
        return column
    if isinstance(have, pa.BaseExtensionType):
        return _decode(column.storage, kind)
    if pt.is_run_end_encoded(have):
        return _decode(pc.run_end_decode(column), kind)
    if pt.is_dictionary(have):
        return _decode(column.dictionary_decode(), kind)
    if pt.is_struct(have):
        children = [_decode(column.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if pt.is_map(have):
        return _decode_map(column, kind)
    if pt.is_fixed_size_list(have):
        width = kind.list_size
        values = column.values.slice(column.offset * width, len(column) * width)
        items = _decode(values, kind.value_type)
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=column.is_null())
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _decode_list(column, kind)
    return column.cast(kind)


def _decode_list(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_list_view(column.type) or pt.is_large_list_view(column.type):
        return _decode_list_view(column, kind)
    return rebuilt_list(column, kind, lambda items: _decode(items, kind.value_type))


def rebuilt_list(
    column: pa.Array, kind: pa.DataType, convert: Callable[[pa.Array], pa.Array]
) -> pa.Array:
    """Lists of converted values, of those between their first offset and their last."""
    ends = column.offsets
    begin, end = ends[0].as_py(), ends[-1].as_py()
    items = convert(column.values.slice(begin, end - begin))
    make = pa.LargeListArray if pt.is_large_list(kind) else pa.ListArray
    offsets = pc.subtract(ends, ends[0]).cast(pa.int64() if pt.is_large_list(kind) else pa.int32())
    return make.from_arrays(offsets, items, type=kind, mask=column.is_null())


def _decode_list_view(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """List views, which may be in any order and share values: each one's values side by side."""
    sizes = np.where(column.is_valid(), column.sizes, 0).astype(np.int64)
    offsets = np.asarray(column.offsets, np.int64)
    used = sizes > 0
    begin = int(offsets[used].min(initial=len(column.values)))
    end = int((offsets + sizes)[used].max(initial=begin))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    positions = np.repeat(offsets - begin - ends[:-1], sizes) + np.arange(ends[-1])
    items = _decode(column.values.slice(begin, end - begin), kind.value_type)
    make = pa.LargeListArray if pt.is_large_list(kind) else pa.ListArray
    wide = pa.int64() if pt.is_large_list(kind) else pa.int32()
    return make.from_arrays(
        pa.array(ends, wide), items.take(pa.array(positions)), type=kind, mask=column.is_null()
    )


def _decode_map(column: pa.MapArray, kind: pa.DataType) -> pa.Array:
    return rebuilt_map(
        column,
        kind,
        lambda keys: _decode(keys, kind.key_type),
        lambda items: _decode(items, kind.item_type),
    )


def rebuilt_map(
    column: pa.MapArray,
    kind: pa.DataType,
    convert_keys: Callable[[pa.Array], pa.Array],
    convert_items: Callable[[pa.Array], pa.Array],
) -> pa.Array:
    """Maps of converted keys and values."""
    ends = column.offsets
    begin, end = ends[0].as_py(), ends[-1].as_py()
    keys = convert_keys(column.keys.slice(begin, end - begin))
    items = convert_items(column.items.slice(begin, end - begin))
    offsets = pc.subtract(ends, ends[0])
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=column.is_null())


def check_names(schema: pa.Schema) -> None:
    """Raise if two columns have one name, which reads could not tell apart, or a zero byte."""
    zero = next((name for name in schema.names if "\0" in name), None)
    if zero is not None:
        raise UserError(
            f"{zero!r} cannot name a column\n  found: a zero byte\n  to fix: rename the column"
        )
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise UserError(
            f"several columns are named {doubled[0]!r}\n"
            f"  found: {', '.join(schema.names)}\n  to fix: rename all but one"
        )
