"""Removes what is older than a workspace's retention says, and only what nobody needs.

Rows of journals go up to the first row that is young, that a consumer group has yet to read, or
that an open reader may ask for. A reader behind the cut gets `OffsetOutOfRange`, never an empty
answer.

Invariant: each removal is whole by itself and may be repeated. A pass that is killed leaves less,
and nothing half.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import JournalUnknown, LeaseHeld, OffsetOutOfRange, StillNeeded
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.clocks import clock_at
from millrace.journal.core.journal_names import under
from millrace.journal.core.row_format import CLOCK, OFFSET
from millrace.journal.core.values import JournalInfo
from millrace.pipeline.core import hops
from millrace.pipeline.report.run_history import RunHistory, job_names
from millrace.pipeline.run.large_objects import remove_large
from millrace.pipeline.run.lease_holders import running
from millrace.pipeline.run.retention import free_all
from millrace.reads.session import checkpoint_store
from millrace.shuffle import cleanup
from millrace.shuffle.cleanup import CleanupReport
from millrace.storage.store import Store
from millrace.upkeep.retention_rules import RetentionRules

DONE_FILE: Final = "retention.done"
"""Its time of change is that of the last pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRows:
    """Rows of a journal that are older than its rule says."""

    journal: str
    begin: int
    end: int
    """Offsets from `begin` up to `end` can go now."""
    old_end: int
    """Rows up to here are old enough; those behind `end` are needed."""
    needed_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """What a pass removed."""

    shuffles: CleanupReport = field(default_factory=CleanupReport)
    journals: dict[str, int] = field(default_factory=dict)
    """Rows by journal."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Rows by job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedWorkspace:
    """A workspace whose retention is carried out."""

    store: Store
    config: Config
    broker: Broker
    rules: RetentionRules
    clean_hosts: Callable[[CleanupReport], CleanupReport]
    """Removes from hosts' own folders what a clean-up removed from the workspace."""
    reading: Callable[[str], int | None] = lambda _name: None
    """From where on open readers may ask for rows of a journal."""
    is_stopping: Callable[[], bool] = lambda: False
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


def is_due(store: Store, config: Config, now_ms: int) -> bool:
    """Whether the last pass was long enough ago."""
    done_ms = store.changed_at_ms(DONE_FILE)
    return done_ms is None or now_ms - done_ms >= ms(config.retention_interval)


def carry_out(workspace: RetainedWorkspace) -> RetentionReport:
    """Remove what may go. Ends early, with what was done, when the process is ending."""
    shuffles = _remove_shuffles(workspace)
    journals = dict(_remove_rows(workspace))
    jobs = dict(_remove_from_jobs(workspace))
    if journals or jobs:
        workspace.broker.tidy()
    if not workspace.is_stopping():
        workspace.store.touch(DONE_FILE)
    return RetentionReport(shuffles=shuffles, journals=journals, jobs=jobs)


def due_rows(workspace: RetainedWorkspace) -> Iterator[DueRows]:
    """The journals that have rows to remove, or that would have if nobody needed them."""
    waiting = _waiting(workspace.broker)
    for info in workspace.broker.list():
        keep_ms = workspace.rules.of_journal(info.name)
        if workspace.is_stopping():
            return
        if keep_ms is None:
            continue
        try:
            due = _due(workspace, info, keep_ms, waiting)
        except (JournalUnknown, OffsetOutOfRange):
            continue  # Deleted, or truncated by somebody else.
        if due is not None:
            yield due


def old_jobs(workspace: RetainedWorkspace) -> Iterator[tuple[str, int]]:
    """The jobs that have a rule, with how long they keep rows that were read."""
    if workspace.rules.jobs:
        for name in job_names(workspace.broker):
            keep_ms = workspace.rules.of_job(name)
            if keep_ms is not None:
                yield name, keep_ms


def first_young(broker: Broker, name: str, begin: int, end: int, before_ms: int) -> int:
    """The offset of the first row that was written since then; `end` if there is none.

    Offsets rise with the time rows were written, so few rows are read.
    """
    limit = clock_at(before_ms * 1_000_000)
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        at, clock = _row_at(broker, name, middle, high)
        if clock is None:
            high = middle
        elif clock < limit:
            low = at + 1
        else:
            high = middle
    return low


def _row_at(broker: Broker, name: str, offset: int, end: int) -> tuple[int, int | None]:
    """The first row from an offset on, and its clock; None if there is none below `end`."""
    while offset < end:
        fetched = broker.read(name, offset, rows_max=1)
        if fetched.num_rows:
            row = fetched.stored().slice(0, 1)
            at = int(row[OFFSET][0].as_py())
            return (at, int(row[CLOCK][0].as_py())) if at < end else (end, None)
        if fetched.next_offset == offset:
            break
        offset = fetched.next_offset
    return end, None


