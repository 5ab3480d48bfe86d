"""A journal's rows as values of Kafka messages: JSON objects, or raw bytes. Pure.

A journal whose schema is one binary column `value` travels as raw bytes. Every other row is a JSON
object, a member for each column. What JSON has no word for is written so that it comes back
exactly: decimals as texts, binaries as base64, times as numbers in the unit of their type, numbers
that are not finite as "NaN", "Infinity" and "-Infinity", maps as lists of pairs.

Invariant: what `encode` wrote, `decode` gives back equal, for every schema that `check` let pass.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.errors import UnsupportedType, UserError

RAW_COLUMN: Final = "value"

Values = list[bytes | None]
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
# How much more room things take as JSON, at most: a byte of a text as \u0000, a boolean in a list.
_TEXT_GROWTH: Final = 6
_NESTED_GROWTH: Final = 64
_SCALAR_BYTES: Final = 128
_BESIDE_BYTES: Final = 1024
_SEPARATORS: Final = (",", ":")


def check(schema: pa.Schema) -> None:
    """Refuse a schema with a type that does not come back from JSON as it was."""
    for field in schema:
        bad = _unsupported(field.type)
        if bad is not None:
            raise UnsupportedType(
                f"column {field.name!r} of type {field.type} cannot travel through Kafka as JSON\n"
                f"  found: {bad}\n  to fix: cast it, or keep these rows with the embedded broker"
            )


def is_raw(schema: pa.Schema) -> bool:
    """Whether rows of this schema travel as raw bytes."""
    return schema.names == [RAW_COLUMN] and schema.field(0).type in (pa.binary(), pa.large_binary())


def check_rows(rows: pa.RecordBatch, bytes_max: int, *, where: str) -> None:
    """Refuse rows that cannot be messages: a text that is not UTF-8, or one that is too large."""
    for column in rows.columns:
        if _is_text(column.type) or pt.is_nested(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise UserError(
                    f"rows for {where} have a text that is not UTF-8\n  found: {error}\n"
                    "  to fix: give it as binary"
                ) from error
    bound = sum(_bytes_max(rows.column(at), name) for at, name in enumerate(rows.schema.names))
    if bound + _BESIDE_BYTES <= bytes_max:
        return
    largest = max((len(value) for value in encode(rows) if value is not None), default=0)
    if largest + _BESIDE_BYTES > bytes_max:
        raise UserError(
            f"a row for {where} is too large for Kafka\n  found: {largest} bytes as it travels, "
            f"limit: {bytes_max} (kafka_message_bytes_max)\n"
            "  to fix: keep large values in files, or raise it here and in the cluster"
        )


def _bytes_max(column: pa.Array, name: str) -> int:
    """Most bytes that a value of a column can take as it travels, its name with it."""
    head = _TEXT_GROWTH * len(name.encode()) + _SCALAR_BYTES
    if pt.is_nested(column.type):
        return head + _NESTED_GROWTH * int(column.nbytes)
    if _is_text(column.type) or _is_binary(column.type):
        return head + _TEXT_GROWTH * int(pc.max(pc.binary_length(column)).as_py() or 0)
    return head


def encode(rows: pa.RecordBatch) -> Values:
    """The message value of each row of the user's columns."""
    if is_raw(rows.schema):
        return list(rows.column(0).to_pylist())
    columns = [_encode(column) for column in rows.columns]
    names = [json.dumps(name) + ":" for name in rows.schema.names]
    dumps = json.JSONEncoder(ensure_ascii=False, separators=_SEPARATORS, allow_nan=False).encode
    if len(names) == 1:
        head = "{" + names[0]
        return [(head + dumps(value) + "}").encode() for value in columns[0]]
    keys = rows.schema.names
    return [dumps(dict(zip(keys, row, strict=True))).encode() for row in zip(*columns, strict=True)]


def decode(values: Sequence[bytes | None], schema: pa.Schema) -> list[pa.Array]:
    """Columns of a schema from message values; a missing value is a row of nulls."""
    if is_raw(schema):
        return [pa.array(values, schema.field(0).type)]
    text = b"[" + b",".join(b"null" if value is None else value for value in values) + b"]"
    rows = json.loads(text)
    return [_column(rows, field) for field in schema]


def _column(rows: Sequence[dict[str, Any] | None], field: pa.Field) -> pa.Array:
    name = field.name
    return _decode([None if row is None else row.get(name) for row in rows], field.type)


def _unsupported(kind: pa.DataType) -> str | None:
    """The first type within this one that cannot be sent, in words."""
    if pt.is_map(kind):
        return _unsupported(kind.key_type) or _unsupported(kind.item_type)
    if pt.is_struct(kind):
        return next(filter(None, (_unsupported(inner.type) for inner in kind)), None)
    if _is_list(kind):
        return _unsupported(kind.value_type)
    known = (
        pt.is_null,
        pt.is_boolean,
        pt.is_integer,
        pt.is_floating,
        pt.is_decimal,
        _is_text,
        _is_binary,
        _is_time,
    )
    return None if any(is_(kind) for is_ in known) else str(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pt.is_date(kind) or pt.is_time(kind) or pt.is_timestamp(kind) or _is_span(kind))


