"""Batches are sequenced as single rows are, and readers see what a plain fold says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.journal.committed_reader import CommittedReader
from tests.unit.journal.test_sequencing import Row, rows, shown

from millrace.journal.core.clocks import Clock
from millrace.journal.core.committed_rows import stamps_of
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import Flag, ProducerId
from millrace.journal.core.sequencing import RowEffect, Sequence, advance, outcome, sequence_rows

ROW = st.tuples(
    st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 12), st.sampled_from(list(Flag))
)
RUN = st.builds(
    lambda producer, begin, length, flag: [(i, producer, begin + i, flag) for i in range(length)],
    st.integers(1, 3),
    st.integers(1, 30),
    st.integers(1, 8),
    st.sampled_from(list(Flag)),
)
HISTORY = st.lists(st.one_of(ROW.map(lambda row: [row]), RUN), min_size=1, max_size=12).map(
    lambda parts: [row for part in parts for row in part]
)
CUTS = st.lists(st.integers(1, 7), min_size=1, max_size=40)


def fold(history: list[Row]) -> tuple[list[RowEffect], dict[ProducerId, Sequence], list[int]]:
    """Row by row: outcomes, where producers stand, places of decided rows that are committed."""
    states: dict[ProducerId, Sequence] = {}
    outcomes: list[RowEffect] = []
    pending: dict[ProducerId, list[int]] = {}
    visible: set[int] = set()
    for place, (_, number, clock, flag) in enumerate(history):
        producer = ProducerId(number)
        before = states.get(producer, Sequence())
        done = outcome(flag, Clock(clock), before)
        outcomes.append(done)
        states[producer] = advance(before, done, Clock(clock), Offset(place))
        if done is RowEffect.COMMITS_ITSELF:
            visible.add(place)
        elif done in (RowEffect.BEGINS, RowEffect.EXTENDS):
            pending.setdefault(producer, []).append(place)
        elif done is RowEffect.COMMITS:
            visible.update(pending.pop(producer))
        elif done is RowEffect.ROLLS_BACK:
            pending.pop(producer)
    stable = min((min(places) for places in pending.values()), default=len(history))
    return outcomes, states, sorted(place for place in visible if place < stable)


@settings(max_examples=examples(150), deadline=None)
@given(HISTORY, CUTS)
def test_batches_are_sequenced_as_rows_are(history: list[Row], cuts: list[int]) -> None:
    outcomes, states, _ = fold(history)
    batch = rows(*history)
    found: list[int] = []
    now: dict[ProducerId, Sequence] = {}
    begin = 0
    for length in [*cuts, len(history)]:
        piece = batch.slice(begin, length)
        begin += piece.num_rows
        done = sequence_rows(stamps_of(piece), now)
        now.update(done.states)
        found += done.outcomes.tolist()

    assert found == [int(each) for each in outcomes]
    assert now == states


@settings(max_examples=examples(150), deadline=None)
@given(HISTORY, CUTS)
def test_a_reader_gets_each_committed_row_once_in_order(
    history: list[Row], cuts: list[int]
) -> None:
    numbered = [(place, *row[1:]) for place, row in enumerate(history)]
    _, _, expected = fold(numbered)
    batch = rows(*numbered)
    reader = CommittedReader()
    got: list[int] = []
    begin = 0
    for length in [*cuts, len(history)]:
        piece = batch.slice(begin, length)
        begin += piece.num_rows
        got += shown(reader.on_rows(piece))

    assert got == expected
    assert np.all(np.diff(got) > 0)
