"""Makes the journals that a job's workers write, and commits the first offsets of their inputs.

It also tells the units of steps that go by event time that their sources are finished.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from typing import Final

from millrace.errors import Conflict, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import under
from millrace.journal.core.values import ANYTHING, JournalInfo, Lease
from millrace.pipeline.core import dead_letters, hops, job_events
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.paid import call_records, charges
from millrace.pipeline.paid.pace import PACE_SCHEMA
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.restore.state_snapshots import SNAPSHOT_SCHEMA
from millrace.pipeline.run.beside import beside
from millrace.pipeline.sinks import file_records, kept_record
from millrace.pipeline.state.event_times import end_row
from millrace.pipeline.state.skipped_rows import SKIPPED_SCHEMA
from millrace.pipeline.state.state_operators import TIMED
from millrace.pipeline.state.state_rows import changes_schema
from millrace.pipeline.state.state_size import SIZE_SCHEMA

_COMMITS_MAX: Final = 1000
"""Offsets that are committed together."""


def ensure_records(broker: Broker, job: str, job_hops: Sequence[Hop]) -> None:
    """Make the journals that a run records in before it knows what has changed."""
    broker.create(hops.runs_journal(job), job_events.SCHEMA)
    for hop in job_hops:
        for name, schema in file_records(hop).items():
            broker.create(name, schema)


def ensure_journals(broker: Broker, job_hops: Sequence[Hop]) -> None:
    """Make the journals that are missing. It is safe to call this again.

    The group of each hop is committed to the start of every journal it reads, so that no row is
    truncated before the hop has read it.
    """
    for job in {hop.job for hop in job_hops}:
        broker.create(hops.runs_journal(job), job_events.SCHEMA)
    for hop in job_hops:
        _ensure_outputs(broker, hop)
    with beside(lambda: _commit_starts(broker, job_hops)) as starts:
        for hop in job_hops:
            inputs = journals_of(broker, hop)
            if hop.expensive is not None:
                names = [hops.calls_journal(hop.job, hop.name, info.id) for info in inputs]
                broker.create_many(names, call_records.SCHEMA)
            if hop.stateful is not None:
                partitions = sorted({hops.partition_of(info.name) for info in inputs})
                names = [hops.state_journal(hop.job, hop.name, number) for number in partitions]
                broker.create_many(names, changes_schema(hop.stateful.state))
                names = [hops.snapshots_journal(hop.job, hop.name, n) for n in partitions]
                broker.create_many(names, SNAPSHOT_SCHEMA)
                names = [hops.skipped_journal(hop.job, hop.name, n) for n in partitions]
                broker.create_many(names, SKIPPED_SCHEMA)
                names = [hops.size_journal(hop.job, hop.name, n) for n in partitions]
                broker.create_many(names, SIZE_SCHEMA)
        starts.answer()


def _commit_starts(broker: Broker, job_hops: Sequence[Hop]) -> None:
    """Commit the first offsets of all hops, in one transaction: far away each is a round trip."""
    while True:
        inputs = [(hop.group, info.name) for hop in job_hops for info in journals_of(broker, hop)]
        for group, record in filter(None, map(kept_record, job_hops)):
            inputs += [(group, info.name) for info in broker.list(record)]
        new = [at for at in broker.positions(inputs) if at.committed is None]
        for begin in range(0, len(new), _COMMITS_MAX):
            # Somebody else may have put one of them there meanwhile: look again.
            with contextlib.suppress(Conflict), broker.transaction() as t:
                for position in new[begin : begin + _COMMITS_MAX]:
                    t.commit(position.group, position.journal, position.start, expected=None)
        if not new:
            return


def begin_again(broker: Broker, job_hops: Sequence[Hop], names: Collection[str]) -> None:
    """Move hops that were set back to the start of the journals that they read now.

    They may have read the same journals long ago, when they were cut in another way.
    """
    for hop in job_hops:
        if hop.name in names:
            group_journals = [(hop.group, info.name) for info in journals_of(broker, hop)]
            for position in broker.positions(group_journals):
                if position.committed not in (None, position.start):
                    broker.commit(hop.group, position.journal, position.start, expected=ANYTHING)


def check_whole(broker: Broker, job_hops: Sequence[Hop]) -> None:
    """Refuse a step that never read a journal of its job from which rows are gone already."""
    for hop in job_hops:
        own = [j for j in journals_of(broker, hop) if under(f"{hops.ROOT}/{hop.job}", j.name)]
        for position in broker.positions([(hop.group, info.name) for info in own]):
            if position.committed is None and position.start > 0:
                before = position.journal.split("/")[2]
                raise UserError(
                    f"step {hop.name!r} of job {hop.job!r} is new, and rows that it would read are "
                    f"gone\n  found: {position.journal} begins at offset {position.start}\n"
                    f"  to fix: job.reset({before!r}) makes them again, with all that depends on "
                    "them"
                )


def waits_for_end(hop: Hop, record: JobRecord) -> bool:
    """Whether a step goes by event time, and nothing will come to it once all rows are done."""
    operator = None if hop.stateful is None else hop.stateful.operator
    if not isinstance(operator, TIMED) or operator.late_us is None:
        return False
    sources = [p for p in record.parts if p.is_source and p.name in record.before(hop.name)]
    return all(source.finished for source in sources)


def end_sources(history: RunHistory, hop: Hop, lease: Lease) -> bool:
    """Tell the units of a step that its sources have ended; False if they know that.

    All rows are done. A run that is killed in between tells them again, which changes nothing.
    """
    broker = history.broker
    journals = {
        hops.output_journal(hop.job, keyed.name, number): keyed.output
        for keyed in hop.keyed
        for number in range(keyed.partitions)
    }

    def ends() -> dict[str, int]:
        nobody = f"{hops.ROOT}/{hop.job}"
        found = broker.positions([(nobody, name) for name in journals])
        return {position.journal: int(position.end) for position in found}

    of_step = [e for e in history.events if e.step == hop.name]
    told = [e for e in of_step if e.happened is job_events.JobEventKind.SOURCES_ENDED]
    if told and told[-1].detail["ends"] == ends():
        return False
    with broker.transaction(lease) as t:
        for name, schema in journals.items():
            t.append(name, end_row(schema))
    fault("job.sources.after_end")
    event = job_events.JobEvent(
        at_us=time.time_ns() // 1000,
        run=lease.epoch,
        happened=job_events.JobEventKind.SOURCES_ENDED,
        step=hop.name,
        detail={"ends": ends()},
    )
    history.add(event, lease=lease)
    history.look()
    return True


def journals_of(broker: Broker, hop: Hop) -> tuple[JournalInfo, ...]:
    """The journals that a hop reads, by name."""
    retried = (hops.retried_prefix(hop.job, hop.name),) if hop.keeps_letters else ()
    listed = {info.name: info for given in (*hop.inputs, *retried) for info in broker.list(given)}
    return tuple(info for name, info in sorted(listed.items()) if hop.reads(name))


def _ensure_outputs(broker: Broker, hop: Hop) -> None:
    if hop.partitions:
        names = [hops.output_journal(hop.job, hop.name, n) for n in range(hop.partitions)]
        broker.create_many(names, hop.output)
    called: list[Map | FunctionSink] = [step for step in hop.steps if isinstance(step, Map)]
    called += [hop.sink] if isinstance(hop.sink, FunctionSink) else []
    for step in called:
        if step.options.on_error == "dead_letter" or step.options.on_doubt == "skip":
            broker.create(hops.dead_letters(hop.job, step.name), dead_letters.SCHEMA)
    if hop.expensive is not None:
        broker.create(hops.charges_journal(hop.job, hop.name), charges.SCHEMA)
    if hop.expensive is not None and hop.options.limits is not None:
        broker.create(hops.pace_journal(hop.job, hop.name), PACE_SCHEMA)
    if hop.expensive is not None and hop.options.budget is not None:
        broker.create(hops.budget_journal(hop.job, hop.name), call_records.BUDGET_SCHEMA)
