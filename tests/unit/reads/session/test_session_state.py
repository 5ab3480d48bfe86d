"""The session's state by itself: events in, actions out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.unit.reads.kit import SCHEMA, P, Q, a_read

from millrace.errors import DataLost, HintsUnresolved, SchemaMismatch, UserError
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.values import JournalInfo
from millrace.reads.model.checkpoint import (
    Checkpoint,
    CheckpointNumber,
    ReadOffsets,
    RolledBack,
    ShownClock,
    merge,
)
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.session_messages import (
    Abandon,
    CatalogUpdate,
    Continue,
    Pressure,
    Reported,
    StartReads,
    StopReads,
)
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads, SliceProgress
from millrace.reads.model.tags import tag_of
from millrace.reads.session.handed_out import Floor
from millrace.reads.session.journal_reads import Send
from millrace.reads.session.session_state import (
    FreeRows,
    HandOut,
    Resumed,
    SessionAction,
    SessionState,
    SetDiskLimit,
    StoreCheckpoint,
    StoreCommit,
)

A, B, C = JournalId(1), JournalId(2), JournalId(3)
HINT_WAIT_MS = 1_000


def journal(number: JournalId) -> JournalInfo:
    return JournalInfo(name=f"t/{number}", id=number, schema=SCHEMA, labels={}, created_at_ms=0)


def begun(*journals: JournalId, members: int = 1, resumed: Resumed | None = None) -> SessionState:
    """A session that reads these journals, each from offset 7 unless a commit says otherwise."""
    state = SessionState(a_read(), members, resumed or Resumed(Checkpoint()))
    listed = [journal(number) for number in journals]
    state.on_journals(listed, {each.name: Offset(7) for each in listed}, 0)
    state.begin()
    return state


def report(
    number: JournalId, clock: int, *, upto: int, producer: int = P, hints: Sequence[int] = ()
) -> Reported:
    """A slice has a producer's commit in its queue, and maybe the journals that it names."""
    tag = tag_of(0, number)
    rows: list[tuple[int, ...]] = [(tag, producer, clock, hint) for hint in hints]
    return Reported(
        SliceProgress(
            points=Points.of([(tag, producer, clock, 0)]),
            reads=Reads.of([(tag, upto)]),
            hints=Hints.of(rows),
        )
    )


def handed_out(actions: Sequence[SessionAction]) -> Checkpoint:
    last = actions[-1]
    assert isinstance(last, HandOut), actions
    return last.delta


def tick(state: SessionState, now_ms: int, *, is_wanted: bool = True) -> list[SessionAction]:
    return state.on_tick(now_ms, hint_wait_ms=HINT_WAIT_MS, is_wanted=is_wanted)


# Journals.
def test_every_slice_hears_of_the_journals_before_one_starts_to_read_them() -> None:
    state = SessionState(a_read(), 2, Resumed(Checkpoint()))
    assert state.unread([journal(A)]) == ["t/1"]

    first, second, start = state.on_journals([journal(A)], {"t/1": Offset(7)}, 0)

    assert isinstance(first, Send)
    assert isinstance(second, Send)
    assert isinstance(start, Send)
    assert [first.slice, second.slice] == [0, 1]
    assert isinstance(first.message, CatalogUpdate)
    assert isinstance(second.message, CatalogUpdate)
    assert isinstance(start.message, StartReads)
    assert start.slice == state.journals.readers[tag_of(0, A)]
    assert start.message.names == ("t/1",)
    assert start.message.starts.rows() == [(tag_of(0, A), 7, NONE)]


def test_a_journal_that_is_gone_is_stopped_and_one_that_is_known_is_not_started_again() -> None:
    state = begun(A, B)

    actions = state.on_journals([journal(B)], {}, 0)

    messages = [action.message for action in actions if isinstance(action, Send)]
    assert [type(message) for message in messages] == [CatalogUpdate, StopReads]
    assert isinstance(messages[1], StopReads)
    assert messages[1].tags.tolist() == [tag_of(0, A)]


def test_a_report_that_names_a_new_journal_waits_until_journals_are_listed() -> None:
    state = begun(A)
    state.on_message(0, report(A, 10, upto=9, hints=[B]), 0)
    state.on_message(0, report(A, 20, upto=12, producer=Q), 0)
    assert state.deferred_reports == 2, "the second waits behind the first of its slice"
    assert state.next_checkpoint() == []

    state.on_journals([journal(A), journal(B)], {"t/2": Offset(0)}, 0, deferred=1)
    assert state.deferred_reports == 1, "it came after the list was asked for"
    state.on_journals([journal(A), journal(B)], {}, 0, deferred=1)

    number = handed_out(state.next_checkpoint()).number
    assert state.visible(number).windows.producer.tolist() == [Q], "the other one is not whole"
    assert state.frontier.read_offsets().rows()[0][:2] == (tag_of(0, A), 12), "in their order"
    state.on_message(0, report(B, 10, upto=3), 0)
    number = handed_out(state.next_checkpoint()).number
    assert state.visible(number).windows.producer.tolist() == [P, P]


