"""Watches the progress of a run, and decides when it has come to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.config import Config
from millrace.errors import TaskFailed
from millrace.pipeline.core.hops import ROOT, Hop, step_root
from millrace.pipeline.core.job_events import ALONE, JobEvent, JobEventKind
from millrace.pipeline.report.job_counts import Counted, Counting
from millrace.pipeline.report.job_report import Sample, State, StepReport, thinned
from millrace.pipeline.report.run_history import STOPPING, RunHistory
from millrace.pipeline.run.job_journals import end_sources, ensure_journals, waits_for_end
from millrace.pipeline.run.job_status import step_reports
from millrace.pipeline.run.noted_commits import remove_old_notes
from millrace.pipeline.run.retention import free_read_rows
from millrace.pipeline.run.run_lease import RunLease
from millrace.pipeline.run.run_start import Begun

JOB_TRUNCATE_MS: Final = 60_000
"""How often a run removes rows of cheap steps that all readers have read."""

JOB_SAMPLES_MAX: Final = 1_200
"""The largest number of samples; with more, every other sample is dropped."""

_SHARE = 4
"""Looking takes at most one part in so many of the time, and one more."""


@dataclass(slots=True)
class RunWatch:
    """The progress of a run: its events, counts and samples."""

    config: Config
    counting: Counting
    history: RunHistory
    lease: RunLease
    begun: Begun
    hops: Sequence[Hop]
    samples: list[Sample] = field(default_factory=list)
    spent: set[str] = field(default_factory=set)
    """Steps whose budget is used up."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """Steps of which a provider works on batches, and the journals that these are for."""
    unpaid: dict[str, set[str]] = field(default_factory=dict)
    """Steps that ask in batches and whose budget is used up, and journals of rows that wait."""
    deaths: int = 0
    """The number of calls that ended their worker, as recorded by later workers."""
    pause_s: float = 0.0
    began: float = field(default_factory=time.monotonic)
    _housekept: float = field(default_factory=time.monotonic)
    _alive: float = field(default_factory=time.monotonic)
    _done: int = -1
    _events_seen: int = 0
    _known: frozenset[str] = frozenset()

    @property
    def seconds(self) -> float:
        """Seconds since work began."""
        return time.monotonic() - self.began

    def look(self) -> JobEvent | None:
        """Read new events; returns the first event that ends the run, if there is one."""
        self.counting.note(self.history.look())
        fresh = self.history.events[self._events_seen :]
        self._events_seen = len(self.history.events)
        for event in fresh:
            self.deaths += event.run == self.lease.run and event.happened is JobEventKind.DIED
            if event.run != self.lease.run or event.happened not in STOPPING:
                continue
            match event.happened:
                case JobEventKind.SPENT if event.detail.get(ALONE):
                    self.unpaid.setdefault(event.step, set()).add(event.detail["journal"])
                case JobEventKind.SPENT:
                    self.spent.add(event.step)
                case JobEventKind.WAITING:
                    self.waiting.setdefault(event.step, set()).add(event.detail["journal"])
                case _:
                    return event
        return None

    def count(self) -> tuple[Counted, tuple[StepReport, ...]]:
        """Count the progress of each step; take a sample if it is time for one."""
        started = time.monotonic()
        counted = self.counting.count()
        took = time.monotonic() - started
        self.pause_s = max(self.config.job_watch_ms / 1000, _SHARE * took)
        steps = step_reports(self.begun.record, counted, self.begun.before, seconds=self.seconds)
        last = self.samples[-1].at_s if self.samples else None
        if last is None or self.seconds - last >= self.config.job_sample_ms / 1000:
            self.sample(steps)
        return counted, steps

    def sample(self, steps: Sequence[StepReport]) -> None:
        """Add a sample: the progress of each step now."""
        self.samples.append(Sample(self.seconds, tuple(step.rows_in for step in steps)))
        self.samples = thinned(self.samples, JOB_SAMPLES_MAX)

    def is_done(self, counted: Counted) -> bool:
        """Whether all work is done that this run can do.

        A step without budget and the steps before it do not count, nor do rows for which a provider
        works on a batch.
        """
        record, parts = self.begun.record, counted.parts
        if self.has_all:
            return all(counts.waiting == 0 for counts in parts.values())
        stuck = {
            part.name
            for part in record.kept
            if any(other.name in self.spent for other in record.downstream(part.name))
        }
        left_alone = {
            name: self.waiting.get(name, set()) | self.unpaid.get(name, set())
            for name in (*self.waiting, *self.unpaid)
        }
        stuck |= {name for name, journals in left_alone.items() if journals >= parts[name].left_in}
        left = sum(c.waiting for name, c in parts.items() if name not in stuck)
        return left == 0 and not self._is_in_work(self.spent | left_alone.keys())

    @property
    def has_all(self) -> bool:
        """Whether nothing is left for another run."""
        return not (self.spent or self.waiting or self.unpaid)

    def has_told_end(self) -> bool:
        """Tell the next step that its sources are finished; whether there was one to tell.

        Called when all rows are done: what comes out then goes to the steps behind it first.
        """
        for hop in sorted(self.hops, key=lambda hop: hop.depth):
            told = waits_for_end(hop, self.begun.record) and end_sources(
                self.history, hop, self.lease.lease
            )
            if told:
                return True
        return False

    def unfinished(self) -> tuple[State, str]:
        """The state of a run that has done what it can and not all, and why."""
        if self.spent or not self.waiting:
            steps = ", ".join(sorted(self.spent | self.unpaid.keys()))
            return "spent", f"the budget of {steps} is used up"
        steps = ", ".join(sorted(self.waiting))
        return "waiting", f"a provider works on batches of {steps}"

    def check_somebody_works(self, counted: Counted) -> None:
        """Raise if rows have waited for too long and no worker works on any of them."""
        done = sum(counts.rows_in for counts in counted.parts.values())
        waiting = sum(counts.waiting for counts in counted.parts.values())
        now, limit_ms = time.monotonic(), self.config.job_nobody_ms_max
        if done != self._done or not waiting:
            self._alive, self._done = now, done
        elif (now - self._alive) * 1000 > limit_ms:
            prefix = f"{ROOT}/{self.begun.record.job}"
            leases = self.history.broker.leases(prefix)
            if any(lease.name != self.lease.lease.name for lease in leases):
                self._alive = now  # Somebody is in a long call.
                return
            raise TaskFailed(
                f"job {self.begun.record.job!r}: {waiting} rows wait and nobody works on them\n"
                f"  found: no worker for {limit_ms / 1000:g} s (job_nobody_ms_max)\n"
                "  to fix: see that Spark has free slots, with the resources that steps ask for"
            )

    def housekeeping(self) -> None:
        """Prepare new journals; now and then remove rows that all readers have read."""
        if self.counting.journals != self._known:
            self._known = self.counting.journals
            ensure_journals(self.history.broker, self.hops)
        if time.monotonic() - self._housekept < JOB_TRUNCATE_MS / 1000:
            return
        self._housekept = time.monotonic()
        self.truncate()

    def truncate(self) -> None:
        """Remove rows that all readers have read, and old notes; safe even after a lost lease."""
        free_read_rows(
            self.history, self.begun.record, run=self.lease.run, lease=None, everything=False
        )
        remove_old_notes(self.hops, self.history.broker)
        self.counting.note(self.history.look())

    def _is_in_work(self, steps: set[str]) -> bool:
        """Whether a worker still works on one of these steps."""
        broker, job = self.history.broker, self.begun.record.job
        return any(broker.leases(f"{step_root(job, step)}/unit") for step in steps)
