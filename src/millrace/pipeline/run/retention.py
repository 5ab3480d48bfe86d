"""Removes rows that all their readers have read.

Saved rows of cheap steps are removed while the job runs: they can be made again. Rows of sources
and of expensive steps stay, so that a step that changes later can read them, until the user asks
to remove them. The number of removed rows is recorded first, so that counts stay right.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millrace.errors import StillNeeded
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import under
from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import JournalInfo, Lease
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import JobPart, JobRecord
from millrace.pipeline.report.job_counts import Counting, journals_of
from millrace.pipeline.report.run_history import RunHistory

_KEPT: Final = 16
"""Offsets of a record of calls that stay: its last row and the end marks of its transaction."""


@dataclass(frozen=True, slots=True)
class TruncationReport:
    """What a truncation removed."""

    rows: int
    journals: int


@dataclass(frozen=True, slots=True)
class _Truncation:
    """A journal to truncate, the offset, and the number of rows that ever lay below it."""

    info: JournalInfo
    to: int
    rows_below: int


def free_read_rows(
    history: RunHistory,
    record: JobRecord,
    *,
    run: int,
    lease: Lease | None = None,
    everything: bool,
) -> TruncationReport:
    """Remove the rows that all readers in the job have read.

    Args:
        history: the job's record.
        record: the job.
        run: the number of the run that removes them.
        lease: the lease for the transaction.
        everything: also rows of sources and expensive steps, and old records of calls.
    """
    broker = history.broker
    history.look()
    counting = Counting(broker, record)
    counting.note(history.events)
    journals = journals_of(broker, record)
    cuts = [
        cut
        for part in record.kept
        if _is_cheap(part) or (everything and part.kind != "journals")
        for cut in _cuts(broker, record, part, journals, counting)
    ]
    if cuts:
        detail = {"journals": {str(cut.info.id): [cut.to, cut.rows_below] for cut in cuts}}
        now_us = time.time_ns() // 1000
        event = JobEvent(at_us=now_us, run=run, happened=JobEventKind.TRUNCATED, detail=detail)
        history.add(event, lease=lease)
        fault("job.truncate.after_event")
    removed = 0
    for cut in cuts:
        try:
            removed += broker.truncate_before(cut.info.name, cut.to).removed
        except StillNeeded:
            continue  # Somebody outside the job reads it, too.
    if everything:
        _shorten_records(broker, record, journals)
    return TruncationReport(removed, len(cuts))


def free_all(broker: Broker, job: str) -> TruncationReport:
    """Remove the read rows of all steps. A step that read them cannot be `reset` afterwards."""
    history = RunHistory.open(broker, job)
    record = history.record() or JobRecord(job)
    last = history.last_started()
    return free_read_rows(history, record, run=0 if last is None else last.run, everything=True)


def _is_cheap(part: JobPart) -> bool:
    return not (part.is_source or part.is_sink or part.expensive)


def _cuts(
    broker: Broker,
    record: JobRecord,
    part: JobPart,
    journals: Mapping[str, JournalInfo],
    counting: Counting,
) -> list[_Truncation]:
    prefix = record.output_of(part)
    readers = record.readers(part.name)
    if prefix is None or not readers:
        return []
    nobody = f"{hops.ROOT}/{record.job}"
    cuts = []
    for name, info in journals.items():
        if not under(prefix, name):
            continue
        groups = [record.group_of(reader) for reader in readers]
        everyone, *reader_positions = broker.positions([(g, name) for g in (nobody, *groups)])
        done = [position.committed for position in reader_positions]
        if any(offset is None for offset in done):
            continue
        lowest = min(reader_positions, key=lambda position: int(position.committed or 0))
        to = int(lowest.committed or 0)
        # With rows appended between the two looks the count would be wrong; there is a next time.
        if to > everyone.start and lowest.end == everyone.end:
            before = counting.rows_below(info.id, everyone.start)
            cuts.append(_Truncation(info, to, before + everyone.backlog - lowest.backlog))
    return cuts


def _shorten_records(
    broker: Broker, record: JobRecord, journals: Mapping[str, JournalInfo]
) -> None:
    """Keep only the end of each record of calls: its last row holds all totals."""
    nobody = f"{hops.ROOT}/{record.job}"
    names = [name for name in journals if name.startswith(f"{nobody}/") and "/calls/" in name]
    for position in broker.positions([(nobody, name) for name in names]):
        fetched = broker.read(position.journal, max(position.start, position.end - _KEPT))
        if fetched.num_rows:
            offset = fetched.stored()[OFFSET][0].as_py()
            broker.truncate_before(position.journal, offset)
