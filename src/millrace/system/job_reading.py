"""Jobs as they lie in their journals: names, records, counts, without what is not asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.errors import JournalUnknown
from millrace.journal.core.journal_names import JournalChoice
from millrace.journal.embedded.journals_at_rest import RestingJournals
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_status import JobStatus, job_status
from millrace.pipeline.run.lease_holders import running
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import Asked

_RUNS: Final = f"{hops.ROOT}/*/runs"
_READ_ROWS: Final = 100_000


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job's events, and the journals of its own and of those it reads."""

    history: RunHistory
    record: JobRecord
    journals: RestingJournals


def names_of_jobs(workspace: RestingWorkspace) -> list[str]:
    """The jobs that were run, by name."""
    if not workspace.has_journals():
        return []
    with workspace.pages() as pages:
        return _job_names(pages.names_like(_RUNS, within=hops.ROOT))


def newest_jobs(workspace: RestingWorkspace) -> list[str]:
    """The jobs, those first whose first run was last."""
    if not workspace.has_journals():
        return []
    with workspace.pages() as pages:
        return _job_names(pages.names_like(_RUNS, within=hops.ROOT, order="created"))


def _job_names(names: Sequence[str]) -> list[str]:
    """The jobs that these journals belong to; those of steps are left out."""
    depth = hops.runs_journal("x").count("/")
    return [_job_of(name) for name in names if name.count("/") == depth]


def names_of_running_jobs(workspace: RestingWorkspace) -> frozenset[str]:
    """The jobs that some process runs now, by name."""
    with workspace.pages() as pages:
        leases = pages.held_leases(hops.run_lease("*"), now_ms=time.time_ns() // 1_000_000)
    return frozenset(_job_of(name) for name in leases if name == hops.run_lease(_job_of(name)))


def _job_of(name: str) -> str:
    return name.split("/")[1]


@contextmanager
def seen_job(workspace: RestingWorkspace, name: str) -> Iterator[SeenJob]:
    """A job, with its journals. Raises `UserError` if there is none of this name."""
    own = f"{hops.ROOT}/{name}"
    runs_alone = JournalChoice(names=(hops.runs_journal(name), hops.run_lease(name)))
    with workspace.journals(runs_alone) as journals:
        record = _opened(workspace, journals, name).record() or JobRecord(name)
    others = {prefix for part in record.kept for prefix in part.prefixes}
    outside = sorted(prefix for prefix in others if not prefix.startswith(f"{own}/"))
    with workspace.journals(JournalChoice(prefixes=(own, *outside))) as journals:
        yield SeenJob(_opened(workspace, journals, name), record, journals)


@contextmanager
def seen_runs(workspace: RestingWorkspace, name: str) -> Iterator[SeenJob]:
    """A job with the journal of its runs alone: for its events."""
    alone = JournalChoice(names=(hops.runs_journal(name), hops.run_lease(name)))
    with workspace.journals(alone) as journals:
        history = _opened(workspace, journals, name)
        yield SeenJob(history, history.record() or JobRecord(name), journals)


def names_asked(workspace: RestingWorkspace, asked: Asked) -> list[str]:
    """The job that is asked for, or all."""
    wanted = asked.text("job")
    return [wanted] if wanted is not None else names_of_jobs(workspace)


def all_stored(
    journals: RestingJournals, name: str, offset: int | None = None
) -> Iterator[pa.Table]:
    """Stored rows of a journal from an offset on; nothing if there is no such journal."""
    if not journals.knows(name):
        return
    at = int(journals.start_offset(name)) if offset is None else offset
    while True:
        fetched = journals.read(name, at, rows_max=_READ_ROWS)
        if fetched.num_rows:
            yield fetched.stored()
        if fetched.next_offset >= fetched.end_offset or fetched.next_offset == at:
            return
        at = int(fetched.next_offset)


def status_of_job(workspace: RestingWorkspace, name: str) -> JobStatus:
    """How far a job is."""
    with seen_job(workspace, name) as job:
        return job_status(job.journals, name, has_groups=False)


def runner_of(job: SeenJob) -> str | None:
    """The process that runs the job now, if one does."""
    lease = running(job.journals, job.record.job)
    return None if lease is None else lease.holder


def _opened(workspace: RestingWorkspace, journals: RestingJournals, name: str) -> RunHistory:
    try:
        journals.get(hops.runs_journal(name))
    except JournalUnknown:
        # The error is to name all the jobs there are.
        with workspace.journals(JournalChoice(prefixes=(hops.ROOT,))) as every:
            return RunHistory.open(every, name)
    return RunHistory.open(journals, name)