def test_a_new_journal_that_is_gone_again_is_waited_for_by_nobody() -> None:
    state = begun(A)
    state.on_message(0, report(A, 10, upto=9, hints=[B]), 0)

    state.on_journals([journal(A)], {}, 0, deferred=1)

    assert state.unmet() == ()
    assert handed_out(state.next_checkpoint()).number == 1


# Checkpoints.
def test_a_checkpoint_is_stored_before_it_is_handed_out() -> None:
    state = begun(A)
    assert state.next_checkpoint() == []
    state.on_message(0, report(A, 10, upto=9), 0)

    store, hand_out = state.next_checkpoint()

    assert isinstance(store, StoreCheckpoint)
    assert hand_out == HandOut(store.delta)
    assert store.delta.number == 1
    assert state.visible(CheckpointNumber(1)).windows.rows() == [(tag_of(0, A), P, 0, 10)]
    assert state.next_checkpoint() == [], "nothing new"


def test_a_commit_says_what_journals_are_needed_from_and_frees_what_is_shown() -> None:
    state = begun(A, B)
    state.on_message(0, report(A, 10, upto=9), 0)
    number = handed_out(state.next_checkpoint()).number

    assert state.on_commit(number) == [StoreCommit(number, (Floor(A, "t/1", Offset(9)),))]
    (free,) = state.on_committed(number, state.whole)

    assert isinstance(free, FreeRows)
    assert free.shown.rows() == state.whole.shown.rows()
    state.on_message(0, report(B, 20, upto=5), 0)
    later = handed_out(state.next_checkpoint())
    (free,) = state.on_committed(later.number, state.whole)
    assert isinstance(free, FreeRows)
    assert free.shown.rows() == later.shown.rows(), "queues know the rest"
    with pytest.raises(UserError, match=r"checkpoint 1 is not there .*\n.*committed: none"):
        state.visible(number)


def test_a_commit_beside_a_deleted_journal_is_tried_once_more_without_it() -> None:
    state = begun(A, B)
    state.on_message(0, report(A, 10, upto=9), 0)
    state.on_message(0, report(B, 10, upto=8), 0)
    number = handed_out(state.next_checkpoint()).number
    (first,) = state.on_commit(number)
    assert isinstance(first, StoreCommit)
    assert {floor.id for floor in first.floors} == {A, B}

    assert state.on_journals_gone(number, {B, C}) == [
        StoreCommit(number, (Floor(B, "t/2", Offset(8)),), is_retry=True)
    ]


def test_committing_a_checkpoint_that_was_never_handed_out_moves_no_journal() -> None:
    assert begun(A).on_commit(CheckpointNumber(5)) == [StoreCommit(CheckpointNumber(5), ())]


# Replay.
def replaying(*journals: JournalId) -> tuple[SessionState, Checkpoint]:
    """A session after one that handed out a checkpoint and did not commit it."""
    before = begun(A)
    before.on_message(0, report(A, 10, upto=9), 0)
    delta = handed_out(before.next_checkpoint())
    resumed = Resumed(Checkpoint(), (delta,), delta.number)
    state = SessionState(a_read(), 1, resumed)
    listed = [journal(number) for number in journals]
    actions = state.on_journals(listed, {each.name: Offset(7) for each in listed}, 0)
    messages = [action.message for action in actions if isinstance(action, Send)]
    start = messages[-1]
    assert isinstance(start, StartReads)
    assert start.starts.rows()[0] == (tag_of(0, A), 7, 9), "not beyond the checkpoint"
    assert state.begin() == [SetDiskLimit(is_on=False)]
    return state, delta


def test_a_checkpoint_is_replayed_without_being_stored_and_then_slices_read_on() -> None:
    state, before = replaying(A)
    assert state.is_recovering
    assert state.next_checkpoint() == [], "its rows are not read yet"
    state.on_message(0, report(A, 10, upto=9), 0)

    assert state.next_checkpoint() == [
        SetDiskLimit(is_on=True),
        Send(0, Continue()),
        HandOut(before),
    ]

    state.on_message(0, report(A, 20, upto=11), 0)
    assert handed_out(state.next_checkpoint()).number == before.number + 1


def test_a_replay_over_a_journal_that_is_gone_is_refused() -> None:
    state, _ = replaying(A)
    with pytest.raises(DataLost, match=r"(?s)checkpoint 1 .*cannot be replayed.*ids 1\n"):
        state.on_journals([], {}, 0)


