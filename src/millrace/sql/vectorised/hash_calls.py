"""Spark's hashes of values: Murmur3 in 32 bits and xxHash in 64, folded from column to column.

Each function takes the hashes of the columns before and the values of a column; a null leaves the
hash as it is. Invariant: numpy computes all rows of a call at once, but for texts that are very
long, which it takes one after the other.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.keys.spark_hash import fold_hash
from millrace.sql.engine_functions import vector_function

KINDS: Final = {
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "text": "VARCHAR",
    "bytes": "BLOB",
    "wide": "DECIMAL(38,0)",
}
"""The forms of values that are hashed, and their types in the engine."""
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE: Final = 32
_TOGETHER_BYTES_MAX: Final = 1024
"""Longer texts are hashed by themselves, so that a table of all of them stays small."""
_Hashes = npt.NDArray[Any]


def _rotated(x: _Hashes, bits: int) -> _Hashes:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _mixed(h: _Hashes) -> _Hashes:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    h ^= h >> np.uint64(32)
    return h


def _with_word(h: _Hashes, word: _Hashes) -> _Hashes:
    h = h ^ (_rotated(word * _P2, 31) * _P1)
    return _rotated(h, 27) * _P1 + _P4


def _with_half(h: _Hashes, half: _Hashes) -> _Hashes:
    return _rotated(h ^ (half * _P1), 23) * _P2 + _P3


def _of_bytes(table: npt.NDArray[np.uint8], size: int, seeds: _Hashes) -> _Hashes:
    """The hashes of rows of equal size."""
    rows = len(table)
    at = 0
    if size >= _STRIPE:
        lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
        while at + _STRIPE <= size:
            words = np.ascontiguousarray(table[:, at : at + _STRIPE]).view("<u8")
            for number in range(4):
                lanes[number] = _rotated(lanes[number] + words[:, number] * _P2, 31) * _P1
            at += _STRIPE
        h = _rotated(lanes[0], 1) + _rotated(lanes[1], 7)
        h = h + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
        for lane in lanes:
            h = (h ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        h = seeds + _P5
    h = h + np.uint64(size)
    while at + 8 <= size:
        h = _with_word(h, np.ascontiguousarray(table[:, at : at + 8]).view("<u8").reshape(rows))
        at += 8
    if at + 4 <= size:
        half = np.ascontiguousarray(table[:, at : at + 4]).view("<u4").reshape(rows)
        h = _with_half(h, half.astype(np.uint64))
        at += 4
    while at < size:
        h = _rotated(h ^ (table[:, at].astype(np.uint64) * _P5), 11) * _P1
        at += 1
    return _mixed(h)


def _hashed_bytes(values: pa.Array, seeds: _Hashes) -> _Hashes:
    blobs = values.cast(pa.large_binary())
    offsets = np.frombuffer(blobs.buffers()[1], np.int64)[blobs.offset :][: len(blobs) + 1]
    data = np.frombuffer(blobs.buffers()[2] or b"", np.uint8)
    sizes = np.diff(offsets)
    out = seeds.copy()
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        step = len(chosen) if size <= _TOGETHER_BYTES_MAX else 1
        for begin in range(0, len(chosen), step):
            rows = chosen[begin : begin + step]
            table = data[offsets[rows][:, None] + np.arange(size)]
            out[rows] = _of_bytes(table.reshape(len(rows), size), int(size), seeds[rows])
    return out


def _bits(values: pa.Array) -> tuple[_Hashes, bool]:
    """Fixed-size values as 64 bits, and whether they are hashed as 32. Both zeros are one value."""
    numbers: npt.NDArray[Any] = values.fill_null(0).to_numpy(zero_copy_only=False)
    short = values.type in (pa.int32(), pa.float32())
    if pa.types.is_floating(values.type):
        numbers = np.where(numbers == 0, numbers.dtype.type(0), numbers)
        numbers = np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers)
        numbers = numbers.view(np.int32 if short else np.int64)
    bits = numbers.astype(np.int64).view(np.uint64)
    return (bits & np.uint64(0xFFFFFFFF) if short else bits), short


def xxhash64(seeds: pa.Array, values: pa.Array) -> pa.Array:
    """The hashes of a column upon those before it."""
    before = seeds.to_numpy(zero_copy_only=False).view(np.uint64)
    present = values.is_valid().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        if pa.types.is_decimal(values.type):
            shortest = [_shortest(value) for value in values.to_pylist()]
            after = _hashed_bytes(pa.array(shortest, pa.binary()), before)
        elif pa.types.is_binary(values.type) or pa.types.is_string(values.type):
            after = _hashed_bytes(values, before)
        else:
            bits, short = _bits(values)
            after = (
                _mixed(_with_half(before + _P5 + np.uint64(4), bits))
                if short
                else _mixed(_with_word(before + _P5 + np.uint64(8), bits))
            )
    return pa.array(np.where(present, after, before).view(np.int64))


def _shortest(value: Any) -> bytes | None:  # noqa: ANN401 - a decimal without a point
    """The bytes of a whole number as Java writes it."""
    if value is None:
        return None
    number = int(value)
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def murmur3(seeds: pa.Array, values: pa.Array) -> pa.Array:
    """The hashes of a column upon those before it."""
    running = seeds.to_numpy(zero_copy_only=False).copy()
    fold_hash(values, running)
    return pa.array(running, pa.int32())


for _kind, _type in KINDS.items():
    vector_function(f"spark_hash_{_kind}", ("INTEGER", _type), "INTEGER")(murmur3)
    vector_function(f"spark_xxhash64_{_kind}", ("BIGINT", _type), "BIGINT")(xxhash64)
