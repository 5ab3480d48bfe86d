"""Reads Roaring bitmaps, in which Delta and Iceberg keep the numbers of deleted rows. Pure.

The format is https://github.com/RoaringBitmap/RoaringFormatSpec, and its extension to 64 bits.
Invariant: bytes that are not such a bitmap are an error, never other numbers.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

_PLAIN: Final = 12346
_WITH_RUNS: Final = 12347
_OFFSETS_FROM: Final = 4
"""With so many containers or more, a bitmap with runs has their offsets."""
_ARRAY_MAX: Final = 4096
"""A container of more values is a bitmap of 65,536 bits."""
_BITMAP_BYTES: Final = 8192
_KEY_MAX: Final = (1 << 31) - 1

Numbers = npt.NDArray[np.int64]


class NoBitmap(ValueError):
    """The bytes are no Roaring bitmap."""


def numbers_of_64_bits(data: bytes) -> Numbers:
    """The numbers of a bitmap of 64-bit numbers, sorted: bitmaps of 32 bits, by their high bits."""
    try:
        (count,) = struct.unpack_from("<Q", data)
        offset, parts, last = 8, [np.empty(0, np.int64)], -1
        for _ in range(count):
            (key,) = struct.unpack_from("<I", data, offset)
            if not last < key <= _KEY_MAX:
                raise NoBitmap("high bits are not in order")
            values, offset = _numbers_of_32_bits(data, offset + 4)
            parts.append(values + (key << 32))
            last = key
    except (struct.error, ValueError) as error:
        raise NoBitmap(f"not a Roaring bitmap: {error}") from None
    if offset != len(data):
        raise NoBitmap(f"{len(data) - offset} bytes behind a Roaring bitmap")
    return np.concatenate(parts)


def _numbers_of_32_bits(data: bytes, offset: int) -> tuple[Numbers, int]:
    """The numbers of a bitmap that begins there, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, offset)
    offset += 4
    runs = b""
    if cookie & 0xFFFF == _WITH_RUNS:
        containers = (cookie >> 16) + 1
        flags = -(-containers // 8)
        runs = data[offset : offset + flags]
        offset += flags
    elif cookie == _PLAIN:
        (containers,) = struct.unpack_from("<I", data, offset)
        offset += 4
    else:
        raise NoBitmap(f"it begins with {cookie}")
    keys = np.frombuffer(data, "<u2", 2 * containers, offset).reshape(-1, 2).astype(np.int64)
    offset += 4 * containers
    if not runs or containers >= _OFFSETS_FROM:
        offset += 4 * containers  # Containers follow one another, so their offsets are not needed.
    parts = [np.empty(0, np.int64)]
    for number, (key, less_one) in enumerate(keys.tolist()):
        has_runs = bool(runs) and runs[number // 8] >> (number % 8) & 1 == 1
        low, offset = _container(data, offset, less_one + 1, has_runs=has_runs)
        if len(low) != less_one + 1:
            raise NoBitmap(f"a part of it has {len(low)} numbers and notes {less_one + 1}")
        parts.append(low + (key << 16))
    values = np.concatenate(parts)
    if np.any(np.diff(values) <= 0):
        raise NoBitmap("its numbers are not in order")
    return values, offset


def _container(data: bytes, offset: int, count: int, *, has_runs: bool) -> tuple[Numbers, int]:
    """The low 16 bits of some numbers, and where they end."""
    if has_runs:
        (runs,) = struct.unpack_from("<H", data, offset)
        pairs = np.frombuffer(data, "<u2", 2 * runs, offset + 2).reshape(-1, 2).astype(np.int64)
        spans = [np.arange(first, first + more + 1) for first, more in pairs.tolist()]
        return np.concatenate([np.empty(0, np.int64), *spans]), offset + 2 + 4 * runs
    if count > _ARRAY_MAX:
        words = np.frombuffer(data, np.uint8, _BITMAP_BYTES, offset)
        bits = np.unpackbits(words, bitorder="little")
        return np.flatnonzero(bits).astype(np.int64), offset + _BITMAP_BYTES
    values = np.frombuffer(data, "<u2", count, offset).astype(np.int64)
    return values, offset + 2 * count
