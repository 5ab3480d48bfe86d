"""Looking up many pairs at once is looking up each of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples

from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.queue.producer_pairs import NOWHERE, OffsetRanges, PairIndex, running_max_within

SMALL = st.integers(0, 12)
ANY = st.integers(-(2**63), 2**63 - 1)
PAIR = st.one_of(st.tuples(SMALL, SMALL), st.tuples(ANY, ANY))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(PAIR, unique=True, max_size=200), st.lists(PAIR, max_size=30))
def test_pairs_are_found_where_they_stand(
    pairs: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    listed = sorted(pairs)
    index = PairIndex(*(np.array([pair[n] for pair in listed], np.int64) for n in (0, 1)))
    wanted = wanted + listed[:5]
    expected = [listed.index(pair) if pair in set(listed) else NOWHERE for pair in wanted]
    for begin in range(0, max(1, len(wanted)), 7):  # few at first, then by a table
        some = wanted[begin : begin + 7]
        columns = [np.array([pair[n] for pair in some], np.int64) for n in (0, 1)]
        assert index.find(*columns).tolist() == expected[begin : begin + 7]
    everything = [np.array([pair[n] for pair in wanted], np.int64) for n in (0, 1)]
    for _ in range(3):
        assert index.find(*everything).tolist() == expected


OFFSET = st.integers(0, 30)
RANGE = st.tuples(
    st.integers(0, 3), st.integers(0, 3), OFFSET, st.integers(1, 15), st.integers(1, 99)
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(RANGE, max_size=12),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 50)), max_size=40),
)
def test_rows_lie_in_ranges_as_each_says(
    ranges: list[tuple[int, int, int, int, int]], rows: list[tuple[int, int, int]]
) -> None:
    """Also where ranges overlap, or lie within one another."""
    gone = RolledBack.of([(tag, who, begin, begin + n, top) for tag, who, begin, n, top in ranges])
    index = OffsetRanges(gone)
    tag, producer, offset = (np.array([row[n] for row in rows], np.int64) for n in range(3))
    assert index.contain(tag, producer, offset).tolist() == [
        any((t, p) == (a, b) and begin <= o < begin + n for a, b, begin, n, _ in ranges)
        for t, p, o in rows
    ]
    assert index.highest(tag, producer).tolist() == [
        max((top for a, b, _, _, top in ranges if (a, b) == (t, p)), default=0) for t, p, _ in rows
    ]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6), max_size=6))
def test_a_running_maximum_begins_anew_with_each_group(groups: list[list[int]]) -> None:
    group = np.array([n for n, values in enumerate(groups) for _ in values], np.int64)
    values = np.array([value for each in groups for value in each], np.uint64)
    expected = [max(each[: n + 1]) for each in groups for n in range(len(each))]
    assert running_max_within(group, values).tolist() == expected
