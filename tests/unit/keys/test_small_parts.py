from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.keys import KEY_MAX, WHOLE, KeyRange, rotated_clock, tile, unsigned

SHIFTED = {1: 0x80000000, 2: 0x40000000, 3: 0xC0000000, 4: 0x20000000}


def test_the_rotated_clock_reverses_the_bits_above_the_counter() -> None:
    for time, rotated in SHIFTED.items():
        assert rotated_clock(time << 4) == rotated


def test_the_counter_of_a_clock_takes_part() -> None:
    assert rotated_clock(0b0001_0001) == 0
    assert rotated_clock(0b0000_0001) == 0x80000000


def test_clocks_rotate_alike_alone_and_in_arrays() -> None:
    clocks = [0, 1, 15, 16, 2**36 + 5, 2**60 + 123, 2**64 - 1]
    array = rotated_clock(np.array(clocks, np.uint64))
    assert array.dtype == np.uint32
    for clock, rotated in zip(clocks, array.tolist(), strict=True):
        folded = ((clock >> 4) ^ (clock & 15)) & 0xFFFFFFFF
        assert rotated == rotated_clock(clock) == int(f"{folded:032b}"[::-1], 2)


def test_tiles_cover_the_key_space_evenly_and_without_gaps() -> None:
    for members in (1, 2, 3, 7, 1000):
        ranges = tile(members)
        assert ranges[0].begin == 0
        assert ranges[-1].end == KEY_MAX
        assert all(a.end + 1 == b.begin for a, b in pairwise(ranges))
        sizes = [r.end - r.begin + 1 for r in ranges]
        assert max(sizes) - min(sizes) <= 1


def test_one_member_has_the_whole_space() -> None:
    assert tile(1) == (WHOLE,)


def test_nobody_cannot_share_the_space() -> None:
    with pytest.raises(UserError, match="cannot cut keys into 0 ranges"):
        tile(0)


def test_a_range_contains_both_its_ends() -> None:
    keys = KeyRange(10, 20)
    assert [keys.contains(key) for key in (9, 10, 20, 21)] == [False, True, True, False]
    assert keys.mask(np.array([9, 10, 20, 21], np.uint32)).tolist() == [False, True, True, False]
    assert str(KeyRange(0, KEY_MAX)) == "00000000-ffffffff"


def test_ranges_overlap_in_the_keys_they_share() -> None:
    assert KeyRange(0, 10).overlap(KeyRange(10, 20)) == KeyRange(10, 10)
    assert KeyRange(0, 10).overlap(KeyRange(11, 20)) is None
    assert WHOLE.overlap(KeyRange(3, 4)) == KeyRange(3, 4)


@pytest.mark.parametrize(("begin", "end"), [(1, 0), (-1, 5), (0, KEY_MAX + 1)])
def test_empty_and_outlying_ranges_are_refused(begin: int, end: int) -> None:
    with pytest.raises(UserError, match="key range"):
        KeyRange(begin, end)


def test_hashes_are_places_in_the_key_space() -> None:
    assert unsigned(pa.array([-1, 0, 1], pa.int32())).tolist() == [KEY_MAX, 0, 1]