# Waiting.
def half_a_transaction() -> SessionState:
    """A transaction over two journals of which one part was reported, at 100 ms."""
    state = begun(A, B)
    state.on_message(0, report(A, 10, upto=9, hints=[B]), 100)
    return state


def test_hints_that_stay_unmet_while_a_checkpoint_is_wanted_fail_the_session_by_name() -> None:
    state = half_a_transaction()
    tick(state, 200)
    tick(state, 200 + HINT_WAIT_MS - 1)
    with pytest.raises(HintsUnresolved, match=r"waited 1 s (.|\n)*in t/1 .*not yet in t/2 \(all\)"):
        tick(state, 200 + HINT_WAIT_MS)


def test_the_time_counts_only_while_a_checkpoint_is_wanted_and_no_slice_is_pushed_back() -> None:
    state = half_a_transaction()
    tick(state, 200)
    tick(state, 900, is_wanted=False)
    tick(state, 1_500)
    state.on_message(0, Pressure(is_pushed_back=True), 1_600)
    tick(state, 9_000)
    state.on_message(0, Pressure(is_pushed_back=False), 9_100)
    tick(state, 9_200)
    tick(state, 9_200 + HINT_WAIT_MS - 1)
    with pytest.raises(HintsUnresolved):
        tick(state, 9_200 + HINT_WAIT_MS)


def test_a_released_transaction_is_shown_as_far_as_it_is_committed() -> None:
    state = half_a_transaction()
    assert state.next_checkpoint() == []
    assert state.on_release(Q) == ()
    assert state.next_checkpoint() == []

    (released,) = state.on_release(P)

    assert (released.producer, released.clock) == (P, 10)
    assert handed_out(state.next_checkpoint()).shown.clock.tolist() == [10]
    tick(state, 10**9)  # And nothing is waited for.


def test_abandoning_a_producer_is_a_matter_of_all_slices() -> None:
    assert begun(A, members=3).on_abandon(Q) == [Send(n, Abandon(Q)) for n in range(3)]


def test_the_disk_limit_is_off_only_while_a_caller_waits_and_nothing_is_handed_out() -> None:
    state = begun(A)
    assert tick(state, 0, is_wanted=False) == []
    assert tick(state, 0) == [SetDiskLimit(is_on=False)]
    assert tick(state, 0) == [], "it is off"
    state.on_message(0, report(A, 10, upto=9), 0)
    actions = state.next_checkpoint()
    assert actions[1] == SetDiskLimit(is_on=True)
    number = handed_out(actions).number
    assert tick(state, 0) == [], "the caller can read and commit what it was given"
    state.on_committed(number, state.whole)
    assert tick(state, 0) == [SetDiskLimit(is_on=False)]


# Whole stories.
def checkpoint(
    number: int, journal_: JournalId, clock: int, read: int, *, begin: int = NONE
) -> Checkpoint:
    tag = tag_of(0, journal_)
    return Checkpoint(
        number=CheckpointNumber(number),
        reads=ReadOffsets.of([(tag, read, number)]),
        shown=ShownClock.of([(tag, P, clock, begin, number)]),
    )


def starts_of(actions: Sequence[SessionAction]) -> list[tuple[int, ...]]:
    """Tag, first offset and bound of what slices are told to read."""
    messages = [action.message for action in actions if isinstance(action, Send)]
    return [row for each in messages if isinstance(each, StartReads) for row in each.starts.rows()]


def shows(actions: Sequence[SessionAction]) -> tuple[int, list[tuple[int, ...]]]:
    """The number of the checkpoint that is handed out; journal, producer and clock it shows."""
    delta = handed_out(actions)
    return delta.number, [row[:3] for row in delta.shown.rows()]


def commits(
    state: SessionState, number: JournalId, clock: int, *, upto: int, hints: Sequence[int] = ()
) -> None:
    """A slice reports a commit after which nothing is open."""
    tag = tag_of(0, number)
    rows: list[tuple[int, ...]] = [(tag, P, clock, hint) for hint in hints]
    progress = SliceProgress(
        points=Points.of([(tag, P, clock, 0)]),
        opens=Opens.of([(tag, P, NONE)]),
        reads=Reads.of([(tag, upto)]),
        hints=Hints.of(rows),
    )
    state.on_message(0, Reported(progress), 0)


def test_a_journal_is_read_on_where_its_open_transaction_begins_and_shown_rows_are_told() -> None:
    resumed = Resumed(merge(checkpoint(4, A, 20, 7, begin=3), checkpoint(4, B, 9, 2)))
    state = SessionState(a_read(), 1, resumed)
    assert state.unread([journal(A), journal(B), journal(C)]) == ["t/3"]

    actions = state.on_journals([journal(A), journal(B)], {}, 0)

    assert starts_of(actions) == [(A, 3, NONE), (B, 2, NONE)]
    start = actions[-1]
    assert isinstance(start, Send)
    assert isinstance(start.message, StartReads)
    assert start.message.shown.rows() == [(A, P, 20, 3, 4), (B, P, 9, NONE, 4)]


