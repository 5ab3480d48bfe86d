"""Laws of checkpoints: merging is order-free and repeat-free, windows part the clocks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.reads.model.test_checkpoint import checkpoint

from millrace.reads.model.checkpoint import (
    Checkpoint,
    find_pairs,
    merge,
    resume_offsets,
    shown_to,
    without_done,
)
from millrace.reads.model.clock_windows import between
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.tags import tag_of

TAG: st.SearchStrategy[int] = st.builds(
    tag_of, st.sampled_from([0, 1, 2**20 - 1]), st.integers(1, 3)
)
PAIR = st.tuples(TAG, st.sampled_from([1, 2, 2**48 - 1]))
BEGIN = st.one_of(st.just(NONE), st.integers(0, 40))
CLOCK = st.one_of(st.integers(0, 20), st.integers(2**64 - 20, 2**64 - 1))
RANGE: st.SearchStrategy[tuple[int, ...]] = st.tuples(
    PAIR, st.integers(0, 9), st.integers(1, 3), CLOCK
).map(lambda parts: (*parts[0], parts[1], parts[1] + parts[2], parts[3]))
DELTA = st.tuples(
    st.dictionaries(TAG, st.integers(0, 50), max_size=5),
    st.dictionaries(PAIR, st.tuples(CLOCK, BEGIN), max_size=6),
    st.lists(RANGE, max_size=4),
)
DELTAS = st.lists(DELTA, max_size=6).map(
    lambda deltas: [checkpoint(number, *delta) for number, delta in enumerate(deltas, 1)]
)
SHOWN = st.dictionaries(PAIR, st.tuples(CLOCK, BEGIN), max_size=6)

Rows = tuple[int, list[tuple[int, ...]], list[tuple[int, ...]], list[tuple[int, ...]]]


def rows(given: Checkpoint) -> Rows:
    return given.number, given.reads.rows(), given.shown.rows(), given.rolled_back.rows()


@settings(max_examples=examples(150), deadline=None)
@given(DELTAS)
def test_merging_is_laying_the_later_over_the_earlier(deltas: list[Checkpoint]) -> None:
    reads: dict[int, tuple[int, ...]] = {}
    shown: dict[tuple[int, int], tuple[int, ...]] = {}
    for delta in deltas:
        reads |= {row[0]: row for row in delta.reads.rows()}
        shown |= {(row[0], row[1]): row for row in delta.shown.rows()}

    _, found_reads, found_shown, gone = rows(merge(*deltas))

    assert found_reads == [reads[tag] for tag in sorted(reads)]
    assert found_shown == [shown[pair] for pair in sorted(shown)]
    ranges = {row for delta in deltas for row in delta.rolled_back.rows()}
    assert {row[:3] for row in gone} == {row[:3] for row in ranges}
    assert set(gone) <= ranges
    assert len({row[:3] for row in gone}) == len(gone)


@settings(max_examples=examples(150), deadline=None)
@given(DELTAS, st.data())
def test_merging_is_order_free_repeat_free_and_associative(
    deltas: list[Checkpoint], data: st.DataObject
) -> None:
    whole = rows(merge(*deltas))

    shuffled = data.draw(st.permutations(deltas))
    again = data.draw(st.lists(st.sampled_from(deltas), max_size=3)) if deltas else []
    assert rows(merge(*shuffled, *again)) == whole
    cut = data.draw(st.integers(0, len(deltas)))
    assert rows(merge(merge(*shuffled[:cut]), merge(*shuffled[cut:]))) == whole
    assert rows(merge(merge(*deltas))) == whole


@settings(max_examples=examples(150), deadline=None)
@given(SHOWN, st.lists(PAIR, max_size=8))
def test_pairs_are_found_as_in_a_dict(
    given_shown: dict[tuple[int, int], tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    shown = merge(checkpoint(1, shown=given_shown)).shown
    tags = np.array([tag for tag, _ in wanted], np.int64)
    producers = np.array([producer for _, producer in wanted], np.int64)

    places, found = find_pairs(shown.tag, shown.producer, tags, producers)

    assert found.tolist() == [pair in given_shown for pair in wanted]
    for pair, place, is_there in zip(wanted, places.tolist(), found.tolist(), strict=True):
        if is_there:
            assert (shown.tag[place], shown.producer[place]) == pair
    clocks = [given_shown.get(pair, (0, NONE))[0] for pair in wanted]
    assert shown_to(shown, tags, producers).tolist() == clocks


@settings(max_examples=examples(100), deadline=None)
@given(DELTAS)
def test_reads_resume_where_nothing_is_missed_and_bytes_keep_all(deltas: list[Checkpoint]) -> None:
    whole = merge(*deltas)

    expected = {tag: offset for tag, offset, _ in whole.reads.rows()}
    for tag, _, _, begin, _ in whole.shown.rows():
        if begin != NONE:
            expected[tag] = min(expected.get(tag, begin), begin)
    assert resume_offsets(whole) == expected
    assert rows(Checkpoint.from_bytes(whole.number, whole.to_bytes())) == rows(whole)


def rising(steps: list[dict[tuple[int, int], int]]) -> list[Checkpoint]:
    """Whole checkpoints that show more and more."""
    clocks: dict[tuple[int, int], int] = {}
    deltas, wholes = [], [merge()]
    for number, step in enumerate(steps, 1):
        clocks |= {pair: clocks.get(pair, 0) + more for pair, more in step.items()}
        deltas.append(checkpoint(number, shown={pair: (clocks[pair], NONE) for pair in step}))
        wholes.append(merge(*deltas))
    return wholes


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.dictionaries(PAIR, st.integers(0, 4), max_size=5), min_size=1, max_size=5),
    st.data(),
)
def test_windows_of_successive_checkpoints_part_the_clocks(
    steps: list[dict[tuple[int, int], int]], data: st.DataObject
) -> None:
    wholes = rising(steps)
    cuts = data.draw(st.sets(st.integers(1, len(wholes) - 1)))
    chosen = [wholes[0], *(wholes[cut] for cut in sorted(cuts)), wholes[-1]]
    seen: list[tuple[int, int, int]] = []
    for before, now in pairwise(chosen):
        for tag, producer, above, upto in between(before, now).windows.rows():
            seen += [(tag, producer, clock) for clock in range(above + 1, upto + 1)]

    expected = [
        (tag, producer, clock)
        for tag, producer, upto, _, _ in wholes[-1].shown.rows()
        for clock in range(1, upto + 1)
    ]
    assert sorted(seen) == sorted(expected)


@settings(max_examples=examples(100), deadline=None)
@given(DELTAS)
def test_ranges_are_left_out_only_when_no_later_window_can_hold_their_rows(
    deltas: list[Checkpoint],
) -> None:
    whole = merge(*deltas)
    kept = without_done(whole)

    shown = {(row[0], row[1]): row[2] for row in whole.shown.rows()}
    expected = [row for row in whole.rolled_back.rows() if shown.get((row[0], row[1]), 0) < row[4]]
    assert kept.rolled_back.rows() == expected
    assert rows(kept)[:3] == rows(whole)[:3]
