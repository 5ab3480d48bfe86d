"""What a named producer decided last, stored in a journal of its own.

Invariant: a decision that was stored is found by the next producer of that name.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pyarrow as pa

from millrace.errors import JournalUnknown
from millrace.journal.broker import Broker
from millrace.journal.core.clocks import BEFORE_ALL, Clock
from millrace.journal.core.intents import Intents
from millrace.journal.core.values import Append, Lease, Publish

FOLDER: Final = "millrace/producers"
"""Where the intents of named producers are stored: a journal for each."""
_RECORD: Final = pa.schema([("clock", pa.uint64()), ("intents", pa.string())])
_RECORDS_KEPT: Final = 64


class IntentRecords:
    """Stores the intents of one named producer, and reads those of the last one."""

    def __init__(self, broker: Broker, name: str, lease: Lease) -> None:
        self._broker = broker
        self._journal = f"{FOLDER}/{name}"
        self._lease = lease
        self._producer = broker.producer_id(self._journal)
        self._is_created = False

    def store(self, clock: Clock, intents: str | None) -> None:
        """Store a decision: intents to commit, or None to roll back. A repeated call adds nothing.

        The clock tells a repeated call from a new one.
        """
        if not self._is_created:
            self._broker.create(self._journal, _RECORD)
            self._is_created = True
        row = pa.record_batch(
            [pa.array([clock], pa.uint64()), pa.array([intents], pa.string())], _RECORD
        )
        published = self._broker.publish(
            Publish(
                parts=(Append(journal=self._journal, rows=row),),
                lease=self._lease,
                producer=self._producer,
                sequence=clock,
            )
        )
        offset = published.appended[self._journal].first_offset
        if offset % _RECORDS_KEPT == _RECORDS_KEPT - 1:
            self._broker.truncate_before(self._journal, offset)

    def last(self) -> tuple[Clock, Intents | None]:
        """The clock of the last decision, and its intents if it was to commit."""
        record: dict[str, Any] | None = None
        with contextlib.suppress(JournalUnknown):
            offset = self._broker.start_offset(self._journal)
            while (records := self._broker.read(self._journal, offset)).next_offset > offset:
                record = records.rows().slice(records.num_rows - 1).to_pylist()[0]
                offset = records.next_offset
        if record is None:
            return BEFORE_ALL, None
        text = record["intents"]
        return Clock(record["clock"]), None if text is None else Intents.from_json(text)
