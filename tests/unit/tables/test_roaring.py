"""Bitmaps of deleted rows, as the library of the format writes them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from millrace.tables.roaring import NoBitmap, numbers_of_64_bits

SPANS = st.tuples(st.integers(0, 1 << 20), st.integers(0, 70_000), st.integers(1, 7))


def written(numbers: set[int], *, runs: bool) -> bytes:
    """Numbers as 64-bit bitmaps: a count, then a key and a bitmap for each of the high bits."""
    keys = sorted({number >> 32 for number in numbers})
    parts = [struct.pack("<Q", len(keys))]
    for key in keys:
        bitmap = BitMap(number & 0xFFFFFFFF for number in numbers if number >> 32 == key)
        if runs:
            bitmap.run_optimize()
        parts.append(struct.pack("<I", key) + bitmap.serialize())
    return b"".join(parts)


@given(
    few=st.sets(st.integers(0, 1 << 40), max_size=20),
    spans=st.lists(SPANS, max_size=3),
    runs=st.booleans(),
)
def test_every_bitmap_is_read_as_its_numbers(
    few: set[int], spans: list[tuple[int, int, int]], *, runs: bool
) -> None:
    numbers = few.union(*(range(first, first + size, step) for first, size, step in spans))

    assert numbers_of_64_bits(written(numbers, runs=runs)).tolist() == sorted(numbers)


@pytest.mark.parametrize("damage", ["shorter", "longer", "other beginning", "fewer"])
def test_bytes_that_are_no_bitmap_are_refused(damage: str) -> None:
    data = written(set(range(0, 9000, 3)) | {1 << 33}, runs=False)
    damaged = {
        "shorter": data[:-1],
        "longer": data + b"\0",
        "other beginning": data[:12] + b"\0" + data[13:],
        "fewer": data[:22] + b"\7" + data[23:],
    }

    with pytest.raises(NoBitmap):
        numbers_of_64_bits(damaged[damage])
