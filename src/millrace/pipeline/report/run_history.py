"""The record of a job's runs: reads its events, adds events, and derives the state of each run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from millrace.errors import JournalUnknown, UserError
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.names import existing
from millrace.pipeline.core import hops, job_events
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.report.job_report import RunEntry, State

_ENDINGS: dict[JobEventKind, State] = {
    JobEventKind.FAILED: "failed",
    JobEventKind.HELD: "held",
    JobEventKind.SPENT: "spent",
    JobEventKind.WAITING: "waiting",
}
STOPPING = frozenset(_ENDINGS)
JOB_WORKSPACE: Final = "workspace"
"""What the start of a run calls the workspace that it ran in."""


@dataclass(slots=True)
class RunHistory:
    """All events of a job so far."""

    broker: Broker
    job: str
    events: list[JobEvent] = field(default_factory=list)
    offset: int = 0
    """The offset of the next event to read."""

    @classmethod
    def begin(cls, broker: Broker, job: str) -> RunHistory:
        """The record of a job, made if there is none."""
        broker.create(hops.runs_journal(job), job_events.SCHEMA)
        return cls.open(broker, job)

    @classmethod
    def open(cls, broker: Broker, job: str) -> RunHistory:
        """The record of a job that was run before."""
        history = cls(broker, job)
        try:
            history.look()
        except JournalUnknown as error:
            known = existing(job, job_names(broker))
            raise UserError(
                f"there is no job {job!r} in this workspace\n  found: {known}\n"
                "  to fix: give one of these, or run it first"
            ) from error
        return history

    def look(self) -> list[JobEvent]:
        """Read the events since the last look."""
        fresh: list[JobEvent] = []
        while True:
            fetched = self.broker.read(hops.runs_journal(self.job), self.offset)
            fresh += job_events.from_rows(fetched.rows())
            if fetched.next_offset == self.offset:
                self.events += fresh
                return fresh
            self.offset = fetched.next_offset

    def add(self, *added: JobEvent, lease: Lease | None = None) -> None:
        """Add events to the record."""
        with self.broker.transaction(lease) as t:
            t.append(hops.runs_journal(self.job), job_events.to_rows(list(added)))

    def last_started(self) -> JobEvent | None:
        """The start event of the last run."""
        return self._last(JobEventKind.STARTED)

    def job_id(self, workspace: str | None) -> str | None:
        """The id of the job, unique over all workspaces: made by its first run in this one.

        A restored copy of a workspace has other ids than its original, which may still live.
        """
        for event in reversed(self.events):
            if event.happened is JobEventKind.STARTED and "job_id" in event.detail:
                ran_in = event.detail.get(JOB_WORKSPACE)
                is_copied = None not in (ran_in, workspace) and ran_in != workspace
                return None if is_copied else str(event.detail["job_id"])
        return None

    def record(self) -> JobRecord | None:
        """The job as its last run recorded it."""
        last = self.last_started()
        return None if last is None else JobRecord.from_event(last.detail)

    def taken_in(self, source: str) -> list[JobEvent]:
        """The events of saved rows of a source; none if the source was set back since."""
        kept: list[JobEvent] = []
        for event in self.events:
            if event.happened is JobEventKind.RESET and source in event.detail["parts"]:
                kept = []
            elif event.happened is JobEventKind.TAKEN_IN and event.step == source:
                kept.append(event)
        return kept

    def first_offsets(self) -> dict[str, int]:
        """The start offsets of the user's journals when the job first read them."""
        offsets: dict[str, int] = {}
        for event in self.events:
            if event.happened is JobEventKind.STARTED:
                offsets = event.detail.get("starts", {}) | offsets
        return offsets

    def unfinished_reset(self) -> JobEvent | None:
        """A reset that was begun and not finished."""
        last = self._last(JobEventKind.RESET)
        return None if last is None or last.detail.get("done") else last

    def runs(self, running: int | None = None) -> tuple[RunEntry, ...]:
        """All runs; a run without an end event was killed, unless it is `running`."""
        started: list[JobEvent] = []
        ended: dict[int, JobEvent] = {}
        stopping: dict[int, JobEvent] = {}
        for event in self.events:
            if event.happened is JobEventKind.STARTED:
                started.append(event)
            elif event.happened is JobEventKind.ENDED:
                ended[event.run] = event
            elif event.happened in STOPPING:
                stopping.setdefault(event.run, event)
        entries = []
        for event in started:
            end, stop = ended.get(event.run), stopping.get(event.run)
            state: State
            if end is not None:
                state = end.detail["state"]
            elif event.run == running:
                state = "running"
            else:
                state = "killed" if stop is None else _ENDINGS[stop.happened]
            entry = RunEntry(
                number=event.run,
                started_us=event.at_us,
                ended_us=None if end is None else end.at_us,
                state=state,
                who=event.detail.get("who", ""),
            )
            entries.append(entry)
        return tuple(entries)

    def _last(self, happened: JobEventKind) -> JobEvent | None:
        return next((e for e in reversed(self.events) if e.happened is happened), None)


def job_names(broker: Broker) -> list[str]:
    """The names of all jobs that were run."""
    return sorted(
        name.split("/")[1]
        for name in (info.name for info in broker.list(hops.ROOT))
        if name.count("/") == hops.runs_journal("x").count("/") and name.endswith("/runs")
    )


def state_of(event: JobEvent) -> State:
    """The state of a run after an event of this kind."""
    return _ENDINGS[event.happened]
