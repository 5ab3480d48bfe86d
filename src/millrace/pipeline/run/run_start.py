"""Begins a run of a job: compares the job with its earlier runs, and saves the rows of sources.

Invariant: the run is recorded before rows are saved or worked on. Nothing is recorded if the job
has changed and the user has not chosen what to do about the change.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import JobChanged, MillraceError, WorkspaceUnknown
from millrace.faults import fault
from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.pipeline.core.hops import ROOT, Hop, runs_journal
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import OnChange, SavedSource
from millrace.pipeline.core.job_record import RECORDED, JobRecord
from millrace.pipeline.define import job_changes
from millrace.pipeline.define.job import Job, graph_of
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.job_recording import kept_before, records_of, set_back
from millrace.pipeline.report.job_counts import Counted, Counting, journals_of
from millrace.pipeline.report.run_history import JOB_WORKSPACE, RunHistory
from millrace.pipeline.run.beside import beside
from millrace.pipeline.run.job_journals import (
    begin_again,
    check_whole,
    ensure_journals,
    ensure_records,
)
from millrace.pipeline.run.job_runtime import (
    JobHome,
    RunContext,
    SavedSourceReader,
    SourceIntake,
)
from millrace.pipeline.run.job_status import baseline
from millrace.pipeline.run.lease_holders import who_am_i
from millrace.pipeline.run.reset import SinkAccess, finish_reset, reset_parts, sink_access
from millrace.pipeline.run.run_lease import RunLease
from millrace.pipeline.sinks import check_sink
from millrace.transport.owner.owner_endpoint import JournalAddress

_JOB_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run that has begun."""

    record: JobRecord
    before: Counted
    """The counts when the run began."""
    ends: dict[str, int]
    """The ends of the user's journals that the job reads, when the run began."""
    job_id: str
    """The id of the job, unique over all workspaces."""
    events_from: int
    """The offset of the run's first event in the job's record."""
    progress: dict[str, str] = field(default_factory=dict)
    """By sink: the name of its progress, where that is kept with its rows."""


def recall_kept(broker: Broker, graph: JobGraph) -> None:
    """Tell a job which of its steps were kept when they last ran: they stay kept until a reset."""
    # Where there is no workspace yet, the run itself makes it.
    with contextlib.suppress(WorkspaceUnknown):
        if broker.list(runs_journal(graph.job)):
            graph.kept_before = kept_before(RunHistory.open(broker, graph.job).events)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRun:
    """What a run has once it holds the lease of its job."""

    lease: RunLease
    history: RunHistory
    where: JournalAddress
    """How tasks reach the journals."""


def take_run(workspace: JobHome, job: str, hops: Sequence[Hop], stop: threading.Event) -> TakenRun:
    """Take the lease of a job, while the journals are made that every run records in."""
    broker = broker_of(workspace.journals)
    with (
        beside(lambda: ensure_records(broker, job, hops)) as records,
        beside(workspace.journal_address) as where,
    ):
        lease = RunLease(broker, job, workspace.config, stop)
        try:
            records.answer()
            history = RunHistory.open(broker, job)
            return TakenRun(lease=lease, history=history, where=where.answer())
        except BaseException:
            with contextlib.suppress(MillraceError):
                lease.release()
            raise


def begin(
    job: Job,
    hops: Sequence[Hop],
    context: RunContext,
    intake: SourceIntake,
    on_change: OnChange,
    zone: str,
) -> Begun:
    """Decide about changes, record the start, save the rows of sources, make journals."""
    history, broker, lease = context.history, context.broker, context.lease
    for hop in hops:
        check_sink(hop, broker, context.config)
    access = sink_access(graph_of(job))
    was_reset = finish_reset(history, lease, access)
    sources = [node for node in graph_of(job).nodes if isinstance(node, SavedSource)]
    readers = [intake.reader(context, source) for source in sources]
    record = graph_of(job).record(zone)
    again = _settle(history, readers, intake, record, lease, on_change, access)
    begin_again(broker, hops, set_back(history.events).fresh)
    if again or was_reset:
        for hop in hops:
            check_sink(hop, broker, context.config)  # What it needs went with what was set back.
    check_whole(broker, hops)
    before = _count(history, record)
    workspace = context.where.workspace_id
    job_id = history.job_id(workspace) or secrets.token_hex(_JOB_ID_BYTES)
    started = _started(history, record, before, lease)
    started.detail.update({"job_id": job_id, JOB_WORKSPACE: workspace})
    history.add(started, lease=lease)
    history.look()
    events_from = history.offset
    fault("job.run.after_started")
    _save_sources(readers, hops, context)
    fault("job.run.after_sources")
    ends = _ends(history, record)
    return Begun(
        record=record,
        before=before,
        ends=ends,
        job_id=job_id,
        events_from=events_from,
        progress={hop.name: sink_progress(history, job_id, hop) for hop in hops if hop.sink},
    )


