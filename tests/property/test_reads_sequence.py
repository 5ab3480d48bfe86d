"""Rows of many tags, cut anywhere, are sequenced as the table says row by row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.reads.model.test_sequence import COMMITTING, KEPT, Row, commits, stamped

from millrace.errors import BrokenTransaction
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.core.sequencing import ERRORS, RowEffect, Sequence, advance, outcome
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.sequence import Sequences

Pair = tuple[int, int]
Step = tuple[int, int, int, Flag]
"""Tag, producer, clock, flag."""

TAGS, PRODUCERS = st.integers(1, 3), st.integers(1, 3)
ANY: st.SearchStrategy[list[Step]] = st.tuples(
    TAGS, PRODUCERS, st.integers(1, 14), st.sampled_from(list(Flag))
).map(lambda row: [row])
"""A row that fits or does not."""
FLAGS = [
    [Flag.OUTSIDE],
    [Flag.ACK],
    [Flag.CONTINUE, Flag.ACK],
    [Flag.CONTINUE, Flag.CONTINUE, Flag.CONTINUE, Flag.ACK],
]


def plain_run(tag: int, producer: int, begin: int, count: int, kind: int) -> list[Step]:
    """Transactions of one kind, one after the other, with rising clocks."""
    flags = FLAGS[kind] * count
    return [(tag, producer, begin + place, flag) for place, flag in enumerate(flags)]


RUN = st.builds(
    plain_run, TAGS, PRODUCERS, st.integers(1, 30), st.integers(1, 3), st.integers(0, 3)
)
HISTORY = st.lists(st.one_of(ANY, RUN), min_size=1, max_size=14).map(
    lambda parts: [row for part in parts for row in part]
)
CUTS = st.lists(st.integers(1, 9), max_size=30)
STARTS = st.dictionaries(st.tuples(TAGS, PRODUCERS), st.integers(1, 9), max_size=3)


class Model:
    """The table, row by row."""

    def __init__(self, starts: dict[Pair, int]) -> None:
        self.states = {pair: Sequence(Clock(last)) for pair, last in starts.items()}
        self.kept: list[bool] = []
        self.points: list[tuple[Pair, int, int]] = []
        self.gone: list[tuple[int, ...]] = []

    def take(self, row: Row) -> RowEffect:
        tag, offset, producer, number, flag = row
        state = self.states.get((tag, producer), Sequence())
        clock = Clock(number)
        found = outcome(flag, clock, state)
        if found in ERRORS:
            return found
        begin = offset if state.open is None else state.open.begin
        self.kept.append(found in KEPT)
        if found in COMMITTING:
            self.points.append(((tag, producer), number, begin))
        if found is RowEffect.ROLLS_BACK:
            assert state.open is not None
            self.gone.append((tag, producer, begin, offset, state.open.highest))
        self.states[tag, producer] = advance(state, found, clock, Offset(offset))
        return found


def in_offsets(history: list[Step]) -> list[Row]:
    """Give each tag offsets of its own, with gaps."""
    following: dict[int, int] = {}
    rows = []
    for tag, producer, clock, flag in history:
        offset = following.get(tag, 0)
        following[tag] = offset + 1 + clock % 2
        rows.append((tag, offset, producer, clock, flag))
    return rows


def pieces(rows: list[Row], cuts: list[int]) -> list[list[Row]]:
    """Cut rows into parts of these lengths; the rest is one."""
    parts, begin = [], 0
    for length in [*cuts, len(rows)]:
        parts.append(rows[begin : begin + length])
        begin += length
    return [part for part in parts if part]


def by_pair(points: list[tuple[Pair, int, int]]) -> dict[Pair, list[tuple[int, int]]]:
    found: dict[Pair, list[tuple[int, int]]] = {}
    for pair, clock, begin in points:
        found.setdefault(pair, []).append((clock, begin))
    return found


def started(starts: dict[Pair, int]) -> Sequences:
    sequences = Sequences()
    for (tag, producer), last in starts.items():
        sequences.start(tag, np.array([producer]), np.array([last], np.uint64))
    return sequences


def check_piece(sequences: Sequences, model: Model, piece: list[Row]) -> bool:
    """Take a piece both ways and compare; False when it has an error and both say so."""
    kept, points, gone = len(model.kept), len(model.points), len(model.gone)
    if any(model.take(row) in ERRORS for row in piece):
        with pytest.raises(BrokenTransaction):
            sequences.take(stamped(piece))
        return False
    done = sequences.take(stamped(piece))

    assert done.keep.tolist() == model.kept[kept:]
    found: list[tuple[Any, int, int]] = [
        ((piece[place][0], piece[place][2]), piece[place][3], begin)
        for place, begin in commits(done)
    ]
    assert by_pair(found) == by_pair(model.points[points:])
    groups = [pair for pair, _, _ in found]
    together = sum(one != other for one, other in itertools.pairwise(groups))
    assert together == max(len(set(groups)) - 1, 0)
    assert sorted(done.rolled_back.rows()) == sorted(model.gone[gone:])
    tags, producers = sequences.numbering.parts(done.pairs)
    pairs = list(zip(tags.tolist(), producers.tolist(), strict=True))
    last = {(row[0], row[2]): row[1] for row in piece}
    assert dict(zip(pairs, done.nexts.tolist(), strict=True)) == {
        pair: offset + 1 for pair, offset in last.items()
    }
    assert done.tags.tolist() == [tag for tag, _ in pairs]
    opens = [model.states[pair].open for pair in pairs]
    expected = [NONE if each is None else each.begin for each in opens]
    assert sequences.open_begins(done.pairs).tolist() == expected
    return True


def compare(history: list[Step], cuts: list[int], starts: dict[Pair, int]) -> None:
    sequences, model = started(starts), Model(starts)
    for piece in pieces(in_offsets(history), cuts):
        if not check_piece(sequences, model, piece):
            return


@settings(max_examples=examples(400), deadline=None)
@given(HISTORY, CUTS, STARTS)
def test_rows_of_many_tags_are_sequenced_as_the_table_says(
    history: list[Step], cuts: list[int], starts: dict[Pair, int]
) -> None:
    compare(history, cuts, starts)


@pytest.mark.slow
@settings(max_examples=examples(3_000), deadline=None)
@given(HISTORY, CUTS, STARTS)
def test_many_histories_are_sequenced_as_the_table_says(
    history: list[Step], cuts: list[int], starts: dict[Pair, int]
) -> None:
    compare(history, cuts, starts)
