"""What a session sends and hands out: whole traces of events and answers, nobody running."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.reads.kit import SCHEMA, P, Q

from millrace.errors import DataLost, HintsUnresolved, SchemaMismatch
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.values import JournalInfo
from millrace.reads.model.checkpoint import (
    BEGINNING,
    Checkpoint,
    CheckpointNumber,
    ReadOffsets,
    RolledBack,
    ShownClock,
    merge,
)
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.session_messages import CatalogUpdate, Continue, StartReads, StopReads
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads, SliceProgress
from millrace.reads.model.tags import Tag
from millrace.reads.session.session_state import Resumed, Send, SessionState

A, B, C = 1, 2, 3
"""Journals, and their tags under the first binding."""
FRESH = Resumed(Checkpoint())


def info(number: int, *, schema: pa.Schema = SCHEMA) -> JournalInfo:
    return JournalInfo(
        id=JournalId(number), name=f"t/{number}", schema=schema, labels={}, created_at_ms=0
    )


def state(resumed: Resumed = FRESH, *, members: int = 1, **binding: Any) -> SessionState:  # noqa: ANN401
    given = {"name": "all", "prefix": "t", "key": "key", **binding}
    return SessionState(CoordinatedRead("tested", [Binding(**given)]), members, resumed)


def looked(session: SessionState, *journals: int, **starts: int) -> list[tuple[Any, ...]]:
    """The session is told of these journals; `j2=5` says where one begins."""
    offsets = {f"t/{name[1:]}": Offset(offset) for name, offset in starts.items()}
    infos = [info(number) for number in journals]
    return told(session.on_journals(infos, max(journals, default=0), offsets))


def told(sends: list[Send]) -> list[tuple[Any, ...]]:
    """What is sent, in short."""
    found: list[tuple[Any, ...]] = []
    for send in sends:
        match send.message:
            case CatalogUpdate(catalog):
                found.append((send.slice, "know", catalog.tags().tolist()))
            case StartReads(starts=starts, names=names, shown=shown):
                rows = [(tag, at, until) for tag, at, until in starts.rows()]
                assert names == tuple(f"t/{tag}" for tag, _, _ in rows)
                found.append((send.slice, "start", rows, shown.rows()))
            case StopReads(tags):
                found.append((send.slice, "stop", tags.tolist()))
            case Continue():
                found.append((send.slice, "continue"))
            case other:
                found.append((send.slice, other))
    return found


def reports(
    session: SessionState,
    tag: int,
    clock: int,
    *,
    read: int,
    producer: int = P,
    begin: int = 0,
    hints: tuple[int, ...] = (),
    now_ms: int = 0,
) -> None:
    """A slice reports a commit."""
    progress = SliceProgress(
        points=Points.of([(tag, producer, clock, begin)]),
        hints=Hints.of([(tag, producer, clock, each) for each in hints]),
        opens=Opens.of([(tag, producer, NONE)]),
        reads=Reads.of([(tag, read)]),
    )
    assert not session.misses_journals(progress)
    session.on_reported(progress, now_ms)


def shows(checkpoint: Checkpoint | None) -> tuple[int, list[tuple[int, ...]]] | None:
    """The number of a checkpoint, and tag, producer and clock of what it shows."""
    if checkpoint is None:
        return None
    return checkpoint.number, [each[:3] for each in checkpoint.shown.rows()]


def checkpoint(number: int, tag: int, clock: int, read: int, *, begin: int = NONE) -> Checkpoint:
    return Checkpoint(
        number=CheckpointNumber(number),
        reads=ReadOffsets.of([(tag, read, number)]),
        shown=ShownClock.of([(tag, P, clock, begin, number)]),
    )


# Journals.
def test_journals_are_started_once_and_each_slice_knows_all_of_them() -> None:
    session = state(members=3)

    first = looked(session, A, B, j1=5)
    again = looked(session, A, B)
    third = looked(session, A, B, C)

    assert first[:3] == [(number, "know", [A, B]) for number in range(3)]
    readers = {int(tag): reader for tag, reader in session.readers().items()}
    started = {tag: (slice_, at) for slice_, _, rows, _ in first[3:] for tag, at, _ in rows}
    assert started == {A: (readers[A], 5), B: (readers[B], 0)}
    assert again == [(number, "know", [A, B]) for number in range(3)]
    assert third[3:] == [(readers[C], "start", [(C, 0, NONE)], [])]
    assert (session.started(), session.names()) == (
        {A: 5, B: 0, C: 0},
        {n: f"t/{n}" for n in (1, 2, 3)},
    )


def test_a_journal_that_is_gone_is_stopped_where_it_was_read_and_may_come_again() -> None:
    session = state(members=2)
    looked(session, A, B)
    reader = session.readers()[Tag(A)]

    gone = looked(session, B)

    assert gone == [(0, "know", [B]), (1, "know", [B]), (reader, "stop", [A])]
    assert looked(session, B) == gone[:2]
    assert (reader, "start", [(A, 0, NONE)], []) in looked(session, A, B)


def test_what_no_checkpoint_knows_is_asked_where_it_begins() -> None:
    session = state(Resumed(checkpoint(4, A, 20, 7)))

    assert session.unread([info(A), info(B)]) == ["t/2"]


def test_a_journal_is_read_on_where_the_checkpoint_needs_it_from() -> None:
    """Where its open transaction begins, which lies before what was read; shown rows go along."""
    session = state(Resumed(merge(checkpoint(4, A, 20, 7, begin=3), checkpoint(4, B, 9, 2))))

    sent = looked(session, A, B, j1=0, j2=0)

    assert sent[1:] == [
        (0, "start", [(A, 3, NONE), (B, 2, NONE)], [(A, P, 20, 3, 4), (B, P, 9, NONE, 4)])
    ]


def test_other_columns_under_the_same_binding_are_refused() -> None:
    session = state()
    odd = info(B, schema=pa.schema([("key", pa.int64()), ("other", pa.string())]))

    with pytest.raises(SchemaMismatch, match="t/2"):
        session.on_journals([info(A), odd], B, {})


def test_a_report_that_names_a_journal_made_later_is_not_taken_yet() -> None:
    session = state()
    looked(session, A)
    later = SliceProgress(hints=Hints.of([(A, P, 20, B)]))

    assert session.misses_journals(later)
    looked(session, A, B)
    assert not session.misses_journals(later)


# Checkpoints.
def test_each_checkpoint_shows_what_is_new_and_has_the_next_number() -> None:
    session = state()
    looked(session, A, B)
    assert session.next_checkpoint() is None
    reports(session, A, 10, read=1)

    first = session.next_checkpoint()

    assert shows(first) == (1, [(A, P, 10)])
    assert first is not None
    assert first.reads.rows() == [(A, 1, 1)]
    assert session.next_checkpoint() is None
    reports(session, A, 20, read=2, begin=1)
    reports(session, B, 15, read=1, producer=Q)
    assert shows(session.next_checkpoint()) == (2, [(A, P, 20), (B, Q, 15)])
    assert session.before.shown.rows() == [(A, P, 10, NONE, 1)]
    assert session.whole.shown.rows() == [(A, P, 20, NONE, 2), (B, Q, 15, NONE, 2)]
    assert session.after_replay() == [], "nothing was replayed"


def test_a_transaction_over_two_journals_is_shown_when_both_have_committed() -> None:
    session = state()
    looked(session, A, B)
    reports(session, A, 20, read=2, hints=(B,), now_ms=5)
    assert session.next_checkpoint() is None
    assert [(each.source, each.target, each.since_ms) for each in session.unmet()] == [(A, B, 5)]
    reports(session, A, 30, read=3, producer=Q, begin=2)
    # Nobody else waits for it; of P it is said where its rows begin that are not shown.
    assert shows(session.next_checkpoint()) == (1, [(A, P, 0), (A, Q, 30)])

    reports(session, B, 20, read=2, hints=(A,))

    assert shows(session.next_checkpoint()) == (2, [(A, P, 20), (B, P, 20)])
    assert session.unmet() == ()


def test_a_journal_that_is_deleted_is_not_waited_for() -> None:
    session = state()
    looked(session, A, B)
    reports(session, A, 20, read=2, hints=(B,))
    assert session.next_checkpoint() is None

    looked(session, A)

    assert shows(session.next_checkpoint()) == (1, [(A, P, 20)])


def test_numbers_go_on_after_the_highest_that_was_ever_given_out() -> None:
    session = state(Resumed(checkpoint(4, A, 20, 7), last_number=CheckpointNumber(9)))
    looked(session, A)
    reports(session, A, 30, read=8, begin=7)

    assert shows(session.next_checkpoint()) == (10, [(A, P, 30)])


# Replay.
PREPARED = Resumed(
    checkpoint(4, A, 20, 7),
    (checkpoint(5, A, 30, 9), checkpoint(6, B, 40, 3)),
    CheckpointNumber(6),
)


def test_prepared_checkpoints_come_again_exactly_and_in_order_before_anything_new() -> None:
    session = state(PREPARED, members=2)
    sent = looked(session, A, B, C, j2=1, j3=2)
    started = {row for _, what, *rest in sent if what == "start" for row in rest[0]}
    assert started == {(A, 7, 9), (B, 1, 3), (C, 2, 2)}, "none of them beyond what was prepared"
    assert session.is_recovering

    assert session.next_checkpoint() is None, "its rows are not there again yet"
    reports(session, B, 40, read=3)
    assert session.next_checkpoint() is None, "the other one comes first"
    reports(session, A, 30, read=9, begin=7)

    assert session.next_checkpoint() is PREPARED.prepared[0]
    assert session.is_recovering
    assert session.after_replay() == []
    assert session.next_checkpoint() is PREPARED.prepared[1]
    assert bool(session.is_recovering) is False
    assert told(session.after_replay()) == [(0, "continue"), (1, "continue")]
    assert session.after_replay() == [], "once"
    assert session.next_checkpoint() is None
    reports(session, A, 50, read=10, begin=9)
    assert shows(session.next_checkpoint()) == (7, [(A, P, 50)])


def test_more_than_was_prepared_is_not_shown_with_it() -> None:
    """A slice may have read a commit beyond: its part is in the next checkpoint."""
    session = state(Resumed(Checkpoint(), (checkpoint(1, A, 30, 3),), CheckpointNumber(1)))
    looked(session, A)
    reports(session, A, 35, read=4)

    assert shows(session.next_checkpoint()) == (1, [(A, P, 30)])
    session.after_replay()
    assert shows(session.next_checkpoint()) == (2, [(A, P, 35)])


def test_journals_made_after_the_replay_have_no_bound() -> None:
    session = state(Resumed(Checkpoint(), (checkpoint(1, A, 30, 3),), CheckpointNumber(1)))
    looked(session, A)
    reports(session, A, 30, read=3)
    session.next_checkpoint()
    session.after_replay()

    assert looked(session, A, B)[1:] == [(0, "start", [(B, 0, NONE)], [])]


def test_a_checkpoint_over_a_journal_that_is_gone_is_not_replayed() -> None:
    session = state(PREPARED)
    looked(session, A)

    with pytest.raises(DataLost, match="checkpoint 6 of .* tested .*\n.*gone: ids 2\n  to fix"):
        session.check_prepared()
    looked(session, A, B)
    session.check_prepared()


def test_a_rolled_back_range_is_told_once_and_dropped_when_more_is_shown() -> None:
    session = state()
    looked(session, A)
    gone = RolledBack.of([(A, P, 1, 3, 18)])
    session.on_reported(SliceProgress(rolled_back=gone, reads=Reads.of([(A, 4)])), 0)

    first = session.next_checkpoint()

    assert first is not None
    assert (shows(first), first.rolled_back.rows()) == ((1, []), [(A, P, 1, 3, 18)])
    session.on_reported(SliceProgress(rolled_back=gone, reads=Reads.of([(A, 4)])), 0)
    assert session.next_checkpoint() is None
    reports(session, A, 30, read=5, begin=4)
    session.next_checkpoint()
    assert session.whole.rolled_back.rows() == [(A, P, 1, 3, 18)], "its window ends here"
    reports(session, A, 40, read=6, begin=5)
    session.next_checkpoint()
    assert session.whole.rolled_back.rows() == []


# What it waits for.
def stalled() -> SessionState:
    session = state(members=2)
    looked(session, A, B)
    reports(session, A, 20, read=2, hints=(B,), now_ms=100)
    return session


def test_hints_that_stay_unmet_end_the_session_and_are_named() -> None:
    session = stalled()
    session.check_stall(1_000, 500, is_wanted=True)
    session.check_stall(1_499, 500, is_wanted=True)

    with pytest.raises(HintsUnresolved, match=r"000000000011 committed clock 20 in t/1 .* t/2"):
        session.check_stall(1_500, 500, is_wanted=True)


def test_time_counts_only_while_a_checkpoint_is_wanted_and_nobody_is_pushed_back() -> None:
    session = stalled()
    session.check_stall(1_000, 500, is_wanted=True)
    session.check_stall(9_000, 500, is_wanted=False)
    session.check_stall(9_000, 500, is_wanted=True)
    session.on_pressure(1, is_pushed_back=True)
    session.check_stall(20_000, 500, is_wanted=True)
    session.on_pressure(0, is_pushed_back=True)
    session.on_pressure(1, is_pushed_back=False)
    session.check_stall(20_000, 500, is_wanted=True)
    session.on_pressure(0, is_pushed_back=False)
    session.check_stall(20_000, 500, is_wanted=True)

    with pytest.raises(HintsUnresolved, match="waited 0 s"):
        session.check_stall(20_500, 500, is_wanted=True)


def test_what_is_met_or_let_go_of_is_not_waited_for() -> None:
    session = stalled()
    assert session.release(Q) == ()
    let_go = session.release(P)

    assert [(each.producer, each.source, each.target) for each in let_go] == [(P, A, B)]
    session.check_stall(0, 0, is_wanted=True)
    assert shows(session.next_checkpoint()) == (1, [(A, P, 20)])


def test_only_the_first_of_many_waits_are_named() -> None:
    session = state()
    looked(session, A, B)
    for producer in range(1, 13):
        reports(session, A, 20, read=2, producer=producer, hints=(B,))

    with pytest.raises(HintsUnresolved, match="and 2 more\n  to fix"):
        session.check_stall(0, 0, is_wanted=True)


def test_a_session_begins_at_the_beginning() -> None:
    session = state(members=3)

    assert (session.members, session.whole.number, session.is_recovering) == (3, BEGINNING, False)
    assert session.next_checkpoint() is None
