"""Decides how a worker publishes on a unit so that each change counts once. Pure.

Events come in by the `on_*` methods; each returns the one action that follows.

Invariant: every transaction expects what the worker last saw: the committed offset, the end of the
record of calls, the end of the budget. So a transaction that arrives twice, late, or from a worker
that lost its lease changes nothing. A lost answer is judged by what the journals hold.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

from millrace.journal.core.row_format import SOURCE_JOURNAL
from millrace.keys.partitioner import HashPartitioner
from millrace.keys.split import split
from millrace.pipeline.core import dead_letters, hops, job_events
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import KeyBy
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.paid import call_budget, call_records, charges
from millrace.pipeline.paid.call_budget import BudgetTail
from millrace.pipeline.paid.call_records import CallRecord

_NUMBER: Final = re.compile(r"(?:^|/)(\d+)$")


class PublishOutcome(StrEnum):
    """The fate of a transaction whose answer was lost."""

    DONE = "done"
    """The broker carried it out."""
    AGAIN = "again"
    """The broker did not; sending it again is safe, since it expects the old offset."""
    OVERTAKEN = "overtaken"
    """Another worker moved the offset: nothing of this worker counts."""


def what_became(*, expected: int | None, new_offset: int, committed: int | None) -> PublishOutcome:
    """Judge a lost answer by the unit's committed offset."""
    assert new_offset != expected, "a transaction that moves nothing cannot be told by the offset"
    if committed == new_offset:
        return PublishOutcome.DONE
    return PublishOutcome.AGAIN if committed == expected else PublishOutcome.OVERTAKEN


def kept_partition(journal: str, partitions: int) -> int:
    """The partition for the rows of an input journal without a key: always the same one."""
    number = _NUMBER.search(journal)
    return (int(number[1]) if number else zlib.crc32(journal.encode())) % partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalAppend:
    """Rows for one journal."""

    journal: str
    rows: pa.Table | pa.RecordBatch
    expected: int | None = None
    """The offset at which the journal has to end; None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """The unit's new committed offset."""

    group: str
    journal: str
    offset: int
    expected: int | None
    """The committed offset so far; None: never committed."""


# Actions.
@dataclass(frozen=True, slots=True)
class SendTransaction:
    """Send this under the unit's lease; then `on_answer`, `on_answer_lost` or `on_conflict`."""

    appends: tuple[JournalAppend, ...]
    commit: OffsetCommit | None


@dataclass(frozen=True, slots=True)
class ReadCommitted:
    """Read the unit's committed offset; then `on_committed`."""

    group: str
    journal: str


@dataclass(frozen=True, slots=True)
class ReadCallRecords:
    """Read the raw end of the record of calls, and its rows from an offset on; then `on_calls`."""

    journal: str
    offset: int


@dataclass(frozen=True, slots=True)
class ReadTails:
    """The transaction was done without an answer: read the ends of journals; then `on_tails`."""

    calls: str | None
    budget: str | None


@dataclass(frozen=True, slots=True)
class SendAgain:
    """The transaction was not carried out. Wait, and call `on_publish` again."""


@dataclass(frozen=True, slots=True)
class ReportBudgetMoved:
    """Another worker took from the budget first; nothing was published."""


@dataclass(frozen=True, slots=True)
class ReportLeaseLost:
    """Another worker moved the unit's offset; nothing of this worker counts any more."""


@dataclass(frozen=True, slots=True)
class ReportPublished:
    """The change is published, once."""


@dataclass(frozen=True, slots=True)
class SkipPublish:
    """There is nothing to publish."""


PublishAction = (
    SendTransaction
    | ReadCommitted
    | ReadCallRecords
    | ReadTails
    | SendAgain
    | ReportBudgetMoved
    | ReportLeaseLost
    | ReportPublished
    | SkipPublish
)


