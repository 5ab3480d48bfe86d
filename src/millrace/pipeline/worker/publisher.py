"""Publishes what a worker has done on a unit: rows, records and the new offset in one transaction.

Invariant: every transaction is made under the unit's lease and expects what the worker last saw,
the committed offset or the end of the record of calls. So one that arrives twice, late, or from a
worker that was followed by another changes nothing. A lost answer is judged by what is found.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.config import Config
from millrace.errors import Conflict, LeaseHeld, LeaseLost, Retriable
from millrace.faults import fault
from millrace.journal.broker import Broker, Transaction
from millrace.journal.core.values import JournalInfo, Lease, Published
from millrace.keys.partitioner import HashPartitioner
from millrace.keys.split import split
from millrace.pipeline.core import call_records, dead_letters, hops, job_events
from millrace.pipeline.core.call_records import CallRecord
from millrace.pipeline.core.commit_rule import PublishOutcome, kept_partition, what_became
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEvent
from millrace.pipeline.core.job_model import KeyBy
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.sinks.sink_port import Prepared
from millrace.pipeline.worker.call_budget import Budget, BudgetShare


class BudgetMoved(Exception):
    """Another worker took from the budget first; look at it again."""


@dataclass(slots=True, kw_only=True)
class UnitPublish:
    """What one transaction is to do."""

    next: int
    """Where the unit's offset is then."""
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)
    taken: list[BudgetShare] = field(default_factory=list)
    """From the budget, in order; the last one tells what is left."""
    letters: dict[str, list[Letter]] = field(default_factory=dict)
    """Dead letters by step."""
    events: list[JobEvent] = field(default_factory=list)
    prepared: Prepared | None = None

    @property
    def rows(self) -> int:
        """How many rows it publishes."""
        return sum(batch.num_rows for batch in self.outputs)


@dataclass(slots=True, kw_only=True)
class Publisher:
    """Publishes for one unit, from the moment its lease was taken."""

    broker: Broker
    config: Config
    hop: Hop
    journal: JournalInfo
    lease: Lease
    at: int
    """The unit's committed offset."""
    is_new: bool
    """Whether the group never committed there."""
    calls_end: int = 0
    """Where the record of calls ends, for expensive hops."""
    budget: Budget | None = None
    seconds: float = 0.0

    @property
    def calls_journal(self) -> str:
        """The unit's record of calls."""
        return hops.calls_journal(self.hop.job, self.hop.name, self.journal.id)

    def publish(self, change: UnitPublish, point: str = "publish") -> None:
        """Carry a change out, once. `LeaseLost` if the unit is no longer this worker's."""
        if not _does_anything(change, self.at):
            return
        begun = time.perf_counter()
        fault(f"worker.{point}.before")
        try:
            self._until_answered(change)
        finally:
            self.seconds += time.perf_counter() - begun
        fault(f"worker.{point}.after")
        if change.prepared is not None:
            change.prepared.finish()
            fault("worker.finish.after")

    def _until_answered(self, change: UnitPublish) -> None:
        def ask() -> Published | None:
            try:
                return self._transaction(change)
            except LeaseHeld:
                raise
            except Retriable:
                if self._became(change) is PublishOutcome.DONE:
                    return None
                raise
            except Conflict as conflict:
                self._conflicted(change, conflict)
                return None

        done = patiently(ask, self.config)
        self._now_stands(change, done)

    def _conflicted(self, change: UnitPublish, conflict: Conflict) -> None:
        """Somebody was first: an earlier asking of one's own, another worker, or the budget."""
        match self._became(change):
            case PublishOutcome.DONE:
                return
            case PublishOutcome.AGAIN if change.taken:
                raise BudgetMoved from conflict
            case _:
                raise LeaseLost(
                    f"unit {self.journal.name!r} of {self.hop.name!r} was worked on by another\n"
                    f"  {conflict}\n"
                    "  to fix: nothing; the other worker goes on with it"
                ) from conflict

    def _became(self, change: UnitPublish) -> PublishOutcome:
        if change.next != self.at:
            found = self.broker.committed(self.hop.group, self.journal.name)
            expected = None if self.is_new else self.at
            return what_became(expected=expected, wanted=change.next, found=found)
        if not change.records:
            return PublishOutcome.AGAIN
        found = self.broker.end_offset(self.calls_journal, isolation="raw")
        if found == self.calls_end:
            return PublishOutcome.AGAIN
        rows = call_records.from_rows(self.broker.read(self.calls_journal, self.calls_end).rows())
        mine = rows[: len(change.records)] == change.records
        return PublishOutcome.DONE if mine else PublishOutcome.OVERTAKEN

    def _transaction(self, change: UnitPublish) -> Published:
        with self.broker.transaction(self.lease) as t:
            for name, rows in self._placed(change.outputs):
                t.append(name, rows)
            self._add_records(t, change)
            if change.prepared is not None:
                change.prepared.add_to(t)
            if change.next != self.at:
                expected = None if self.is_new else self.at
                t.commit(self.hop.group, self.journal.name, change.next, expected=expected)
        assert t.result is not None
        return t.result

    def _add_records(self, t: Transaction, change: UnitPublish) -> None:
        job = self.hop.job
        if change.records:
            rows = call_records.to_rows(change.records)
            t.append(self.calls_journal, rows, expected=self.calls_end)
        if change.taken:
            assert self.budget is not None
            taken = pa.Table.from_batches([each.rows() for each in change.taken])
            t.append(self.budget.journal, taken, expected=self.budget.end)
        for step, some in change.letters.items():
            t.append(hops.dead_letters(job, step), dead_letters.to_rows(some))
        if change.events:
            t.append(hops.runs_journal(job), job_events.to_rows(change.events))

    def _placed(self, outputs: Sequence[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
        """Output rows by journal: by key, or all to the partition of this unit."""
        hop, filled = self.hop, [batch for batch in outputs if batch.num_rows]
        if not filled or not hop.partitions:
            return
        table = pa.Table.from_batches(filled).combine_chunks()
        last = hop.steps[-1] if hop.steps else None
        if isinstance(last, KeyBy):
            parts = split(table, HashPartitioner(last.keys, hop.partitions), 0)
            for number in range(hop.partitions):
                if parts.rows(number):
                    name = hops.output_journal(hop.job, hop.name, number)
                    yield name, pa.Table.from_batches([parts.part(number)])
            return
        place = kept_partition(self.journal.name, hop.partitions)
        yield hops.output_journal(hop.job, hop.name, place), table

    def _now_stands(self, change: UnitPublish, done: Published | None) -> None:
        if change.next != self.at:
            self.at, self.is_new = change.next, False
        if change.records:
            self.calls_end = self._end_of_calls(done)
        if change.taken:
            assert self.budget is not None
            if done is None:
                patiently(self.budget.refresh, self.config)
            else:
                end = done.appended[self.budget.journal].next_offset
                self.budget.now_holds(change.taken[-1], int(end))

    def _end_of_calls(self, done: Published | None) -> int:
        name = self.calls_journal
        if done is not None:
            return int(done.appended[name].next_offset)
        return int(patiently(lambda: self.broker.end_offset(name, isolation="raw"), self.config))


def _does_anything(change: UnitPublish, at: int) -> bool:
    parts = (change.outputs, change.records, change.taken, change.letters, change.events)
    return change.next != at or change.prepared is not None or any(parts)


@contextlib.contextmanager
def abandoned_on_error(change: UnitPublish) -> Iterator[None]:
    """Take back what a sink prepared when its transaction is not made."""
    try:
        yield
    except BaseException:
        if change.prepared is not None:
            change.prepared.abandon()
        raise