def test_numbers_go_on_after_the_highest_that_was_ever_given_out() -> None:
    resumed = Resumed(checkpoint(4, A, 20, 7), last_number=CheckpointNumber(9))
    state = begun(A, resumed=resumed)
    commits(state, A, 30, upto=8)

    assert shows(state.next_checkpoint()) == (10, [(A, P, 30)])


def test_several_prepared_checkpoints_come_again_in_order_before_anything_new() -> None:
    prepared = (checkpoint(5, A, 30, 9), checkpoint(6, B, 40, 3))
    resumed = Resumed(checkpoint(4, A, 20, 7), prepared, CheckpointNumber(6))
    state = SessionState(a_read(), 2, resumed)
    firsts = {"t/2": Offset(1), "t/3": Offset(2)}

    actions = state.on_journals([journal(A), journal(B), journal(C)], firsts, 0)

    assert sorted(starts_of(actions)) == [(A, 7, 9), (B, 1, 3), (C, 2, 2)], "none goes beyond"
    state.begin()
    commits(state, B, 40, upto=3)
    assert state.next_checkpoint() == [], "the other one comes first"
    commits(state, A, 35, upto=9)
    assert state.next_checkpoint() == [HandOut(prepared[0])]
    last = state.next_checkpoint()
    assert last[1:] == [Send(0, Continue()), Send(1, Continue()), HandOut(prepared[1])]
    assert shows(state.next_checkpoint()) == (7, [(A, P, 35)]), "it was not shown with them"
    more = [journal(number) for number in (A, B, C, JournalId(4))]
    assert starts_of(state.on_journals(more, {}, 0)) == [(4, 0, NONE)], "no bound any more"


def test_a_transaction_over_two_journals_is_shown_when_both_have_committed() -> None:
    state = begun(A, B)
    commits(state, A, 20, upto=9, hints=[B])
    assert state.next_checkpoint() == []
    commits(state, B, 20, upto=9, hints=[A])

    assert shows(state.next_checkpoint()) == (1, [(A, P, 20), (B, P, 20)])


def test_a_journal_that_is_deleted_is_not_waited_for() -> None:
    state = begun(A, B)
    commits(state, A, 20, upto=9, hints=[B])
    assert state.next_checkpoint() == []

    state.on_journals([journal(A)], {}, 0)

    assert shows(state.next_checkpoint()) == (1, [(A, P, 20)])


def test_a_rolled_back_range_is_told_once_and_dropped_when_more_is_shown() -> None:
    state = begun(A)
    gone = RolledBack.of([(A, P, 1, 3, 18)])
    again = Reported(SliceProgress(rolled_back=gone, reads=Reads.of([(A, 4)])))
    state.on_message(0, again, 0)

    assert handed_out(state.next_checkpoint()).rolled_back.rows() == gone.rows()
    state.on_message(0, again, 0)
    assert state.next_checkpoint() == []
    commits(state, A, 30, upto=5)
    state.next_checkpoint()
    assert state.whole.rolled_back.rows() == gone.rows(), "the window that needs it ends here"
    commits(state, A, 40, upto=6)
    state.next_checkpoint()
    assert state.whole.rolled_back.rows() == []


def test_other_columns_under_the_same_binding_are_refused() -> None:
    odd = JournalInfo(
        name="t/2",
        id=B,
        schema=pa.schema([("key", pa.int64()), ("other", pa.string())]),
        labels={},
        created_at_ms=0,
    )

    with pytest.raises(SchemaMismatch, match="t/2"):
        begun(A).on_journals([journal(A), odd], {}, 0)


def test_only_the_first_of_many_waits_are_named() -> None:
    state = begun(A, B)
    for producer in range(1, 13):
        state.on_message(0, report(A, 20, upto=9, producer=producer, hints=[B]), 0)
    tick(state, 0)

    with pytest.raises(HintsUnresolved, match="and 2 more\n  to fix") as error:
        tick(state, HINT_WAIT_MS)

    assert str(error.value).count("committed clock 20") == 10


def test_a_journal_that_is_gone_is_stopped_once_and_started_if_it_comes_back() -> None:
    state = begun(A, B)
    state.on_journals([journal(B)], {}, 0)

    again = state.on_journals([journal(B)], {}, 0)
    back = state.on_journals([journal(A), journal(B)], {"t/1": Offset(9)}, 0)

    assert [type(each.message) for each in again if isinstance(each, Send)] == [CatalogUpdate]
    assert starts_of(back) == [(A, 9, NONE)]
