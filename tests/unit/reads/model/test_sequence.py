"""Rows of many tags are sequenced as the table says, one producer and tag at a time."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.journal.test_sequencing import TABLE

from millrace.errors import BrokenTransaction
from millrace.journal.core.row_format import Flag
from millrace.journal.core.sequencing import ERRORS, RowEffect
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.sequence import RowOutcomes, Sequences, Stamped

Row = tuple[int, int, int, int, Flag]
"""Tag, offset, producer, clock, flag."""

KEPT = (RowEffect.COMMITS_ITSELF, RowEffect.BEGINS, RowEffect.EXTENDS)
COMMITTING = (RowEffect.COMMITS_ITSELF, RowEffect.COMMITS, RowEffect.COMMITS_NOTHING)
P, Q = 0xA, 0xB


def stamped(rows: list[Row]) -> Stamped:
    """Rows as a slice holds them."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    tags, offsets, producers, clocks, flags = columns
    return Stamped(
        tags=np.array(tags, np.int64),
        offsets=np.array(offsets, np.int64),
        producers=np.array(producers, np.int64),
        clocks=np.array(clocks, np.uint64),
        flags=np.array(flags, np.uint8),
    )


def commits(done: RowOutcomes) -> list[tuple[int, int]]:
    """Place and begin of what committed."""
    return list(zip(done.commits.tolist(), done.begins.tolist(), strict=True))


def standing(last: int, highest: int | None, tag: int = 1) -> Sequences:
    """A producer P with this last commit, and rows up to this clock open from offset 100."""
    sequences = Sequences()
    sequences.start(tag, np.array([P]), np.array([last], np.uint64))
    if highest is not None:
        sequences.take(stamped([(tag, 100, P, highest, Flag.CONTINUE)]))
    return sequences


@pytest.mark.parametrize(("flag", "clock", "last", "highest", "expected"), TABLE)
def test_a_row_does_what_the_table_says(
    flag: Flag, clock: int, last: int, highest: int | None, expected: RowEffect
) -> None:
    sequences = standing(last, highest)
    row = stamped([(1, 107, P, clock, flag)])

    if expected in ERRORS:
        with pytest.raises(BrokenTransaction):
            sequences.take(row)
        return
    done = sequences.take(row)

    assert done.keep.tolist() == [expected in KEPT]
    begin = 100 if expected is RowEffect.COMMITS else 107
    assert commits(done) == ([(0, begin)] if expected in COMMITTING else [])
    gone = [(1, P, 100, 107, highest)] if expected is RowEffect.ROLLS_BACK else []
    assert done.rolled_back.rows() == gone
    opened = {
        RowEffect.BEGINS: 107,
        RowEffect.EXTENDS: 100,
        RowEffect.DUPLICATE: NONE if highest is None else 100,
    }.get(expected, NONE)
    assert sequences.open_begins(done.pairs).tolist() == [opened]


def test_an_error_names_the_row_and_where_its_producer_stands() -> None:
    sequences = standing(last=5, highest=15)

    with pytest.raises(BrokenTransaction) as caught:
        sequences.take(stamped([(1, 107, P, 20, Flag.OUTSIDE)]))

    said = str(caught.value)
    for part in ("producer 00000000000a", "offset 107", "clock 20", "last commit 5", "clock 15"):
        assert part in said


def test_an_ack_behind_a_duplicate_commits_nothing_and_begins_at_itself() -> None:
    sequences = standing(last=10, highest=None)

    done = sequences.take(stamped([(1, 100, P, 5, Flag.CONTINUE), (1, 101, P, 20, Flag.ACK)]))

    assert done.keep.tolist() == [False, False]
    assert commits(done) == [(1, 101)]


def test_rows_that_were_rolled_back_are_told_by_range_and_what_comes_after_counts() -> None:
    sequences = standing(last=10, highest=None)

    done = sequences.take(
        stamped(
            [
                (1, 3, P, 15, Flag.CONTINUE),
                (1, 4, P, 18, Flag.CONTINUE),
                (1, 5, P, 10, Flag.ACK),
                (1, 6, P, 25, Flag.CONTINUE),
                (1, 7, P, 30, Flag.ACK),
            ]
        )
    )

    assert done.rolled_back.rows() == [(1, P, 3, 5, 18)]
    assert commits(done) == [(4, 6)]


def test_tags_and_producers_are_told_apart() -> None:
    sequences = Sequences()

    done = sequences.take(
        stamped(
            [
                (2, 0, P, 10, Flag.CONTINUE),
                (1, 0, Q, 10, Flag.OUTSIDE),
                (2, 1, Q, 10, Flag.OUTSIDE),
                (1, 1, P, 10, Flag.OUTSIDE),
                (2, 2, P, 11, Flag.ACK),
            ]
        )
    )

    assert done.keep.tolist() == [True, True, True, True, False]
    assert sorted(commits(done)) == [(1, 0), (2, 1), (3, 1), (4, 0)]


def test_a_transaction_may_be_cut_anywhere() -> None:
    sequences = Sequences()
    first = sequences.take(stamped([(1, 7, P, 10, Flag.CONTINUE)]))
    second = sequences.take(stamped([(1, 8, P, 11, Flag.CONTINUE)]))
    third = sequences.take(stamped([(1, 9, P, 11, Flag.ACK)]))

    assert (commits(first), commits(second), commits(third)) == ([], [], [(0, 7)])
    assert sequences.open_begins(third.pairs).tolist() == [NONE]


def test_a_tag_that_was_given_up_starts_from_its_checkpoint() -> None:
    sequences = standing(last=10, highest=20)
    other = sequences.take(stamped([(2, 0, P, 5, Flag.CONTINUE)]))

    sequences.forget(1)
    sequences.start(1, np.array([P]), np.array([12], np.uint64))
    done = sequences.take(stamped([(1, 50, P, 12, Flag.OUTSIDE), (1, 51, P, 13, Flag.OUTSIDE)]))

    assert done.keep.tolist() == [False, True]
    assert sequences.open_begins(other.pairs).tolist() == [0]


def test_many_tags_are_taken_up_at_once() -> None:
    sequences = Sequences()
    sequences.start(np.array([1, 2]), np.array([P, P]), np.array([10, 20], np.uint64))

    done = sequences.take(stamped([(1, 0, P, 15, Flag.OUTSIDE), (2, 0, P, 15, Flag.OUTSIDE)]))

    assert done.keep.tolist() == [True, False]