def _due(
    workspace: RetainedWorkspace, info: JournalInfo, keep_ms: int, waiting: list[tuple[str, str]]
) -> DueRows | None:
    broker, name = workspace.broker, info.name
    begin, end = broker.start_offset(name), broker.end_offset(name)
    if begin == end:
        return None
    old_end = first_young(broker, name, begin, end, workspace.now_ms() - keep_ms)
    if old_end == begin:
        return None
    limit, needed_by = (
        (old_end, None)
        if workspace.rules.drop_unread
        else _needed(workspace, name, begin, old_end, waiting)
    )
    return DueRows(journal=name, begin=begin, end=limit, old_end=old_end, needed_by=needed_by)


def _needed(
    workspace: RetainedWorkspace,
    name: str,
    begin: int,
    old_end: int,
    waiting: list[tuple[str, str]],
) -> tuple[int, str | None]:
    """Up to where rows are not needed, and who needs the next one."""
    broker = workspace.broker
    for prefix, group in waiting:
        if under(prefix, name) and broker.committed(group, name) is None:
            return begin, f"{group}, which runs and has committed nothing yet"
    limits: list[tuple[int, str | None]] = [(old_end, None)]
    if (committed := broker.min_committed(name)) is not None:
        limits.append((int(committed), "a consumer group"))
    if (reading := workspace.reading(name)) is not None:
        limits.append((reading, "an open reader"))
    limit, needed_by = min(limits, key=lambda entry: entry[0])
    return max(begin, limit), needed_by if limit < old_end else None


def _waiting(broker: Broker) -> list[tuple[str, str]]:
    """Prefixes and groups of running jobs and reads: they may not have committed yet."""
    held = {lease.name for lease in broker.leases()}
    found: list[tuple[str, str]] = []
    for job in job_names(broker):
        record = RunHistory.open(broker, job).record() if hops.run_lease(job) in held else None
        for part in () if record is None else record.kept:
            prefix = record.output_of(part) if record is not None else None
            if part.kind == "journals" and prefix is not None and record is not None:
                found += [(prefix, record.group_of(r)) for r in record.readers(part.name)]
    for name in checkpoint_store.read_names(broker):
        group = checkpoint_store.group_name(name)
        read = checkpoint_store.stored_read(broker, name) if group in held else None
        found += [] if read is None else [(binding.prefix, group) for binding in read.bindings]
    return found


def _remove_rows(workspace: RetainedWorkspace) -> Iterator[tuple[str, int]]:
    for due in due_rows(workspace):
        if due.end == due.begin:
            continue
        fault("retention.before_truncate")
        try:
            done = workspace.broker.truncate_before(
                due.journal, due.end, force=workspace.rules.drop_unread
            )
        except (StillNeeded, JournalUnknown, OffsetOutOfRange):
            continue  # A reader, a writer or somebody else came meanwhile; there is a next time.
        fault("retention.after_truncate")
        yield due.journal, done.removed


def _remove_from_jobs(workspace: RetainedWorkspace) -> Iterator[tuple[str, int]]:
    for name, keep_ms in old_jobs(workspace):
        if workspace.is_stopping():
            return
        before_ms = workspace.now_ms() - keep_ms
        fault("retention.before_job")
        freed = free_all(
            workspace.broker,
            name,
            limit=lambda journal, begin, end: first_young(
                workspace.broker,
                journal,
                begin,
                end,
                before_ms,  # noqa: B023 - called at once
            ),
        )
        _remove_large(workspace, name)
        if freed.rows:
            yield name, freed.rows


def _remove_large(workspace: RetainedWorkspace, job: str) -> None:
    """Remove the job's large values that no row refers to; in a bucket while it does not run."""
    if workspace.store.remote and running(workspace.broker, job) is not None:
        return
    with contextlib.suppress(LeaseHeld):  # A run has begun meanwhile; there is a next time.
        remove_large(workspace.broker, workspace.store.root, job, workspace.config)


def _remove_shuffles(workspace: RetainedWorkspace) -> CleanupReport:
    keep_ms = workspace.rules.shuffles_ms
    if keep_ms is None:
        return CleanupReport()
    store, config, now_ms = workspace.store, workspace.config, workspace.now_ms()
    fault("retention.before_shuffles")
    old = cleanup.remove_expired(store, ttl_ms=keep_ms, now_ms=now_ms, config=config)
    dropped = cleanup.drop_runs(store, older_than_ms=keep_ms, now_ms=now_ms, config=config)
    fault("retention.before_hosts")
    return workspace.clean_hosts(
        CleanupReport(
            expired=old.expired + dropped.expired,
            abandoned=old.abandoned,
            runs=dropped.runs,
            inputs=old.inputs,
            bytes=old.bytes + dropped.bytes,
        )
    )
