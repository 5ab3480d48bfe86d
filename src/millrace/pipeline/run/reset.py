"""Sets a step back to its beginning, with all steps that depend on it.

A reset records the parts to remove, removes them one by one, and records that they are gone.
Invariant: after a kill at any point the next run, or the next reset, finishes the old reset before
it does anything else. Repeating a reset does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from millrace.errors import LeaseHeld, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import under
from millrace.journal.core.values import ANYTHING, Lease
from millrace.names import existing
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import ParquetSink
from millrace.pipeline.core.job_record import (
    APPENDING_SINKS,
    RECORDED,
    JobPart,
    JobRecord,
)
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.report.job_counts import journals_of, units_of
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.lease_holders import new_holder
from millrace.pipeline.sinks import clear_sink
from millrace.storage.storage_options import StorageOptions

SinkAccess = Mapping[str, StorageOptions]
"""By sink: how its bucket is reached, where the environment does not say it."""


def sink_access(graph: JobGraph) -> SinkAccess:
    """How the buckets of a job's sinks are reached."""
    return {node.name: node.options for node in graph.nodes if isinstance(node, ParquetSink)}


def reset_step(
    broker: Broker,
    job: str,
    step: str,
    access: SinkAccess | None = None,
    *,
    append_again: bool = False,
) -> tuple[str, ...]:
    """Set a step and all steps downstream back to the start; returns their names.

    Args:
        broker: the broker of the job's journals.
        job: the name of the job.
        step: a step, a sink or a source; the next run saves the rows of a source again.
        access: how buckets of its sinks are reached, where the environment does not say it.
        append_again: let rows that a sink appended to a journal of yours be appended once more.
    """
    history = RunHistory.open(broker, job)
    record = history.record()
    part = None if record is None else record.hop_of(step)
    if record is None or part is None or part.kind == "journals":
        known = () if record is None else record.kept
        names = existing(step, [p.name for p in known if p.kind != "journals"])
        raise UserError(
            f"job {job!r} has no step {step!r}\n  found: {names}\n  to fix: give one of these"
        )
    lease = hold_job(broker, job)
    try:
        finish_reset(history, lease, access)
        reset_parts(history, record, [part.name], lease, access, append_again=append_again)
    finally:
        broker.release(lease)
    return tuple(part.name for part in record.downstream(part.name))


def reset_parts(
    history: RunHistory,
    record: JobRecord,
    names: Sequence[str],
    lease: Lease,
    access: SinkAccess | None = None,
    *,
    append_again: bool = False,
) -> None:
    """Set parts and all parts that depend on them back, under the lease of the job."""
    gone = [
        part
        for part in record.kept
        if any(part in record.downstream(name) for name in names) and part.kind != "journals"
    ]
    _refuse_truncated(history, record, gone)
    if not append_again:
        _refuse_appended(history.broker, record, gone)
    event = JobEvent(
        at_us=time.time_ns() // 1000,
        run=lease.epoch,
        happened=JobEventKind.RESET,
        step=names[0],
        detail={"parts": [part.name for part in gone], RECORDED: record.to_json()},
    )
    history.add(event, lease=lease)
    fault("job.reset.after_event")
    history.look()
    finish_reset(history, lease, access)


def finish_reset(history: RunHistory, lease: Lease, access: SinkAccess | None = None) -> bool:
    """Finish a reset that was begun; returns whether there was one."""
    begun = history.unfinished_reset()
    if begun is None:
        return False
    record = JobRecord.from_event(begun.detail)
    # From the end: a step's input is there as long as anything of the step is.
    for name in reversed(begun.detail["parts"]):
        part = record.part(name)
        assert part is not None, "recorded with the job"
        _remove(history.broker, record, part, access or {})
        fault("job.reset.after_part")
    done = JobEvent(
        at_us=time.time_ns() // 1000,
        run=lease.epoch,
        happened=JobEventKind.RESET,
        step=begun.step,
        detail=begun.detail | {"done": True},
    )
    fault("job.reset.before_done")
    history.add(done, lease=lease)
    history.look()
    return True


