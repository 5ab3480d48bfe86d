"""The bounds that an Iceberg table notes of the values in its files, in the form of `scan`.

Invariant: what cannot be read as a bound of the column's type is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.scan.file_bounds import PATH, ROWS, high_of, low_of, nulls_of
from millrace.scan.file_mapping import TableField
from millrace.tables.iceberg.iceberg_access import file_path

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

_BOUNDED: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_decimal,
    pt.is_date,
    pt.is_timestamp,
    pt.is_string,
)
_TIME_BYTES: Final = 8


def bounds_of(files: Sequence[DataFile], schema: Schema, fields: Sequence[TableField]) -> pa.Table:
    """A row for each file."""
    columns: dict[str, pa.Array] = {
        PATH: pa.array([file_path(file.file_path) for file in files], pa.string()),
        ROWS: pa.array([file.record_count for file in files], pa.int64()),
    }
    for one in fields:
        if one.id is None or not any(check(one.type) for check in _BOUNDED):
            continue
        read = _reader(schema.find_type(one.id), one.type)
        columns[low_of(one.name)] = _values(files, one, read, lambda file: file.lower_bounds)
        columns[high_of(one.name)] = _values(files, one, read, lambda file: file.upper_bounds)
        counts = [(file.null_value_counts or {}).get(one.id) for file in files]
        columns[nulls_of(one.name)] = pa.array(counts, pa.int64())
    return pa.table(columns)


def _values(
    files: Sequence[DataFile],
    column: TableField,
    read: Callable[[bytes], Any],
    bounds: Callable[[DataFile], Mapping[int, bytes] | None],
) -> pa.Array:
    assert column.id is not None, "columns of a table have ids"
    raw = [(bounds(file) or {}).get(column.id) for file in files]
    values = [None if value is None else read(value) for value in raw]
    kind = column.type
    if pt.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pt.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, kind)


def _reader(kind: Any, arrow: pa.DataType) -> Callable[[bytes], Any]:  # noqa: ANN401 - of pyiceberg
    from pyiceberg.conversions import from_bytes  # noqa: PLC0415 - an extra brings it

    def read(data: bytes) -> Any:  # noqa: ANN401 - of any type
        if pt.is_timestamp(arrow) and len(data) != _TIME_BYTES:
            return None  # A date, from before the column was promoted.
        try:
            value: object = from_bytes(kind, data)
        except Exception:  # noqa: BLE001 - whatever a writer noted
            return None
        return None if isinstance(value, float) and math.isnan(value) else value

    return read