def _is_span(kind: pa.DataType) -> bool:
    return bool(pt.is_duration(kind))


def _number_of(kind: pa.DataType) -> pa.DataType:
    """The integers that a time is counted in."""
    return pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()


# Arrow to what JSON can say.


def _encode(column: pa.Array) -> list[Any]:
    kind = column.type
    if pt.is_floating(kind):
        return _encode_floats(column)
    if pt.is_decimal(kind):
        return [None if value is None else str(value) for value in column.to_pylist()]
    if _is_time(kind):
        return list(column.view(_number_of(kind)).to_pylist())
    if _is_binary(kind):
        return [
            None if value is None else base64.b64encode(value).decode("ascii")
            for value in column.to_pylist()
        ]
    if pt.is_struct(kind):
        return _encode_structs(column)
    if pt.is_map(kind):
        return _encode_maps(column)
    if _is_list(kind):
        return _spread(column, _encode)
    return list(column.to_pylist())


def _encode_floats(column: pa.Array) -> list[Any]:
    wide = column.cast(pa.float64())
    numbers: list[Any] = wide.to_pylist()
    if pc.all(pc.is_finite(wide)).as_py() is not False:
        return numbers
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [None if value is None else words.get(repr(value), value) for value in numbers]


def _encode_structs(column: pa.Array) -> list[Any]:
    names = [field.name for field in column.type]
    parts = [_encode(part) for part in column.flatten()]
    rows = zip(*parts, strict=True) if parts else ((),) * len(column)
    return [
        dict(zip(names, row, strict=True)) if there else None
        for there, row in zip(column.is_valid().to_pylist(), rows, strict=True)
    ]


def _encode_maps(column: pa.Array) -> list[Any]:
    pairs = [list(pair) for pair in zip(_encode(column.keys), _encode(column.items), strict=True)]
    return _spread(column, lambda _: pairs)


def _spread(column: pa.Array, inner: Callable[[pa.Array], list[Any]]) -> list[Any]:
    """Lists of a column, given how to encode all their values at once."""
    if pt.is_fixed_size_list(column.type):
        size = column.type.list_size
        begins = range(column.offset * size, (column.offset + len(column)) * size, max(1, size))
        bounds = [(begin, begin + size) for begin in begins] if size else [(0, 0)] * len(column)
    else:
        offsets = column.offsets.to_pylist()
        bounds = list(pairwise(offsets))
    values = inner(column.values) if not pt.is_map(column.type) else inner(column)
    return [
        values[begin:end] if there else None
        for there, (begin, end) in zip(column.is_valid().to_pylist(), bounds, strict=True)
    ]


# And back.


def _decode(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pt.is_floating(kind):
        plain = [_NOT_FINITE[value] if isinstance(value, str) else value for value in values]
        return pa.array(plain, pa.float64()).cast(kind)
    if pt.is_decimal(kind):
        return pa.array(_decimals(values), kind)
    if _is_time(kind):
        return pa.array(values, _number_of(kind)).view(kind)
    if _is_binary(kind):
        decoded = [None if value is None else base64.b64decode(value) for value in values]
        return pa.array(decoded, kind)
    if pt.is_struct(kind):
        return _decode_structs(values, kind)
    if pt.is_map(kind):
        return _decode_maps(values, kind)
    if _is_list(kind):
        return _decode_lists(values, kind)
    return pa.array(values, kind)


def _decimals(values: list[Any]) -> list[Any]:
    from decimal import Decimal  # noqa: PLC0415 - few journals have any

    return [None if value is None else Decimal(value) for value in values]


def _decode_structs(values: list[Any], kind: pa.DataType) -> pa.Array:
    gone = pa.array([value is None for value in values], pa.bool_())
    if not kind.num_fields:
        return pa.array(values, kind)
    parts = [_column(values, field) for field in kind]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=gone)


def _decode_maps(values: list[Any], kind: pa.DataType) -> pa.Array:
    pairs = [pair for value in values if value is not None for pair in value]
    keys = _decode([pair[0] for pair in pairs], kind.key_type)
    items = _decode([pair[1] for pair in pairs], kind.item_type)
    return pa.MapArray.from_arrays(_offsets(values, pa.int32()), keys, items, type=kind)


def _decode_lists(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pt.is_fixed_size_list(kind):
        empty = [None] * kind.list_size
        inner = _decode([v for value in values for v in (value or empty)], kind.value_type)
        gone = pa.array([value is None for value in values], pa.bool_())
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=gone)
    inner = _decode([v for value in values if value is not None for v in value], kind.value_type)
    if pt.is_large_list(kind):
        return pa.LargeListArray.from_arrays(_offsets(values, pa.int64()), inner, type=kind)
    return pa.ListArray.from_arrays(_offsets(values, pa.int32()), inner, type=kind)


def _offsets(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Where each list begins; none where there is no list."""
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    begins = [None if value is None else at for value, at in zip(values, ends[:-1], strict=True)]
    return pa.array([*begins, ends[-1]], kind)