class PublishMachine:
    """Publishes for one unit, from the moment its lease was taken."""

    def __init__(
        self, hop: Hop, journal: str, journal_id: int, *, at: int, is_new: bool, calls_end: int = 0
    ) -> None:
        """`at` is the unit's committed offset; `is_new`: its group never committed there."""
        self.hop, self.journal, self.journal_id = hop, journal, journal_id
        self.at, self.is_new, self.calls_end = at, is_new, calls_end
        self.calls_journal = hops.calls_journal(hop.job, hop.name, journal_id)
        self.budget_journal = hops.budget_journal(hop.job, hop.name)
        self.budget: BudgetTail | None = None
        """The budget as last read; None for a step without a budget."""
        self.state_journal = ""
        if hop.stateful is not None:
            partition = hops.partition_of(journal)
            self.state_journal = hops.state_journal(hop.job, hop.name, partition)
        self.state_end: int | None = None
        """The end of the state's changes; None: not known, as after a lost answer."""
        self._change: UnitPublish | None = None
        self._is_conflict = False

    def on_publish(self, change: UnitPublish, *, has_files: bool = False) -> PublishAction:
        """Publish a change. `has_files`: a sink adds rows of its own to the transaction."""
        if change.is_empty(self.at) and not has_files:
            return SkipPublish()
        self._change = change
        commit = None
        if change.next != self.at:
            commit = OffsetCommit(
                group=self.hop.group,
                journal=self.journal,
                offset=change.next,
                expected=self._expected,
            )
        return SendTransaction(tuple(self._appends(change)), commit)

    def on_answer(self, ends: Mapping[str, int]) -> PublishAction:
        """The transaction was carried out; `ends` are the new ends of its journals."""
        change = self._pending()
        budget = self.budget
        if change.budget:
            budget = BudgetTail(change.budget[-1], ends[self.budget_journal])
        calls_end = ends[self.calls_journal] if change.records else self.calls_end
        if change.state:
            self.state_end = ends[self.state_journal]
        return self._published(calls_end, budget)

    def on_answer_lost(self) -> PublishAction:
        """Nobody knows whether the transaction was carried out."""
        self._is_conflict = False
        if self._pending().state:
            self.state_end = None
        return self._look()

    def on_conflict(self) -> PublishAction:
        """The transaction was refused: a journal or the offset is not as expected.

        An earlier copy of the same change was carried out, or another worker or the budget moved.
        """
        self._is_conflict = True
        return self._look()

    def on_committed(self, committed: int | None) -> PublishAction:
        """The broker returned the unit's committed offset."""
        new_offset = self._pending().next
        return self._judged(
            what_became(expected=self._expected, new_offset=new_offset, committed=committed)
        )

    def on_calls(self, end: int, records: Sequence[CallRecord]) -> PublishAction:
        """The broker returned the end of the call records, and those behind the known end."""
        if end == self.calls_end:
            return self._judged(PublishOutcome.AGAIN)
        own = self._pending().records
        is_own = tuple(records[: len(own)]) == own
        return self._judged(PublishOutcome.DONE if is_own else PublishOutcome.OVERTAKEN)

    def on_tails(self, calls_end: int | None, budget: BudgetTail | None) -> PublishAction:
        """The broker returned the ends of journals, after a transaction whose answer was lost."""
        return self._published(
            self.calls_end if calls_end is None else calls_end,
            self.budget if budget is None else budget,
        )

    def on_budget(self, budget: BudgetTail) -> None:
        """The worker read the budget again."""
        self.budget = budget

    @property
    def _expected(self) -> int | None:
        return None if self.is_new else self.at

    def _pending(self) -> UnitPublish:
        assert self._change is not None, "nothing is being published"
        return self._change

    def _look(self) -> PublishAction:
        change = self._pending()
        if change.next != self.at:
            return ReadCommitted(self.hop.group, self.journal)
        if change.records:
            return ReadCallRecords(self.calls_journal, self.calls_end)
        return self._judged(PublishOutcome.AGAIN)

    def _judged(self, outcome: PublishOutcome) -> PublishAction:
        change = self._pending()
        match outcome:
            case PublishOutcome.DONE:
                calls = self.calls_journal if change.records else None
                budget = self.budget_journal if change.budget else None
                if calls is None and budget is None:
                    return self._published(self.calls_end, self.budget)
                return ReadTails(calls, budget)
            case _ if not self._is_conflict:
                return SendAgain()  # If another was faster, the next sending will say so.
            case PublishOutcome.AGAIN if change.budget:
                return ReportBudgetMoved()
            case _:
                return ReportLeaseLost()

    def _published(self, calls_end: int, budget: BudgetTail | None) -> PublishAction:
        change, self._change = self._pending(), None
        if change.next != self.at:
            self.at, self.is_new = change.next, False
        self.calls_end, self.budget = calls_end, budget
        return ReportPublished()

    # The content of a transaction.
    def _appends(self, change: UnitPublish) -> Iterator[JournalAppend]:
        job = self.hop.job
        yield from self._output_appends(change.outputs)
        if change.records:
            rows = call_records.to_rows(change.records)
            yield JournalAppend(journal=self.calls_journal, rows=rows, expected=self.calls_end)
        if change.budget:
            assert self.budget is not None
            shares = call_budget.to_rows(change.budget)
            yield JournalAppend(journal=self.budget_journal, rows=shares, expected=self.budget.end)
        if change.state:
            # The offset is expected in the same transaction, so no other worker can come between.
            rows = pa.Table.from_batches(change.state).combine_chunks()
            yield JournalAppend(journal=self.state_journal, rows=rows, expected=self.state_end)
        if change.skipped is not None:
            partition = hops.partition_of(self.journal)
            name = hops.skipped_journal(job, self.hop.name, partition)
            yield JournalAppend(journal=name, rows=change.skipped.to_rows())
        if change.size is not None:
            name = hops.size_journal(job, self.hop.name, hops.partition_of(self.journal))
            yield JournalAppend(journal=name, rows=change.size.to_rows())
        for step, letters in change.letters.items():
            rows = dead_letters.to_rows(letters)
            yield JournalAppend(journal=hops.dead_letters(job, step), rows=rows)
        if change.charges:
            rows = charges.to_rows(change.charges)
            yield JournalAppend(journal=hops.charges_journal(job, self.hop.name), rows=rows)
        if change.events:
            rows = job_events.to_rows(list(change.events))
            yield JournalAppend(journal=hops.runs_journal(job), rows=rows)

    def _output_appends(self, outputs: Sequence[pa.RecordBatch]) -> Iterator[JournalAppend]:
        """Output rows by journal: by key, or all to the partition of this unit."""
        hop, filled = self.hop, [batch for batch in outputs if batch.num_rows]
        if not filled or not hop.partitions:
            return
        table = pa.Table.from_batches(filled).combine_chunks()
        last = hop.steps[-1] if hop.steps else None
        if not isinstance(last, KeyBy):
            partition = kept_partition(self.journal, hop.partitions)
            yield JournalAppend(journal=self._output(partition), rows=table)
            return
        if last.tagged:
            came_from = pa.repeat(pa.scalar(self.journal_id, pa.int64()), table.num_rows)
            table = table.append_column(SOURCE_JOURNAL, came_from)
        parts = split(table, HashPartitioner(last.keys, hop.partitions), 0)
        for partition in range(hop.partitions):
            if parts.rows(partition):
                rows = pa.Table.from_batches([parts.part(partition)])
                yield JournalAppend(journal=self._output(partition), rows=rows)

    def _output(self, partition: int) -> str:
        return hops.output_journal(self.hop.job, self.hop.name, partition)
