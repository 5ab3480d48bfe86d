"""The sequencing table, row by row, and what it means for readers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.journal.committed_reader import CommittedReader, committed_rows

from millrace.journal.core.clocks import BEFORE_ALL, Clock, clock_at, next_clock, unix_ns_of
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import Flag, ProducerId, stored_schema
from millrace.journal.core.sequencing import (
    OpenTransaction,
    RowEffect,
    RowStamps,
    Sequence,
    advance,
    outcome,
    sequence_rows,
)

USER = pa.schema([("x", pa.int64())])
TABLE = [
    (Flag.OUTSIDE, 10, 5, None, RowEffect.COMMITS_ITSELF),
    (Flag.OUTSIDE, 10, 10, None, RowEffect.DUPLICATE),
    (Flag.OUTSIDE, 5, 10, None, RowEffect.DUPLICATE),
    (Flag.OUTSIDE, 5, 5, 15, RowEffect.DUPLICATE),
    (Flag.OUTSIDE, 12, 5, 15, RowEffect.DUPLICATE),
    (Flag.OUTSIDE, 20, 5, 15, RowEffect.INTERRUPTS),
    (Flag.CONTINUE, 10, 5, None, RowEffect.BEGINS),
    (Flag.CONTINUE, 20, 5, 10, RowEffect.EXTENDS),
    (Flag.CONTINUE, 8, 5, 10, RowEffect.DUPLICATE),
    (Flag.CONTINUE, 10, 5, 10, RowEffect.DUPLICATE),
    (Flag.CONTINUE, 10, 10, None, RowEffect.DUPLICATE),
    (Flag.ACK, 20, 5, 20, RowEffect.COMMITS),
    (Flag.ACK, 30, 5, 20, RowEffect.COMMITS),
    (Flag.ACK, 20, 10, None, RowEffect.COMMITS_NOTHING),
    (Flag.ACK, 10, 10, None, RowEffect.DUPLICATE),
    (Flag.ACK, 3, 10, None, RowEffect.DUPLICATE),
    (Flag.ACK, 10, 10, 20, RowEffect.ROLLS_BACK),
    (Flag.ACK, 3, 10, 20, RowEffect.ROLLS_BACK),
    (Flag.ACK, 15, 5, 20, RowEffect.COMMITS_HALF),
]

Row = tuple[int, int, int, Flag]
"""Value, producer, clock, flag."""


def rows(*given: Row, first: int = 0) -> pa.RecordBatch:
    """Stored rows; an ACK has no value."""
    count = len(given)
    values, producers, clocks, flags = (list(column) for column in zip(*given, strict=True))
    shown = [None if f is Flag.ACK else v for v, f in zip(values, flags, strict=True)]
    schema = stored_schema(USER)
    columns = [
        pa.array(range(first, first + count), pa.int64()),
        pa.array(producers, pa.int64()),
        pa.array(clocks, pa.uint64()),
        pa.array([f.value for f in flags], pa.uint8()),
        *(pa.nulls(count, schema.field(i).type) for i in (4, 5, 6)),
        pa.array(shown, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def shown(batches: list[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch["x"].to_pylist()]


def state(last: int, pending: int | None) -> Sequence:
    return Sequence(
        Clock(last), None if pending is None else OpenTransaction(Offset(7), Clock(pending))
    )


@pytest.mark.parametrize(("flag", "clock", "last", "pending", "expected"), TABLE)
def test_the_table(
    flag: Flag, clock: int, last: int, pending: int | None, expected: RowEffect
) -> None:
    before = state(last, pending)
    stamps = RowStamps(
        offsets=np.array([9]),
        producers=np.array([1]),
        clocks=np.array([clock], np.uint64),
        flags=np.array([flag], np.uint8),
    )

    assert outcome(flag, Clock(clock), before) is expected
    found = sequence_rows(stamps, {ProducerId(1): before})
    assert found.outcomes.tolist() == [expected]
    assert found.states == {ProducerId(1): advance(before, expected, Clock(clock), Offset(9))}


def test_a_rollback_keeps_the_last_commit_and_an_empty_ack_moves_it() -> None:
    rolled = advance(state(10, 20), RowEffect.ROLLS_BACK, Clock(3), Offset(9))
    empty = advance(state(10, None), RowEffect.COMMITS_NOTHING, Clock(20), Offset(9))

    assert rolled == Sequence(Clock(10))
    assert empty == Sequence(Clock(20))


def test_rolled_back_rows_never_appear_when_their_producer_goes_on() -> None:
    given = rows(
        (10, 1, 10, Flag.OUTSIDE),
        (15, 1, 15, Flag.CONTINUE),
        (18, 1, 18, Flag.CONTINUE),
        (0, 1, 10, Flag.ACK),
        (25, 1, 25, Flag.CONTINUE),
        (0, 1, 30, Flag.ACK),
    )

    assert shown(committed_rows([given])) == [10, 25]
    assert shown(committed_rows([given.slice(i, 1) for i in range(6)])) == [10, 25]


def test_an_open_row_holds_back_what_lies_behind_it_until_its_ack() -> None:
    reader = CommittedReader()

    first = reader.on_rows(rows((1, 2, 10, Flag.CONTINUE), (2, 1, 11, Flag.OUTSIDE)))
    held_at = reader.stable_end()
    then = reader.on_rows(rows((0, 2, 12, Flag.ACK), (3, 1, 13, Flag.OUTSIDE), first=2))

    assert shown(first) == []
    assert held_at == 0
    assert shown(then) == [1, 2, 3]
    assert reader.stable_end() == 4


def test_duplicates_within_a_journal_come_out_once_and_errors_are_counted() -> None:
    reader = CommittedReader()
    given = rows(
        (1, 1, 10, Flag.OUTSIDE),
        (1, 1, 10, Flag.OUTSIDE),
        (2, 1, 20, Flag.CONTINUE),
        (9, 1, 30, Flag.OUTSIDE),
        (2, 1, 20, Flag.CONTINUE),
        (0, 1, 21, Flag.ACK),
    )

    assert shown(reader.on_rows(given)) == [1, 2]
    assert reader.errors == 1


def test_clocks_rise_whatever_the_time_does() -> None:
    noon = 1_700_000_000_000_000_000
    first = next_clock(BEFORE_ALL, noon)

    assert first == clock_at(noon)
    assert next_clock(first, noon) == first + 1
    assert next_clock(first, noon - 10**15) == first + 1
    assert next_clock(first, noon + 100) == first + 16
    assert unix_ns_of(first) == noon
