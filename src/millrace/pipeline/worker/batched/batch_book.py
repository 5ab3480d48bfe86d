"""The record of a unit's batches: read when a turn begins, written under the unit's lease."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import Conflict, JournalUnknown, LeaseLost
from millrace.pipeline.batches import batch_records
from millrace.pipeline.batches.batch_records import BatchRecord
from millrace.pipeline.core import hops, job_events
from millrace.pipeline.core.job_events import JobEvent
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.worker.turn import LeasedUnit


class BatchBook:
    """The record of the batches of one unit, for the turn of one worker."""

    def __init__(self, unit: LeasedUnit) -> None:
        self._unit = unit
        hop = unit.hop
        self._journal = hops.batches_journal(hop.job, hop.name, int(unit.journal.id))
        self._end = 0

    def last(self) -> BatchRecord | None:
        """The last record, if there is one."""

        def ask() -> BatchRecord | None:
            try:
                row, self._end = last_row(self._unit.broker, self._journal)
            except JournalUnknown:
                return None
            return None if row is None else batch_records.from_row(row)

        return patiently(ask, self._unit.config)

    def begin(self) -> None:
        """Make the journal, before the first record."""
        patiently(
            lambda: self._unit.broker.create(self._journal, batch_records.SCHEMA),
            self._unit.config,
        )

    def append(self, record: BatchRecord, events: Sequence[JobEvent] = ()) -> None:
        """Append a record once, with events of the job in the same transaction."""
        broker, unit = self._unit.broker, self._unit

        def send() -> None:
            try:
                with broker.transaction(unit.lease) as t:
                    rows = batch_records.to_rows([record])
                    t.append(self._journal, rows, expected=self._end)
                    if events:
                        runs = hops.runs_journal(unit.hop.job)
                        t.append(runs, job_events.to_rows(list(events)))
            except Conflict as conflict:
                # An earlier copy went through, and its answer was lost; or another has the unit.
                if self.last() != record:
                    raise LeaseLost(
                        f"unit {unit.journal.name!r} of {unit.hop.name!r} was worked on by another"
                        f"\n  {conflict}\n  to fix: nothing; the other worker goes on with it"
                    ) from conflict
                return
            assert t.result is not None
            self._end = int(t.result.appended[self._journal].next_offset)

        patiently(send, unit.config)
