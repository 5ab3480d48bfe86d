"""Removes rows that all their readers have read.

Saved rows of cheap steps are removed while the job runs: they can be made again. Rows of sources
and of expensive steps stay, so that a step that changes later can read them, until the user asks
to remove them. The number of removed rows is recorded first, so that counts stay right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow.compute as pc

from millrace.errors import StillNeeded
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import under
from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import JournalInfo, Lease
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import STATE_STEPS, JobPart, JobRecord
from millrace.pipeline.report.job_counts import Counting, journals_of
from millrace.pipeline.report.run_history import RunHistory

OldRows = Callable[[str, int, int], int]
"""Up to where the rows of a journal, between two offsets, are old enough to go."""
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
    limit: OldRows | None = None,
) -> TruncationReport:
    """Remove the rows that all readers in the job have read.

    Args:
        history: the job's record.
        record: the job.
        run: the number of the run that removes them.
        lease: the lease for the transaction.
        everything: also rows of sources and expensive steps, and old records of calls.
        limit: says up to where rows are old enough; all of them by default.
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
        for cut in _cuts(broker, record, part, journals, counting, limit)
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


def free_all(broker: Broker, job: str, limit: OldRows | None = None) -> TruncationReport:
    """Remove the read rows of all steps. A step that read them cannot be `reset` afterwards.

    `limit` says up to where rows of a journal are old enough.
    """
    history = RunHistory.open(broker, job)
    record = history.record() or JobRecord(job)
    last = history.last_started()
    return free_read_rows(
        history, record, run=0 if last is None else last.run, everything=True, limit=limit
    )


def _is_cheap(part: JobPart) -> bool:
    return not (part.is_source or part.is_sink or part.expensive)


def _cuts(
    broker: Broker,
    record: JobRecord,
    part: JobPart,
    journals: Mapping[str, JournalInfo],
    counting: Counting,
    limit: OldRows | None,
) -> list[_Truncation]:
    prefix = record.output_of(part)
    readers = record.readers(part.name)
    if prefix is None or not (readers or part.kind in STATE_STEPS):
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
        # Nobody reads rows of a step with state but the steps behind it: its table is its state.
        lowest = min(
            reader_positions or [replace(everyone, committed=everyone.end, backlog=0)],
            key=lambda position: int(position.committed or 0),
        )
        read_to = int(lowest.committed or 0)
        to = read_to if limit is None else min(read_to, limit(name, everyone.start, read_to))
        # With rows appended between the two looks the count would be wrong; there is a next time.
        if to > everyone.start and lowest.end == everyone.end:
            before = counting.rows_below(info.id, everyone.start)
            rows = everyone.backlog - lowest.backlog
            if to < read_to:
                rows -= _rows_between(broker, name, to, read_to)
            cuts.append(_Truncation(info, to, before + rows))
    return cuts


def _rows_between(broker: Broker, name: str, begin: int, end: int) -> int:
    """Committed rows of a part of a journal, counted by reading them."""
    rows = 0
    while begin < end:
        fetched = broker.read(name, begin)
        if fetched.num_rows:
            rows += int(pc.sum(pc.less(fetched.stored()[OFFSET], end)).as_py())
        if fetched.next_offset == begin:
            break
        begin = fetched.next_offset
    return rows


def _shorten_records(
    broker: Broker, record: JobRecord, journals: Mapping[str, JournalInfo]
) -> None:
    """Keep only the end of each record of calls: its last row holds all totals."""
    nobody = f"{hops.ROOT}/{record.job}"
    folders = (f"/{hops.RECORDED}/", f"/{hops.RECORDED_BEFORE}/")
    names = [
        name
        for name in journals
        if name.startswith(f"{nobody}/") and any(folder in name for folder in folders)
    ]
    for position in broker.positions([(nobody, name) for name in names]):
        fetched = broker.read(position.journal, max(position.start, position.end - _KEPT))
        if fetched.num_rows:
            offset = fetched.stored()[OFFSET][0].as_py()
            broker.truncate_before(position.journal, offset)
