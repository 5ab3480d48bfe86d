"""Which Arrow types a shuffle's files hold, and how schemas are compared. Pure.

Dictionary, view and run-end-encoded columns share buffers between rows that part ways in a
shuffle, so each partition would carry everyone's values. They are written as what they encode.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import UserError


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as it is written: same names, encodings undone, no metadata."""
    return pa.schema(
        [pa.field(f.name, plain_type(f.type), nullable=f.nullable, metadata=None) for f in schema]
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that `kind` encodes."""
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pt.is_large_list(kind) or pt.is_large_list_view(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pt.is_list(kind) or pt.is_list_view(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pt.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
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


def difference(found: pa.Schema, expected: pa.Schema) -> str | None:
    """The first difference in names or types, in words; None if there is none."""
    if found.names != expected.names:
        missing = [name for name in expected.names if name not in found.names]
        extra = [name for name in found.names if name not in expected.names]
        if missing or extra:
            return f"missing columns: {missing or 'none'}; columns too many: {extra or 'none'}"
        return f"columns in the order {found.names}, expected {expected.names}"
    for mine, theirs in zip(found, expected, strict=True):
        if mine.type != theirs.type:
            return f"column {mine.name!r} is {mine.type}, expected {theirs.type}"
    return None


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain_type(field.type), nullable=field.nullable)


def _decode(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pt.is_run_end_encoded(column.type):
        return _decode(pa.compute.run_end_decode(column), kind)
    if pt.is_dictionary(column.type):
        return _decode(column.dictionary_decode(), kind)
    return column.cast(kind)
