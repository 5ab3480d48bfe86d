"""Which messages a queue takes, which it holds back, and what becomes one block."""

from __future__ import annotations

import pytest
from tests.unit.reads.queue.queue_kit import TEXT, WIDE, batch_of, limits, rows_of, stretch, tags

from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.reads.queue.queue_state import Action, Intake, StoreBlock, StreamReply

A = tags(0, 1)[0]
B = tags(1, 1)[0]


def rows(number: int, tag: int = A, count: int = 1, first: int = 0) -> QueueRows:
    return QueueRows(number, batch_of(stretch(tag, 1, range(1, count + 1), first)))


def brief(actions: list[Action]) -> list[tuple[str, int, int]]:
    """Store: binding and rows. Otherwise: stream and number."""
    found = []
    for action in actions:
        match action:
            case StoreBlock(binding, batches):
                found.append(("store", binding, sum(batch.num_rows for batch in batches)))
            case StreamReply(stream, RowsAccepted(number)):
                found.append(("taken", stream, number))
            case StreamReply(stream, Flushed(cycle)):
                found.append(("flushed", stream, cycle))
            case _:
                raise AssertionError(action)
    return found


def test_small_messages_wait_to_become_one_block() -> None:
    intake = Intake(limits(block_rows_target=5), 1)
    assert brief(intake.on_message(0, rows(1, count=2), is_full=False)) == [("taken", 0, 1)]
    assert brief(intake.on_message(0, rows(2, count=2), is_full=False)) == [("taken", 0, 2)]
    assert intake.buffered_bytes > 0
    assert brief(intake.on_message(0, rows(3, count=2), is_full=False)) == [
        ("store", 0, 6),
        ("taken", 0, 3),
    ]
    assert intake.buffered_bytes == 0


def test_a_flush_stores_what_its_own_stream_sent() -> None:
    intake = Intake(limits(), 2)
    intake.on_message(0, rows(1, A, 2), is_full=False)
    intake.on_message(1, rows(1, B, 3), is_full=False)
    assert brief(intake.on_message(0, Flush(1), is_full=False)) == [
        ("store", 0, 2),
        ("flushed", 0, 1),
    ]
    assert brief(intake.on_message(1, Flush(1), is_full=False)) == [
        ("store", 1, 3),
        ("flushed", 1, 1),
    ]
    assert brief(intake.on_message(1, Flush(2), is_full=False)) == [("flushed", 1, 2)]


def test_rows_of_several_streams_share_a_block_in_the_order_they_came() -> None:
    intake = Intake(limits(), 2)
    intake.on_message(0, rows(1, A, 1, first=5), is_full=False)
    intake.on_message(1, rows(1, A + 1, 1, first=3), is_full=False)
    intake.on_message(0, rows(2, A, 1, first=6), is_full=False)
    store = intake.on_message(1, Flush(1), is_full=False)[0]
    assert isinstance(store, StoreBlock)
    assert [row.offset for row in rows_of(store.batches)] == [5, 3, 6]


def test_another_schema_of_the_same_binding_begins_another_block() -> None:
    intake = Intake(limits(), 1)
    intake.on_message(0, QueueRows(1, batch_of(stretch(A, 1, [1]), TEXT)), is_full=False)
    actions = intake.on_message(0, QueueRows(2, batch_of(stretch(A, 1, [2]), WIDE)), is_full=False)
    assert brief(actions) == [("store", 0, 1), ("taken", 0, 2)]


def test_what_waits_to_become_blocks_is_bounded_over_all_bindings() -> None:
    size = rows(1).batch.nbytes
    intake = Intake(limits(block_bytes_target=2 * size), 1)
    stored = []
    for number in range(1, 30):
        tag = tags(number, 1)[0]
        stored += brief(intake.on_message(0, rows(number, tag), is_full=False))
        assert intake.buffered_bytes <= 4 * 2 * size
    assert len([each for each in stored if each[0] == "store"]) > 15


def test_while_the_disk_is_full_rows_wait_and_what_is_behind_them() -> None:
    intake = Intake(limits(), 2)
    assert intake.on_message(0, rows(1), is_full=True) == []
    assert intake.on_message(0, Flush(1), is_full=True) == []
    assert intake.on_message(1, rows(1, B), is_full=True) == []
    assert intake.held_messages == 3
    assert intake.held_bytes == rows(1).batch.nbytes + rows(1, B).batch.nbytes

    taken = [brief(intake.on_room()) for _ in range(3)]
    assert taken == [
        [("taken", 0, 1)],
        [("store", 0, 1), ("flushed", 0, 1)],
        [("taken", 1, 1)],
    ]
    assert intake.on_room() == []
    assert intake.held_bytes == 0


def test_a_flush_with_nothing_held_before_it_is_answered_on_a_full_disk() -> None:
    intake = Intake(limits(), 2)
    intake.on_message(1, rows(1), is_full=False)
    intake.on_message(0, rows(1), is_full=True)
    assert brief(intake.on_message(1, Flush(1), is_full=True)) == [
        ("store", 0, 1),
        ("flushed", 1, 1),
    ]


def test_nobody_overtakes_rows_that_wait() -> None:
    intake = Intake(limits(), 2)
    intake.on_message(0, rows(1), is_full=True)
    assert intake.on_message(1, rows(1), is_full=False) == []
    assert brief(intake.on_room()) == [("taken", 0, 1)]
    assert brief(intake.on_room()) == [("taken", 1, 1)]


def test_a_stream_that_ends_is_answered_whether_there_is_room_or_not() -> None:
    intake = Intake(limits(), 2)
    for message in (rows(1), Flush(1), rows(2, first=1), Flush(2)):
        assert intake.on_message(0, message, is_full=True) == []
    intake.on_message(1, rows(1, B), is_full=True)
    assert brief(intake.on_end(0)) == [
        ("taken", 0, 1),
        ("store", 0, 1),
        ("flushed", 0, 1),
        ("taken", 0, 2),
        ("store", 0, 1),
        ("flushed", 0, 2),
    ]
    assert intake.held_messages == 1
    with pytest.raises(AssertionError, match="after its end"):
        intake.on_message(0, Flush(3), is_full=False)


def test_a_sender_that_keeps_to_no_window_is_noticed() -> None:
    size = rows(1).batch.nbytes
    intake = Intake(limits(held_bytes_max=2 * size), 1)
    intake.on_message(0, rows(1), is_full=True)
    intake.on_message(0, rows(2), is_full=True)
    with pytest.raises(AssertionError):
        intake.on_message(0, rows(3), is_full=True)


def test_messages_that_are_lost_or_come_twice_are_noticed() -> None:
    intake = Intake(limits(), 1)
    intake.on_message(0, rows(1), is_full=False)
    for number in (1, 3):
        with pytest.raises(AssertionError):
            intake.on_message(0, rows(number), is_full=False)


def test_a_message_without_rows_is_taken() -> None:
    intake = Intake(limits(), 1)
    empty = QueueRows(1, batch_of([]))
    assert brief(intake.on_message(0, empty, is_full=False)) == [("taken", 0, 1)]
    assert brief(intake.on_message(0, Flush(1), is_full=False)) == [("flushed", 0, 1)]
