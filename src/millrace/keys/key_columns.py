"""Key columns as the few physical forms that are hashed and compared.

Every atomic Arrow type becomes `Fixed`, `Bytes` or `Wide`; a type that would lose something is
refused here, with its column. Invariant: equal values have equal forms in every encoding,
unit or chunking, so equal keys go to one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import UnsupportedType, UserError
from millrace.text import did_you_mean, listed

Rows = Any
"""A pyarrow.Table or pyarrow.RecordBatch."""

CHUNK_ROWS: Final = 8192
"""Rows worked on at a time where numpy does the work, so that its temporaries stay in cache."""

LONG_DIGITS_MAX: Final = 18
"""Up to this declared precision Spark hashes a decimal as a long."""


@dataclass(frozen=True, slots=True)
class Validity:
    """Which rows are not null: bits of an Arrow bitmap from bit `start` on."""

    bitmap: npt.NDArray[np.uint8]
    start: int

    def mask(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether each of the rows `begin` to `end` has a value."""
        first, last = self.start + begin, self.start + end
        bits = np.unpackbits(self.bitmap[first // 8 : (last + 7) // 8], bitorder="little")
        return bits[first % 8 : first % 8 + end - begin].view(np.bool_)

    def skip(self, rows: int) -> Validity:
        """Leave out the first `rows`."""
        return Validity(self.bitmap, self.start + rows)


@dataclass(frozen=True, slots=True)
class Fixed:
    """int32, int64, float32 or float64 values; undefined where null."""

    values: npt.NDArray[Any]
    validity: Validity | None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Row i is `data[offsets[i]:offsets[i + 1]]`; offsets are int32 or int64."""

    offsets: npt.NDArray[Any]
    data: npt.NDArray[np.uint8]
    validity: Validity | None

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class Wide:
    """Decimals of over 18 digits: each row its 64-bit limbs, lowest first, two's complement."""

    limbs: npt.NDArray[np.uint64]
    validity: Validity | None

    def __len__(self) -> int:
        return len(self.limbs)

    def shortest_bytes(self, begin: int, end: int) -> Bytes:
        """Rows `begin` to `end` as Java's BigInteger.toByteArray gives them: no idle sign bytes."""
        limbs = np.ascontiguousarray(self.limbs[begin:end], "<u8")
        width = limbs.shape[1] * 8
        big_endian = limbs.view(np.uint8).reshape(len(limbs), width)[:, ::-1]
        sign = (big_endian[:, :1] >> 7) * np.uint8(255)
        idle = (big_endian[:, :-1] == sign) & ((big_endian[:, 1:] ^ sign) < 128)  # noqa: PLR2004
        lead = np.logical_and.accumulate(idle, axis=1).sum(axis=1)
        offsets = np.zeros(len(limbs) + 1, np.int64)
        np.cumsum(width - lead, out=offsets[1:])
        kept = big_endian[np.arange(width) >= lead[:, None]]
        return Bytes(offsets, kept, self.validity.skip(begin) if self.validity else None)


Column = Fixed | Bytes | Wide


def key_names(schema: pa.Schema, keys: str | Sequence[str]) -> tuple[str, ...]:
    """Check that `keys` are columns of `schema` that can be hashed and compared."""
    names = as_names(keys)
    for name in names:
        positions = schema.get_all_field_indices(name)
        if not positions:
            raise UserError(
                f"there is no key column {name!r}\n  found: columns {listed(schema.names)}\n"
                f"  to fix: {did_you_mean(str(name), schema.names, 'use one of these')}"
            )
        if len(positions) > 1:
            raise UserError(
                f"key column {name!r} is ambiguous\n  {len(positions)} columns have that name"
                "\n  to fix: rename all but one"
            )
        _check_type(name, schema.field(positions[0]).type)
    return names


def as_names(keys: str | Sequence[str]) -> tuple[str, ...]:
    """One key or several, as a tuple."""
    given: object = keys
    names: tuple[object, ...] = (given,)
    if not isinstance(given, str) and isinstance(given, Iterable):
        names = tuple(given)
    if not names:
        raise UserError("no key columns given\n  to fix: name at least one")
    for name in names:
        if not isinstance(name, str):
            raise UserError(
                f"a key column is not named by text\n  found: {name!r}\n"
                "  to fix: give column names as strings"
            )
    return tuple(map(str, names))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values inside a dictionary or run-end encoded type."""
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind


def chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """The arrays a column of a table or batch consists of."""
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def decoded(array: pa.Array) -> pa.Array:
    """The same values with no dictionary or run-end encoding."""
    while array.type != plain_type(array.type):
        if pa.types.is_dictionary(array.type):
            array = take_rows(array.dictionary, array.indices)
        else:
            array = pc.run_end_decode(array)
    return array


def take_rows(array: pa.Array, indices: pa.Array) -> pa.Array:
    """The rows of `array` at `indices`, through another type where Arrow cannot take them."""
    plain = _VIEWS.get(array.type)
    if plain is not None:
        return array.cast(plain).take(indices).cast(array.type)
    return pc.take(array, indices, boundscheck=False)


def physical(name: str, array: pa.Array) -> Column:
    """Bring one array of column `name`, of a type that was checked, into its physical form."""
    array = decoded(array)
    if pa.types.is_null(array.type):
        bitmap = np.zeros((len(array) + 7) // 8, np.uint8)
        return Fixed(np.zeros(len(array), np.int32), Validity(bitmap, 0))
    array = _converted(name, array)
    kind = array.type
    if pa.types.is_decimal(kind):
        return _decimals(array)
    if pa.types.is_fixed_size_binary(kind):
        offsets = np.arange(array.offset, array.offset + len(array) + 1) * kind.byte_width
        return Bytes(offsets, _buffer(array, 1, np.uint8), _validity(array))
    if kind in _OFFSETS:
        offsets = _buffer(array, 1, _OFFSETS[kind])[array.offset : array.offset + len(array) + 1]
        if len(array) == 0:
            offsets = np.zeros(1, _OFFSETS[kind])
        return Bytes(
            np.require(offsets, requirements="A"), _buffer(array, 2, np.uint8), _validity(array)
        )
    return Fixed(_values(array, _VALUES.get(kind, np.dtype(np.int64))), _validity(array))


def float_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bits of floats as integers, where -0.0 is 0.0 and there is one NaN, as in Spark."""
    bits = values.view(np.int32 if values.dtype == np.float32 else np.int64).copy()
    with np.errstate(invalid="ignore"):
        bits[values == 0] = 0
        bits[np.isnan(values)] = (
            np.array(np.nan, values.dtype).view(bits.dtype) & _POSITIVE[bits.dtype]
        )
    return bits


_POSITIVE: Final = {
    np.dtype(np.int32): np.int32(2**31 - 1),
    np.dtype(np.int64): np.int64(2**63 - 1),
}

_OFFSETS: Final[dict[Any, np.dtype[Any]]] = {
    pa.string(): np.dtype(np.int32),
    pa.binary(): np.dtype(np.int32),
    pa.large_string(): np.dtype(np.int64),
    pa.large_binary(): np.dtype(np.int64),
}

_VALUES: Final[dict[Any, np.dtype[Any]]] = {
    pa.int32(): np.dtype(np.int32),
    pa.date32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
}

_VIEWS: Final = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}

_CONVERTED: Final = {
    pa.bool_(): pa.int32(),
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.date64(): pa.date32(),
    **_VIEWS,
}


def _check_type(name: str, declared: pa.DataType) -> None:
    kind = plain_type(declared)
    known = kind in _OFFSETS or kind in _VALUES or kind in _CONVERTED
    if not (
        known
        or pa.types.is_null(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        raise UnsupportedType(
            f"column {name!r} cannot be a key\n  its type is {declared}\n  to fix: cast it to a "
            "type Spark can hash alike: bool, signed integer, float, decimal, date, timestamp, "
            "string or binary"
        )


def _converted(name: str, array: pa.Array) -> pa.Array:
    """The same values in a type with a physical form."""
    kind = array.type
    target = _CONVERTED.get(kind, kind)
    if pa.types.is_timestamp(kind):
        target = pa.timestamp("us", kind.tz)
    try:
        return array if target == kind else array.cast(target)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"column {name!r} of type {kind} does not fit {target}, which Spark hashes"
            f"\n  found: {error}\n  to fix: round the column to {target} first"
        ) from error


def _decimals(array: pa.Array) -> Fixed | Wide:
    width = array.type.bit_width // 8
    if width <= 8:  # noqa: PLR2004 - bytes in a long
        values = _values(array, np.dtype(f"<i{width}"))
        return Fixed(values.astype(np.int64, copy=False), _validity(array))
    limbs = (
        _values(array, np.dtype((np.void, width))).view(np.uint64).reshape(len(array), width // 8)
    )
    if array.type.precision <= LONG_DIGITS_MAX:
        return Fixed(np.ascontiguousarray(limbs[:, 0]).view(np.int64), _validity(array))
    return Wide(limbs, _validity(array))


def _buffer(array: pa.Array, index: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    buffer = array.buffers()[index]
    return np.frombuffer(buffer if buffer is not None else b"", kind)


def _values(array: pa.Array, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    values = _buffer(array, 1, kind)[array.offset : array.offset + len(array)]
    return np.require(values, requirements="A")


def _validity(array: pa.Array) -> Validity | None:
    if array.null_count == 0:
        return None
    return Validity(_buffer(array, 0, np.uint8), array.offset)
