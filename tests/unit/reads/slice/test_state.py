"""What a slice waits for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from tests.unit.reads.kit import SCHEMA, a_read

from millrace.journal.memory import MemoryBroker
from millrace.reads.model.journal_catalog import catalog_of
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.routing import Routing
from millrace.reads.model.session_messages import CatalogUpdate, StartReads, Starts
from millrace.reads.queue.queue_messages import RowsAccepted
from millrace.reads.slice.journal_fetching import fetch
from millrace.reads.slice.slice_state import SliceLimits, SliceState

FAR = 2**63
"""A clock at which everything is due."""


def test_a_slice_that_is_pushed_back_waits_for_the_queue_and_not_for_the_time() -> None:
    broker = MemoryBroker()
    info = broker.create("t/a", SCHEMA)
    broker.append("t/a", pa.RecordBatch.from_pylist([{"key": 1, "what": "x"}] * 3, schema=SCHEMA))
    read = a_read(read_delay_ms=1)
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
