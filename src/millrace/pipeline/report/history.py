"""The record of a job's runs: reads it, adds to it, and tells from it what each run came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.errors import JournalUnknown, UserError
from millrace.journal.contract import Broker
from millrace.journal.values import Lease
from millrace.names import existing
from millrace.pipeline.core import events, hops
from millrace.pipeline.core.events import Event, Happened
from millrace.pipeline.report.outline import Outline
from millrace.pipeline.report.report import RunEntry, State

_ENDINGS: dict[Happened, State] = {
    Happened.FAILED: "failed",
    Happened.HELD: "held",
    Happened.SPENT: "spent",
}
STOPPING = frozenset(_ENDINGS)


@dataclass(slots=True)
class History:
    """All that happened to a job so far."""

    broker: Broker
    job: str
    events: list[Event] = field(default_factory=list)
    offset: int = 0
    """Where the next look begins."""

    @classmethod
    def begin(cls, broker: Broker, job: str) -> History:
        """The record of a job, made if there is none."""
        broker.create(hops.runs_journal(job), events.SCHEMA)
        return cls.open(broker, job)

    @classmethod
    def open(cls, broker: Broker, job: str) -> History:
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

    def look(self) -> list[Event]:
        """What happened since the last look."""
        fresh: list[Event] = []
        while True:
            found = self.broker.read(hops.runs_journal(self.job), self.offset)
            fresh += events.from_rows(found.rows())
            if found.next_offset == self.offset:
                self.events += fresh
                return fresh
            self.offset = found.next_offset

    def add(self, *added: Event, lease: Lease | None = None) -> None:
        """Record that something happened."""
        with self.broker.transaction(lease) as t:
            t.append(hops.runs_journal(self.job), events.to_rows(list(added)))

    def last_started(self) -> Event | None:
        """The beginning of the last run."""
        return self._last(Happened.STARTED)

    def job_id(self) -> str | None:
        """What tells the job from any other in the world: made once, with its record."""
        started = (e for e in self.events if e.happened is Happened.STARTED)
        return next((e.detail["job_id"] for e in started if "job_id" in e.detail), None)

    def outline(self) -> Outline | None:
        """What the job looked like in its last run."""
        last = self.last_started()
        return None if last is None else Outline.from_json(last.detail["outline"])

    def taken_in(self, source: str) -> list[Event]:
        """What was taken in of a source and is still there; none if it was set back since."""
        kept: list[Event] = []
        for event in self.events:
            if event.happened is Happened.RESET and source in event.detail["parts"]:
                kept = []
            elif event.happened is Happened.TAKEN_IN and event.step == source:
                kept.append(event)
        return kept

    def first_offsets(self) -> dict[str, int]:
        """Where journals of the user's began when the job first read them."""
        found: dict[str, int] = {}
        for event in self.events:
            if event.happened is Happened.STARTED:
                found = event.detail.get("starts", {}) | found
        return found

    def unfinished_reset(self) -> Event | None:
        """A reset that was begun and not finished."""
        last = self._last(Happened.RESET)
        return None if last is None or last.detail.get("done") else last

    def runs(self, running: int | None = None) -> tuple[RunEntry, ...]:
        """All runs; one that did not say how it ended was killed, unless it is `running`."""
        entries = []
        for event in self.events:
            if event.happened is Happened.STARTED:
                ended, state = self._end_of(event.run, running)
                entry = RunEntry(
                    number=event.run,
                    started_us=event.at_us,
                    ended_us=ended,
                    state=state,
                    who=event.detail.get("who", ""),
                )
                entries.append(entry)
        return tuple(entries)

    def _end_of(self, run: int, running: int | None) -> tuple[int | None, State]:
        for event in reversed(self.events):
            if event.run == run and event.happened is Happened.ENDED:
                return event.at_us, event.detail["state"]
        if run == running:
            return None, "running"
        stopping = [e for e in self.events if e.run == run and e.happened in STOPPING]
        return None, _ENDINGS[stopping[0].happened] if stopping else "killed"

    def _last(self, happened: Happened) -> Event | None:
        return next((e for e in reversed(self.events) if e.happened is happened), None)


def job_names(broker: Broker) -> list[str]:
    """The names of all jobs that were run."""
    return sorted(
        name.split("/")[1]
        for name in (info.name for info in broker.list(hops.ROOT))
        if name.count("/") == hops.runs_journal("x").count("/") and name.endswith("/runs")
    )


def stopping_event(happened: Sequence[Event], run: int) -> Event | None:
    """The first event of a run that ends it."""
    return next((e for e in happened if e.run == run and e.happened in STOPPING), None)


def state_of(event: Event) -> State:
    """What becomes of a run at such an event."""
    return _ENDINGS[event.happened]
