"""The columns of an Iceberg table, with the ids by which they are found in its files.

Types become what Spark makes of them. Invariant: a type whose values Spark or the engine cannot
have is refused, with the column's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.scan.file_mapping import TableField

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import MappedField, NameMapping
    from pyiceberg.types import IcebergType, NestedField

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
}
Names = Mapping[int, tuple[str, ...]]
"""Names of fields in files without ids, by their ids."""


def table_fields(schema: Schema, mapping: NameMapping | None) -> tuple[TableField, ...]:
    """The columns of a table; `mapping` names those of files without ids."""
    names: dict[int, tuple[str, ...]] = {}
    if mapping is not None:
        _note_names(mapping.root, names)
    return tuple(_field(column, names, "") for column in schema.fields)


def _note_names(mapped: Sequence[MappedField], names: dict[int, tuple[str, ...]]) -> None:
    for field in mapped:
        if field.field_id is not None:
            names[field.field_id] = tuple(field.names)
        _note_names(field.fields, names)


def _field(field: NestedField, names: Names, where: str) -> TableField:
    parts = tuple(_field(part, names, f"{where}{field.name}.") for part in _parts(field.field_type))
    return TableField(
        name=field.name,
        type=_arrow(field.field_type, parts, where + field.name),
        id=field.field_id,
        names=names.get(field.field_id, ()),
        parts=parts,
        required=field.required,
        default=field.initial_default,
    )


def _parts(kind: IcebergType) -> Sequence[NestedField]:
    from pyiceberg.types import ListType, MapType, StructType  # noqa: PLC0415 - an extra brings it

    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return (kind.key_field, kind.value_field)
        case _:
            return ()


def _arrow(kind: IcebergType, parts: Sequence[TableField], where: str) -> pa.DataType:
    from pyiceberg.types import (  # noqa: PLC0415 - an extra brings it
        DecimalType,
        FixedType,
        ListType,
        MapType,
        StructType,
    )

    match kind:
        case StructType() if parts:
            return pa.struct([(part.name, part.type) for part in parts])
        case ListType():
            return pa.list_(parts[0].type)
        case MapType():
            return pa.map_(parts[0].type, parts[1].type)
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case FixedType():
            return pa.binary()
        case _ if str(kind) in _PLAIN:
            return _PLAIN[str(kind)]
        case _:
            raise UserError(
                f"column {where!r} of an Iceberg table has a type that is not read here: {kind}\n"
                f"  found: read are {', '.join(_PLAIN)}, decimal, fixed, struct, list and map\n"
                "  to fix: read the table with Spark: ws.table() of Spark's catalog"
            )
