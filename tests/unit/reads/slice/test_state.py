"""The slice's state by itself: what it waits for, what it sends and what it reports."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from tests.unit.reads.kit import SCHEMA, P, Q, a_read, ack, alone, row, write

from millrace.journal.memory import MemoryBroker
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
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
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
    assert len(state.step(FAR)) == 2, "one message, for that is the window; and word of it"
    assert state.next_due() is None
    assert state.next_fetch(FAR) is None
    assert state.on_reply(0, RowsAccepted(1)) == []
    assert len(state.step(FAR)) == 1
    assert np.array_equal(state._outboxes[0]._sent, [(2, state._outboxes[0]._unanswered)])
    broker.close()


# Traces: events in, actions out.
def a_slice(**limits: int) -> tuple[SliceState, MemoryBroker]:
    """A slice that reads one journal for two queues, its rows one after another."""
    broker = MemoryBroker()
    info = broker.create("t/a", SCHEMA)
    read = a_read(key=())
    chosen = SliceLimits(**{**WIDE, **limits})
    state = SliceState(read, 2, Routing(read, 2), chosen)
    state.on_message(CatalogUpdate(catalog_of(read, [info], info.id)))
    return state, broker


WIDE = {
    "buffer_bytes_max": 1 << 20,
    "fetch_bytes_max": 1 << 20,
    "fetch_bytes_min": 1,
    "fetch_journals_max": 9,
    "window_bytes_max": 1 << 20,
    "message_bytes_target": 1 << 20,
}
TAG_A = 1


def start(state: SliceState, *, until: int = NONE) -> None:
    state.on_message(StartReads(starts=Starts.of([(TAG_A, 0, until)]), names=("t/a",)))


def read_on(state: SliceState, broker: MemoryBroker) -> list[SliceAction]:
    """Fetch what the slice wants, and let it go on."""
    wanted = state.next_fetch(FAR)
    assert wanted is not None
    state.on_fetched(fetch(broker, wanted))
    return state.step(FAR)


def flushed(state: SliceState, cycle: int) -> list[SliceAction]:
    """Both queues have everything up to a flush."""
    assert state.on_reply(0, Flushed(cycle)) == []
    return state.on_reply(1, Flushed(cycle))


def test_a_commit_is_reported_when_every_queue_has_answered_its_flush() -> None:
    state, broker = a_slice()
    start(state)
    write(broker, "t/a", row(P, 10, "one"), row(P, 11, "two"), ack(P, 12))

    actions = read_on(state, broker)

    flushes = [action for action in actions if isinstance(action.message, Flush)]  # type: ignore[union-attr]
    assert flushes == [ToQueue(0, Flush(1)), ToQueue(1, Flush(1))]
    (report,) = flushed(state, 1)
    assert isinstance(report, Reported)
    assert report.progress.points.rows() == [(TAG_A, P, 12, 0)]
    assert report.progress.reads.rows() == [(TAG_A, 3)]
    assert state.step(FAR) == [], "nothing new to flush"


def test_an_open_transaction_is_in_a_queue_and_in_no_report_until_it_is_abandoned() -> None:
    state, broker = a_slice()
    start(state)
    write(broker, "t/a", row(Q, 5, "never ended"))
    actions = read_on(state, broker)
    assert [type(action) for action in actions] == [ToQueue], "rows alone ask for no flush"

    state.on_message(Abandon(P))
    assert state.step(FAR) == [], "another producer's"
    state.on_message(Abandon(Q))

    assert state.step(FAR) == [ToQueue(0, Flush(1)), ToQueue(1, Flush(1))]
    (report,) = flushed(state, 1)
    assert isinstance(report, Reported)
    assert report.progress.rolled_back.rows() == [(TAG_A, Q, 0, 1, 5)]


def test_a_slice_that_replays_reads_to_the_bound_and_no_further_before_it_may_continue() -> None:
    state, broker = a_slice()
    start(state, until=1)
    write(broker, "t/a", alone(P, 10, "shown before"), alone(P, 11, "new"))
    read_on(state, broker)
    (report,) = flushed(state, 1)
    assert isinstance(report, Reported)
    assert report.progress.points.rows() == [(TAG_A, P, 10, 0)]
    state.on_moved(None)
    assert state.next_fetch(FAR) is None

    state.on_message(Continue())

    read_on(state, broker)
    (report,) = flushed(state, 2)
    assert isinstance(report, Reported)
    assert report.progress.points.rows() == [(TAG_A, P, 11, 1)]


def test_a_journal_that_is_stopped_is_read_no_more_and_rows_on_their_way_are_dropped() -> None:
    state, broker = a_slice()
    start(state)
    write(broker, "t/a", alone(P, 10, "too late"))
    wanted = state.next_fetch(FAR)
    assert wanted is not None

    state.on_message(StopReads(np.array([TAG_A], np.int64)))
    state.on_fetched(fetch(broker, wanted))

    assert state.step(FAR) == []
    state.on_moved(None)
    assert state.next_fetch(FAR) is None


def test_pressure_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    state, broker = a_slice(window_bytes_max=1, message_bytes_target=1)
    start(state)
    write(broker, "t/a", *(alone(P, 10 + n, "x") for n in range(6)))
    actions = read_on(state, broker)
    assert actions[-1] == Pressure(is_pushed_back=True)
    assert state.next_fetch(FAR) is None

    accepted = 0
    for action in actions:  # It grows while queues accept what was sent.
        if isinstance(action, ToQueue) and isinstance(action.message, QueueRows):
            state.on_reply(action.queue, RowsAccepted(action.message.number))
            accepted += action.message.batch.num_rows
            actions += state.step(FAR)

    pressures = [action for action in actions if isinstance(action, Pressure)]
    assert pressures == [Pressure(is_pushed_back=True), Pressure(is_pushed_back=False)]
    assert accepted == 6