def _save_sources(
    readers: Sequence[SavedSourceReader], hops: Sequence[Hop], context: RunContext
) -> None:
    """Save the rows of sources, while the journals of the job are made."""

    def make_journals() -> None:
        for reader in readers:
            if not reader.is_saved:
                reader.make_journals()
        ensure_journals(context.broker, hops)

    with beside(make_journals) as journals:
        for reader in readers:
            context.check()
            reader.save_missing(journals.answer)
        journals.answer()


def sink_progress(history: RunHistory, job_id: str, hop: Hop) -> str:
    """The name of a sink's progress where its rows are: another one after each reset of it."""
    resets = [event for event in history.events if event.happened is JobEventKind.RESET]
    number = sum(bool(e.detail.get("done")) and hop.name in e.detail["parts"] for e in resets)
    return f"{ROOT}/{job_id}/{hop.job}/{hop.name}/progress-{number}"


def _settle(
    history: RunHistory,
    readers: Sequence[SavedSourceReader],
    intake: SourceIntake,
    record: JobRecord,
    lease: Lease,
    on_change: OnChange,
    access: SinkAccess,
) -> list[str]:
    """Set back the steps that the user wants to run again; raise if the user has not chosen.

    Returns the parts that were set back, with all parts that depend on them.
    """
    earlier = history.record()
    if earlier is None:
        return []
    last = earlier.without_fused()
    # A step that the last run left out may have done something before.
    back = [part for part in record.without_fused().parts if last.part(part.name) is None]
    known = JobRecord(last.job, (*last.parts, *back))
    rows, calls = _done(_count(history, known))
    source_changes = {reader.name: reader.changed() for reader in readers if reader.is_saved}
    other_rows = [change for change in source_changes.values() if change is not None]
    same = [name for name, change in source_changes.items() if change is None]
    before, since = records_of(history.events), set_back(history.events)
    differs = job_changes.compare(before, record, same=same, since=since)
    again = [*job_changes.decide(differs, on_change, rows=rows, calls=calls)]
    if other_rows and on_change == "fail":
        raise JobChanged(intake.refusal(history.job, other_rows))
    if on_change == "restart":
        again += [change.source for change in other_rows]
    if again:
        reset_parts(history, known, [*dict.fromkeys(again)], lease, access)
    return again


def _count(history: RunHistory, record: JobRecord) -> Counted:
    counting = Counting(history.broker, record)
    counting.note(history.events)
    return counting.count()


def _done(counted: Counted) -> tuple[dict[str, int], dict[str, int]]:
    rows = {name: counts.rows_in or counts.rows_out or 0 for name, counts in counted.parts.items()}
    calls = {name: c.calls.calls for name, c in counted.parts.items() if c.calls is not None}
    return rows, calls


def _started(history: RunHistory, record: JobRecord, before: Counted, lease: Lease) -> JobEvent:
    starts = {
        name: int(history.broker.start_offset(name))
        for name in _journals_of_others(history, record)
    }
    return JobEvent(
        at_us=time.time_ns() // 1000,
        run=lease.epoch,
        happened=JobEventKind.STARTED,
        detail={
            "who": who_am_i(),
            RECORDED: record.to_json(),
            "before": baseline(before),
            "starts": starts,
        },
    )


def _ends(history: RunHistory, record: JobRecord) -> dict[str, int]:
    names = _journals_of_others(history, record)
    return {name: int(history.broker.end_offset(name)) for name in names}


def _journals_of_others(history: RunHistory, record: JobRecord) -> list[str]:
    own = f"jobs/{record.job}/"
    return [name for name in journals_of(history.broker, record) if not name.startswith(own)]
