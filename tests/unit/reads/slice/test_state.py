"""What a slice waits for, and what it does about what happens to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.reads.kit import SCHEMA, P, Q, a_read, ack, alone, row

from millrace.config import Config
from millrace.journal.core.clocks import clock_at
from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.row_format import stored_schema
from millrace.journal.core.values import JournalInfo
from millrace.journal.memory import MemoryBroker
from millrace.limits import KIB
from millrace.reads.model.checkpoint import ShownClock
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.model.journal_catalog import catalog_of
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.routing import Routing
from millrace.reads.model.session_messages import (
    Abandon,
    CatalogUpdate,
    Continue,
    Pressure,
    Reported,
    StartReads,
    Starts,
    StopReads,
)
from millrace.reads.model.tags import journal_of, tag_of
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.reads.slice.fetches import Fetch, FetchedTags, TaggedRows
from millrace.reads.slice.journal_fetching import fetch
from millrace.reads.slice.slice_state import SliceAction, SliceLimits, SliceState, ToQueue

FAR = 2**63
"""A clock at which everything is due."""


def test_a_slice_that_is_pushed_back_waits_for_the_queue_and_not_for_the_time() -> None:
    broker = MemoryBroker()
    info = broker.create("t/a", SCHEMA)
    broker.append("t/a", pa.RecordBatch.from_pylist([{"key": 1, "what": "x"}] * 3, schema=SCHEMA))
    read = a_read(read_delay="1ms")
    limits = SliceLimits(
        buffer_bytes_max=1_000,
        fetch_bytes_max=1,
        fetch_bytes_min=1,
        fetch_journals_max=1,
        window_bytes_max=1,
        message_bytes_target=1,
    )
    state = SliceState(read, 1, Routing(read, 1), limits)
    state.on_message(CatalogUpdate(catalog_of(read, [info], info.id)))
    state.on_message(StartReads(starts=Starts.of([(int(info.id), 0, NONE)]), names=("t/a",)))
    for _ in range(3):
        wanted = state.next_fetch(FAR)
        assert wanted is not None
        state.on_fetched(fetch(broker, wanted))
    assert state.next_due() is not None
    assert len(list(state.step(FAR))) == 2, "one message, for that is the window; and word of it"
    assert state.next_due() is None
    assert state.next_fetch(FAR) is None
    assert state.on_reply(0, RowsAccepted(1)) == []
    assert len(list(state.step(FAR))) == 1
    assert np.array_equal(state.outboxes[0]._sent, [(2, state.outboxes[0]._unanswered)])
    broker.close()


def test_the_buffer_has_room_for_a_piece_of_every_journal_that_holds_rows_back() -> None:
    limits = SliceLimits.of(Config())
    assert limits.bytes_least(1) == limits.bytes_least(1_000) == 48 * KIB
    for journals in (2_000, 10_000):
        share = limits.bytes_least(journals) * journals
        assert limits.buffer_bytes_max // 2 < share < limits.buffer_bytes_max
    assert limits.bytes_least(1_000_000) == 4 * KIB


# Whole traces: what happens to a slice, and what it does about it.
BIG = SliceLimits(
    buffer_bytes_max=1_000_000,
    fetch_bytes_max=1_000,
    fetch_bytes_min=100,
    fetch_journals_max=10,
    window_bytes_max=1_000_000,
    message_bytes_target=1_000_000,
)


def offsets_of(wanted: Fetch) -> dict[int, int]:
    """Where each tag is to be read from."""
    return dict(zip(wanted.tags.tolist(), wanted.offsets.tolist(), strict=True))


class Slice:
    """A slice that is told everything by hand; journals are 1, 2, and so on, below `t`."""

    def __init__(
        self,
        *bindings: dict[str, Any],
        journals: int = 1,
        queues: int = 1,
        limits: SliceLimits = BIG,
    ) -> None:
        given = bindings or ({},)
        self.task = CoordinatedRead(
            "tested",
            [
                Binding(**{"name": f"b{n}", "prefix": "t", "key": "key", **each})
                for n, each in enumerate(given)
            ],
        )
        self.journals = journals
        self.state = SliceState(self.task, queues, Routing(self.task, queues), limits)
        infos = [info(number) for number in range(1, journals + 1)]
        self.state.on_message(CatalogUpdate(catalog_of(self.task, infos, journals)))

    def start(
        self, *tags: int, offset: int = 0, until: int = NONE, shown: ShownClock | None = None
    ) -> None:
        names = tuple(f"t/{journal_of(tag)}" for tag in tags)
        starts = Starts.of([(tag, offset, until) for tag in tags])
        self.state.on_message(
            StartReads(starts=starts, names=names, shown=shown or ShownClock.empty())
        )

    def fetched(
        self, tag: int, *rows: tuple[object, ...], first: int = 0, end: int | None = None
    ) -> None:
        """The slice gets rows of a tag; `end` is where the journal ends, else behind them."""
        schema = stored_schema(SCHEMA)
        numbered = [(first + n, *each) for n, each in enumerate(rows)]
        columns = zip(*numbered, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(list(v), f.type) for v, f in zip(columns, schema, strict=True)]
        after = first + len(rows)
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        part = TaggedRows([batch], np.array([tag]), np.array([len(rows)]))
        self.state.on_fetched(
            FetchedTags(
                tags=np.array([tag]),
                nexts=np.array([after]),
                ends=np.array([after if end is None else end]),
                rows=[part] if rows else [],
            )
        )

    def wants(self, now: int = FAR) -> dict[int, int]:
        """Which tags it would read, each from where on."""
        found = self.state.next_fetch(now)
        return {} if found is None else offsets_of(found)

    def step(self, now: int = FAR) -> list[tuple[Any, ...]]:
        return told(list(self.state.step(now)))

    def replies(self, queue: int, reply: RowsAccepted | Flushed) -> list[tuple[Any, ...]]:
        return told(self.state.on_reply(queue, reply))


def info(number: int) -> JournalInfo:
    return JournalInfo(
        id=JournalId(number), name=f"t/{number}", schema=SCHEMA, labels={}, created_at_ms=0
    )


def told(actions: list[SliceAction]) -> list[tuple[Any, ...]]:
    """Actions in short: where rows and flushes go, and what is reported."""
    found: list[tuple[Any, ...]] = []
    for action in actions:
        match action:
            case ToQueue(queue, QueueRows(number, batch)):
                found.append(("rows", queue, number, batch["what"].to_pylist()))
            case ToQueue(queue, Flush(cycle)):
                found.append(("flush", queue, cycle))
            case Pressure(is_pushed_back):
                found.append(("pressure", is_pushed_back))
            case Reported(progress):
                parts = ("points", "hints", "opens", "rolled_back", "reads")
                rows = {name: getattr(progress, name).rows() for name in parts}
                found.append(("reported", {name: some for name, some in rows.items() if some}))
            case other:
                found.append((other,))
    return found


A, B = 1, 2
"""Tags of the first binding."""


def test_a_commit_is_reported_when_every_queue_has_what_came_before_it() -> None:
    some = Slice(queues=2)
    some.start(A)
    assert some.wants() == {A: 0}
    some.fetched(A, alone(P, 10, "x"))

    sent = some.step()

    assert [each for each in sent if each[0] == "rows"] == [("rows", sent[0][1], 1, ["x"])]
    assert sorted(each for each in sent if each[0] == "flush") == [("flush", 0, 1), ("flush", 1, 1)]
    assert len(sent) == 3
    assert some.replies(sent[0][1], RowsAccepted(1)) == []
    assert some.replies(1, Flushed(1)) == []
    assert some.step() == []
    assert some.replies(0, Flushed(1)) == [
        ("reported", {"points": [(A, P, 10, 0)], "opens": [(A, P, NONE)], "reads": [(A, 1)]})
    ]
    assert some.step() == []
    assert some.wants() == {}, "it is at the end"


def test_commits_that_come_during_a_flush_go_into_the_next_one_together() -> None:
    some = Slice()
    some.start(A)
    some.fetched(A, alone(P, 10, "one"), end=9)
    assert some.step() == [("rows", 0, 1, ["one"]), ("flush", 0, 1)]
    some.fetched(A, alone(P, 20, "two"), first=1, end=9)
    some.fetched(A, alone(P, 30, "three"), first=2, end=9)

    assert some.step() == [("rows", 0, 2, ["two", "three"])]
    assert [each[1]["points"] for each in some.replies(0, Flushed(1))] == [[(A, P, 10, 0)]]
    assert some.step() == [("flush", 0, 2)]
    assert [each[1]["points"] for each in some.replies(0, Flushed(2))] == [[(A, P, 30, 1)]]


def test_rows_of_an_open_transaction_are_sent_and_not_reported_before_their_ack() -> None:
    some = Slice()
    some.start(A)
    some.fetched(A, row(P, 10, "x"), row(P, 11, "y"))
    assert some.step() == [("rows", 0, 1, ["x", "y"])]

    some.fetched(A, ack(P, 20), first=2)

    assert some.step() == [("flush", 0, 1)]
    assert some.replies(0, Flushed(1)) == [
        ("reported", {"points": [(A, P, 20, 0)], "opens": [(A, P, NONE)], "reads": [(A, 3)]})
    ]


def test_a_transaction_that_stays_open_is_reported_with_its_begin_when_another_commits() -> None:
    some = Slice()
    some.start(A)
    some.fetched(A, row(Q, 5, "open"), alone(P, 10, "x"))

    assert some.step() == [("rows", 0, 1, ["open", "x"]), ("flush", 0, 1)]
    ((_, report),) = some.replies(0, Flushed(1))
    assert sorted(report["opens"]) == [(A, P, NONE), (A, Q, 0)]
    assert report["points"] == [(A, P, 10, 1)]


def test_a_rollback_is_reported_with_its_range_and_commits_nothing() -> None:
    some = Slice()
    some.start(A)
    some.fetched(A, alone(P, 10, "x"), end=9)
    some.step()
    some.replies(0, Flushed(1))
    some.fetched(A, row(P, 15, "gone"), row(P, 18, "gone"), ack(P, 10), first=1)

    assert some.step() == [("rows", 0, 2, ["gone", "gone"]), ("flush", 0, 2)]
    assert some.replies(0, Flushed(2)) == [
        (
            "reported",
            {"opens": [(A, P, NONE)], "rolled_back": [(A, P, 1, 3, 18)], "reads": [(A, 4)]},
        )
    ]


def test_an_abandoned_transaction_is_rolled_back_up_to_where_its_journal_was_read() -> None:
    some = Slice()
    some.start(A)
    some.fetched(A, row(P, 10, "lost"), row(P, 12, "lost"))
    assert some.step() == [("rows", 0, 1, ["lost", "lost"])]

    some.state.on_message(Abandon(Q))
    assert some.step() == [], "it has nothing open"
    some.state.on_message(Abandon(P))

    assert some.step() == [("flush", 0, 1)]
    ((_, report),) = some.replies(0, Flushed(1))
    assert report["rolled_back"] == [(A, P, 0, 2, 12)]
    assert report["opens"] == [(A, P, NONE)]
    assert "points" not in report


def test_what_is_shown_already_is_neither_sent_nor_committed_again() -> None:
    some = Slice()
    some.start(A, shown=ShownClock.of([(A, P, 10, NONE, 1)]))
    some.fetched(A, alone(P, 10, "again"), alone(P, 11, "new"), alone(Q, 3, "of another"))

    assert some.step() == [("rows", 0, 1, ["new", "of another"]), ("flush", 0, 1)]
    ((_, report),) = some.replies(0, Flushed(1))
    assert sorted(report["points"]) == [(A, P, 11, 1), (A, Q, 3, 2)]


def test_nothing_is_read_beyond_a_prepared_checkpoint_before_it_may_continue() -> None:
    some = Slice(journals=2)
    some.start(A, until=2)
    some.start(B, offset=5, until=5)
    assert some.wants() == {A: 0}, "the other is there already"
    some.fetched(A, *(alone(P, 10 + n, f"r{n}") for n in range(4)), end=4)

    assert some.step() == [("rows", 0, 1, ["r0", "r1"]), ("flush", 0, 1)]
    assert some.wants() == {}
    some.state.on_moved(None)
    assert some.wants() == {}, "whatever moved"
    some.state.on_message(Continue())
    assert some.wants() == {A: 2, B: 5}
    some.fetched(A, alone(P, 12, "r2"), alone(P, 13, "r3"), first=2)
    some.fetched(B, first=5)
    assert some.step() == [("rows", 0, 2, ["r2", "r3"])]


def test_a_journal_at_its_end_is_read_on_when_it_moved() -> None:
    some = Slice(journals=2)
    some.start(A, B)
    some.fetched(A)
    some.fetched(B)
    assert some.wants() == {}

    some.state.on_moved([B, 77])
    assert some.wants() == {B: 0}
    some.state.on_moved(None)
    assert some.wants() == {A: 0, B: 0}


def test_of_a_tag_that_is_stopped_nothing_is_sent_any_more() -> None:
    some = Slice(journals=2)
    some.start(A, B)
    some.fetched(A, alone(P, 10, "buffered"))
    some.state.on_message(StopReads(np.array([A], np.int64)))
    some.fetched(A, alone(P, 11, "on its way"), first=1)
    some.state.on_moved([A])

    assert some.wants() == {B: 0}
    some.fetched(B, alone(P, 5, "other"))
    assert some.step() == [("rows", 0, 1, ["other"]), ("flush", 0, 1)]


def test_a_tag_that_is_started_again_knows_nothing_of_what_was_open_in_it() -> None:
    some = Slice()
    some.start(A)
    some.fetched(A, row(P, 10, "x"))
    assert some.step() == [("rows", 0, 1, ["x"])]

    some.state.on_message(StopReads(np.array([A], np.int64)))
    some.start(A)
    some.fetched(A, row(P, 10, "x"), ack(P, 11))

    assert some.step() == [("rows", 0, 2, ["x"]), ("flush", 0, 1)]


def test_rows_wait_for_a_journal_that_may_bring_earlier_ones() -> None:
    some = Slice(journals=2)
    some.start(A, B)
    some.fetched(A, alone(P, 10, "a10"), alone(P, 30, "a30"))

    assert some.step() == []
    assert some.wants() == {B: 0}, "the one that holds the others back"
    some.fetched(B, alone(P, 20, "b20"), end=9)
    assert [each for each in some.step() if each[0] == "rows"] == [("rows", 0, 1, ["a10", "b20"])]
    some.fetched(B, first=1)
    assert [each for each in some.step() if each[0] == "rows"] == [("rows", 0, 2, ["a30"])]


def test_rows_of_a_higher_priority_go_before_any_other() -> None:
    high = tag_of(1, A)
    some = Slice({"priority": 0}, {"priority": 1})
    some.start(A, high)
    some.fetched(A, alone(P, 10, "low"))
    assert some.step() == [], "the other has not been read"
    some.fetched(high, alone(P, 99, "high"))

    sent = [each[3] for each in some.step() if each[0] == "rows"]

    assert sent == [["high"], ["low"]]


def test_a_row_under_a_delay_waits_for_its_time_and_is_told_when() -> None:
    some = Slice({"read_delay": "5ms"})
    delay = some.task.bindings[0].delay
    some.start(A)
    some.fetched(A, alone(P, 10, "x"))

    assert some.step(10 + delay - 1) == []
    assert some.state.next_due() == 10 + delay
    assert some.step(10 + delay) == [("rows", 0, 1, ["x"]), ("flush", 0, 1)]
    assert some.state.next_due() is None


def test_a_full_window_pushes_back_until_the_queue_has_taken_what_it_got() -> None:
    limits = replace(BIG, window_bytes_max=1, message_bytes_target=1)
    some = Slice({"read_delay": "5ms"}, limits=limits)
    now = 11 + some.task.bindings[0].delay
    some.start(A)
    some.fetched(A, alone(P, 10, "one"), alone(P, 11, "two"), alone(P, 12, "later"), end=9)

    assert some.step(now) == [("rows", 0, 1, ["one"]), ("pressure", True)]
    assert (some.wants(FAR), some.step(now)) == ({}, [])
    assert some.state.next_due() is None, "the queue's answer comes first"
    assert some.replies(0, RowsAccepted(1)) == []
    assert some.step(now) == [("rows", 0, 2, ["two"]), ("flush", 0, 1), ("pressure", False)]
    assert some.state.next_due() == now + 1
    assert some.wants(FAR) == {A: 3}


def test_a_full_buffer_reads_only_what_holds_it_back_and_little_of_it() -> None:
    some = Slice(journals=3, limits=replace(BIG, buffer_bytes_max=1))
    some.start(A, B, 3)
    wanted = some.state.next_fetch(FAR)
    assert wanted is not None
    assert (len(wanted.tags), wanted.bytes_each) == (3, 100)
    some.fetched(A, alone(P, 10, "x"))
    some.fetched(B, alone(P, 5, "y"), end=9)

    assert some.step() == []
    wanted = some.state.next_fetch(FAR)

    assert wanted is not None
    assert (offsets_of(wanted), list(wanted.names)) == ({3: 0}, ["t/3"])
    assert wanted.bytes_each == 100


def test_an_ack_names_just_the_journals_that_matter_to_its_cohort() -> None:
    some = Slice({"prefix": "t/1"}, {"prefix": "t/2"}, {"prefix": "t/3", "priority": 1}, journals=4)
    some.start(A)
    some.fetched(A, row(P, 10, "x"), ack(P, 20, [2, 3, 4, 5]))

    some.step()
    ((_, report),) = some.replies(0, Flushed(1))

    # Not 3, which is read in another cohort, nor 4, which nobody reads; 5 is not known yet.
    assert report["hints"] == [(A, P, 20, 2), (A, P, 20, 5)]


def test_an_ack_in_a_journal_that_is_read_twice_waits_for_its_other_half() -> None:
    some = Slice({}, {})
    some.start(A, tag_of(1, A))
    for tag in (A, tag_of(1, A)):
        some.fetched(tag, row(P, 10, "x"), ack(P, 20))

    some.step()
    ((_, report),) = some.replies(0, Flushed(1))

    assert sorted(report["hints"]) == [(A, P, 20, 1), (tag_of(1, A), P, 20, 1)]


def test_rows_outside_the_moments_asked_for_are_committed_and_not_sent() -> None:
    def at(unix_ms: int) -> int:
        return clock_at(unix_ms * 1_000_000)

    some = Slice({"not_before_ms": 20, "not_after_ms": 30})
    some.start(A)
    some.fetched(A, *(alone(P, at(ms), f"{ms}") for ms in (10, 20, 30, 40)))

    assert some.step() == [("rows", 0, 1, ["20", "30"]), ("flush", 0, 1)]
    ((_, report),) = some.replies(0, Flushed(1))
    assert report["points"] == [(A, P, at(40), 0)]