def _remove(broker: Broker, record: JobRecord, part: JobPart, access: SinkAccess) -> None:
    """Remove all journals and files of a part except its inputs, and set its group to the start."""
    journals = journals_of(broker, record)
    for info in units_of(part, journals):
        # A worker that wakes up late publishes nothing from now on.
        broker.fence(hops.unit_lease(record.job, part.name, info.id))
        start = broker.start_offset(info.name)
        group = record.group_of(part)
        if broker.committed(group, info.name) is not None:
            broker.commit(group, info.name, start, expected=ANYTHING)
    if part.kind == "sink_parquet" and hops.files_journal(record.job, part.name) in journals:
        _clear_files(broker, record, part, access)
    roots = [hops.step_root(record.job, name) for name in (*part.fused, part.name)]
    for name in journals:
        if any(name.startswith(f"{root}/") for root in roots):
            broker.delete(name)


def _clear_files(broker: Broker, record: JobRecord, part: JobPart, access: SinkAccess) -> None:
    """Remove the files that a sink has written."""
    nothing = pa.schema([])
    hop = Hop(
        job=record.job,
        name=part.name,
        inputs=part.prefixes,
        schema=nothing,
        steps=(),
        sink=ParquetSink(
            name=part.name,
            schema=nothing,
            path=part.target,
            options=access.get(part.name, StorageOptions()),
        ),
        output=nothing,
        partitions=0,
        depth=part.depth,
        feeds=(),
    )
    clear_sink(hop, broker)


def _refuse_truncated(history: RunHistory, record: JobRecord, gone: Sequence[JobPart]) -> None:
    """Refuse if rows that would be read again are gone; name the steps to reset instead."""
    journals = journals_of(history.broker, record)
    names = {part.name for part in gone}
    for part in gone:
        made_anew = [record.output_of(other) for other in gone]
        group_journals = [
            (record.group_of(part), info.name)
            for info in units_of(part, journals)
            if not any(prefix and under(prefix, info.name) for prefix in made_anew)
        ]
        first = history.first_offsets()
        cut = [
            p for p in history.broker.positions(group_journals) if p.start > first.get(p.journal, 0)
        ]
        if cut:
            above = ", ".join(repr(name) for name in record.feeders(part.name) if name not in names)
            raise UserError(
                f"step {part.name!r} cannot be set back: its input was truncated\n"
                f"  found: {cut[0].journal} begins at offset {cut[0].start}\n"
                f"  to fix: reset {above} instead, which makes these rows again"
            )


def _refuse_appended(broker: Broker, record: JobRecord, gone: Sequence[JobPart]) -> None:
    for part in gone:
        if part.kind not in APPENDING_SINKS:
            continue
        what = APPENDING_SINKS[part.kind]
        group = record.group_of(part)
        journals = journals_of(broker, record)
        group_journals = [(group, info.name) for info in units_of(part, journals)]
        if any((p.committed or 0) > p.start for p in broker.positions(group_journals)):
            raise UserError(
                f"sink {part.name!r} has appended rows to {what} {part.target!r}, which is "
                "yours\n  found: a reset would append them once more\n"
                f"  to fix: say append_again=True if that is wanted; delete the {what} first if not"
            )


def hold_job(broker: Broker, job: str) -> Lease:
    """Take the run lease of the job, so that no process runs it during the reset."""
    try:
        return broker.acquire(hops.run_lease(job), new_holder("reset by "))
    except LeaseHeld as error:
        name = hops.run_lease(job)
        holder = next(
            (lease.holder for lease in broker.leases(name) if lease.name == name), "somebody"
        )
        raise LeaseHeld(
            f"job {job!r} cannot be changed while it runs\n  run by: {holder}\n"
            "  to fix: stop it first, or wait for its end"
        ) from error
