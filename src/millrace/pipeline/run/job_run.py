"""Runs a job: one process leads, workers are tasks, leases decide which worker does which unit.

A thread of its own does the work of the run. The calling thread only waits: so Ctrl-C is a request
that is handled in order, and never interrupts a commit.
Invariant: however a run ends, published rows stay, no other rows count, and the next run continues
from there. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from millrace.durations import ms
from millrace.errors import (
    BrokerStopped,
    MillraceError,
    PeerGone,
    SparkGone,
    TaskFailed,
)
from millrace.faults import fault
from millrace.identity.versions import versions
from millrace.journal.api import broker_of
from millrace.log_lines import log_ids
from millrace.metrics.traces import run_span
from millrace.pipeline.core.job_events import JobEvent, JobEventKind, SinkCommit
from millrace.pipeline.core.job_model import JournalSink, OnChange
from millrace.pipeline.define.job import Job, Until, graph_of
from millrace.pipeline.report.call_groups import groups_of
from millrace.pipeline.report.job_counts import Counted, Counting
from millrace.pipeline.report.job_progress import JobProgress
from millrace.pipeline.report.job_report import HINTS, JobReport, State, recorded
from millrace.pipeline.report.run_history import RunHistory, state_of
from millrace.pipeline.report.run_observer import RunObserver
from millrace.pipeline.run.interrupts import Interrupts
from millrace.pipeline.run.job_runtime import JobHome, JobRuntime, RunContext, WorkerPool
from millrace.pipeline.run.job_status import step_reports
from millrace.pipeline.run.run_lease import RunLease, refuse_running
from millrace.pipeline.run.run_start import TakenRun, begin, recall_kept, take_run
from millrace.pipeline.run.run_watch import RunWatch
from millrace.pipeline.run.step_failures import cut_off, step_failed
from millrace.pipeline.run.table_commits import RunCommits
from millrace.pipeline.run.worker_orders import SinkTarget, WorkerOrder, shippable, worker_groups
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.wakeup import WorkerThread

JOB_STOP_MS_MAX: Final = 30_000
"""How long an ending run waits for its workers before it has Spark end them."""

_LOG: Final = logging.getLogger(__name__)
_JOIN_S: Final = 0.05
_LOST: Final = (PeerGone, BrokerStopped)


class _Stopped(Exception):
    """Ends the start of a run, because the run was asked to stop."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a run ends, and the error that it raises."""

    state: State
    note: str = ""
    error: MillraceError | None = None


def run_job(
    workspace: JobHome,
    job: Job,
    runtime: Callable[[], JobRuntime],
    *,
    until: Until = "caught_up",
    on_change: OnChange = "fail",
    observer: RunObserver | None = None,
) -> JobReport:
    """Run a job, from where it stopped if it ran before.

    An exception that a signal raises in the calling thread, as a scheduler's time limit does, ends
    the run in order before it goes on.

    Raises:
        StepFailed: a step gave up, or calls are in doubt and the step has on_doubt="hold".
        JobChanged: the job has changed, and `on_change` does not allow that.
        LeaseHeld: another process runs the job.
        PeerGone: Spark, the owner of the journals or their storage went away.
    """
    refuse_running(broker_of(workspace.journals), job.name)
    run = _Run(workspace, job, runtime(), until, on_change, observer)
    say = f"stopping job {job.name}: workers finish what they are at; once more ends it at once"
    thread = WorkerThread(run.lead, "millrace-run")
    with Interrupts(run.ask_to_stop, say) as interrupts:
        thread.start()
        try:
            while not (thread.ended.wait(_JOIN_S) or interrupts.is_forced):
                pass
        except BaseException:
            run.ask_to_stop()
            thread.ended.wait(2 * JOB_STOP_MS_MAX / 1000)
            raise
        if interrupts.is_forced:
            run.abandon()
    if run.report is None or run.report.state == "interrupted":
        interrupts.raise_again(f"job {job.name!r} was stopped; {HINTS['interrupted']}")
    if run.error is not None:
        raise run.error
    assert run.report is not None, "a run ends with a report or an error"
    return run.report


class _Run:
    """One run. `lead` does its work, in a thread of its own."""

    def __init__(
        self,
        workspace: JobHome,
        job: Job,
        runtime: JobRuntime,
        until: Until,
        on_change: OnChange,
        observer: RunObserver | None,
    ) -> None:
        self._workspace, self._job, self._runtime = workspace, job, runtime
        self._until, self._on_change, self._observer = until, on_change, observer
        self._config = workspace.config
        recall_kept(broker_of(workspace.journals), graph_of(job))
        self._hops = graph_of(job).hops
        runtime.check(self._hops)
        self._zone, self._gives_resources = runtime.time_zone, runtime.gives_resources
        self._stop = threading.Event()
        self._workers: WorkerPool | None = None
        self._lease: RunLease | None = None
        self._made: tuple[SinkCommit, ...] = ()
        self._began = time.monotonic()
        self.report: JobReport | None = None
        self.error: BaseException | None = None

    def ask_to_stop(self) -> None:
        """Ask the run to end in order."""
        self._stop.set()

    def abandon(self) -> None:
        """Leave the run at once. The lease runs out by itself, and the workers end then."""
        self._stop.set()
        if self._lease is not None:
            self._lease.let_go()
        if self._workers is not None:
            self._workers.cancel()

    def lead(self) -> None:
        """Run to the end; the result is in `report` and `error`."""
        try:
            self._lead()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self.error = error

    def _lead(self) -> None:
        try:
            taken = take_run(self._workspace, self._job.name, self._hops, self._stop)
            lease = self._lease = taken.lease
            try:
                with log_ids(job=self._job.name, run=lease.run), run_span("job"):
                    self._with_lease(taken)
            finally:
                with contextlib.suppress(MillraceError):
                    lease.release()
        except _LOST as error:
            raise cut_off(self._job.name, error) from error

    def _with_lease(self, taken: TakenRun) -> None:
        lease, history = taken.lease, taken.history

        def check() -> None:
            lease.check()
            if self._stop.is_set():
                raise _Stopped

        context = RunContext(
            broker=history.broker,
            where=taken.where,
            history=history,
            lease=lease.lease,
            config=self._config,
            check=check,
        )
        try:
            begun = begin(
                self._job,
                self._hops,
                context,
                self._runtime.intake,
                self._on_change,
                self._zone,
            )
        except _Stopped:
            _note_end(history, lease, "interrupted")
            return
        except MillraceError as error:
            if not isinstance(error, _LOST):
                _note_end(history, lease, "failed", str(error))
            raise
        ends = begun.ends if self._until == "caught_up" else None
        counting = Counting(history.broker, begun.record, ends=ends)
        watch = RunWatch(self._config, counting, history, lease, begun, self._hops)
        counting.note(history.events)
        try:
            _LOG.info("job %s: run %d started", self._job.name, lease.run)
            ending = self._with_commits(watch, context)
        except SparkGone as error:
            # The journals are there, so the next run and `status` can know of it.
            with contextlib.suppress(MillraceError):
                _note_end(history, lease, "lost", str(error))
            raise
        self._end(watch, ending)

    def _with_commits(self, watch: RunWatch, context: RunContext) -> _Ending:
        """Work while files of table sinks are committed beside it."""
        try:
            commits = RunCommits(self._hops, context, watch.lease)
        except MillraceError as error:
            if isinstance(error, _LOST):
                raise
            return _Ending("failed", str(error), error)
        try:
            ending = self._work(watch, context.where, commits)
        finally:
            commits.abandon()
        self._made = commits.made()
        return ending

    def _work(self, watch: RunWatch, where: JournalAddress, commits: RunCommits) -> _Ending:
        """Keep workers running until all work is done, or the run cannot go on."""
        counted, _ = watch.count()
        if self._until == "caught_up" and watch.is_done(counted) and not watch.has_told_end():
            return _committed(commits, _Ending("finished"))
        workers = self._workers = self._start(watch, counted, where)
        try:
            with JobProgress() as progress:
                while (ending := self._look(watch, workers, progress, commits)) is None:
                    self._stop.wait(watch.pause_s)
                ending = _committed(commits, ending)
        except _LOST:
            # No worker can publish any more, or none runs: there is nothing to wait for.
            watch.lease.let_go()
            workers.cancel()
            workers.stop(JOB_STOP_MS_MAX)
            raise
        except BaseException:
            # The lease was lost: workers end by themselves, or with Spark's help.
            watch.lease.let_go()
            workers.stop(ms(self._config.job_run_lease))
            raise
        fault("job.run.before_release")
        watch.lease.release()
        workers.stop(JOB_STOP_MS_MAX)
        return ending

    def _look(
        self, watch: RunWatch, workers: WorkerPool, progress: JobProgress, commits: RunCommits
    ) -> _Ending | None:
        """Look at the progress once; returns the ending, if the run ends."""
        watch.lease.check()
        if self._stop.is_set():
            return _Ending("interrupted")
        event = watch.look()
        if event is not None:
            error = step_failed(self._job.name, event)
            return _Ending(state_of(event), str(error), error)
        if isinstance(workers.error, PeerGone):
            raise workers.error
        for failed in (workers.error, commits.error):
            if failed is not None:
                return _Ending("failed", str(failed), failed)
        counted, steps = watch.count()
        progress.show(steps)
        if self._observer is not None:
            self._observer.on_progress(steps)
        if self._until == "caught_up" and watch.is_done(counted):
            # Events that a worker recorded just before are not missed.
            event = watch.look()
            if event is None and watch.has_all:
                return None if watch.has_told_end() else _Ending("finished")
            if event is None and watch.is_done(counted):
                return _Ending(*watch.unfinished())
        try:
            watch.check_somebody_works(counted)
        except TaskFailed as error:
            return _Ending("failed", str(error), error)
        watch.housekeeping()
        return None

    def _start(self, watch: RunWatch, counted: Counted, where: JournalAddress) -> WorkerPool:
        units = {name: counts.units for name, counts in counted.parts.items()}
        most = self._runtime.slots()
        if self._until == "forever":
            units = {name: max(count, most) for name, count in units.items()}
        order = WorkerOrder(
            where=where,
            hops=tuple(shippable(hop) for hop in self._hops),
            config=self._config,
            run=watch.lease.run,
            time_zone=self._zone,
            workspace=self._workspace.path,
            job_id=watch.begun.job_id,
            events_from=watch.begun.events_from,
            until_end=watch.begun.ends if self._until == "caught_up" else None,
            only=None,
            versions=versions(),
            targets={
                hop.name: SinkTarget(
                    self._workspace.address_of(hop.sink.workspace), watch.begun.progress[hop.name]
                )
                for hop in self._hops
                if isinstance(hop.sink, JournalSink) and hop.sink.workspace is not None
            },
            progress=watch.begun.progress,
        )
        groups = worker_groups(self._hops, units, most)
        return self._runtime.start_workers(order, groups, lambda: watch.deaths)

    def _end(self, watch: RunWatch, ending: _Ending) -> None:
        """Make the report, record that the run ended, and write the page."""
        if ending.state == "finished":
            watch.truncate()
        counted, steps = watch.count()
        watch.sample(steps)
        spent = {} if self._workers is None else self._workers.spent()
        seconds = time.monotonic() - self._began
        before, record = watch.begun.before, watch.begun.record
        report = JobReport(
            job=self._job.name,
            run=watch.lease.run,
            state=ending.state,
            seconds=seconds,
            record=record,
            steps=step_reports(
                record,
                counted,
                before,
                seconds=seconds,
                spent=spent,
                groups=groups_of(watch.history.broker, record, watch.history.events),
            ),
            runs=(),
            note=ending.note or self._remark(),
            commits=self._made,
            samples=tuple(watch.samples),
        )
        event = JobEvent(
            at_us=time.time_ns() // 1000,
            run=report.run,
            happened=JobEventKind.ENDED,
            detail={"state": ending.state, "report": recorded(report)},
        )
        fault("job.run.before_ended")
        watch.history.add(event)
        fault("job.run.after_ended")
        watch.history.look()
        report = replace(report, runs=watch.history.runs())
        self.report = report
        if self._observer is not None:
            self._observer.on_report(report)
        _LOG.info("job %s: run %d ended: %s", self._job.name, report.run, report.state)
        if ending.error is not None:
            self.error = ending.error

    def _remark(self) -> str:
        """A remark on behaviour that the user might not expect."""
        asking = [hop.name for hop in self._hops if hop.options.resources]
        if not asking or self._gives_resources:
            return ""
        return f"a local Spark has no resources to give: {', '.join(asking)} ran without"


def _committed(commits: RunCommits, ending: _Ending) -> _Ending:
    """The ending of a run, once all that its workers recorded is in the tables of its sinks."""
    try:
        commits.finish()
    except MillraceError as error:
        if isinstance(error, _LOST):
            raise
        return ending if ending.error is not None else _Ending("failed", str(error), error)
    return ending


def _note_end(history: RunHistory, lease: RunLease, state: State, note: str = "") -> None:
    """Record the end of a run that began and did no work; a run that did not begin records none."""
    last = history.last_started()
    if last is not None and last.run == lease.run:
        now_us = time.time_ns() // 1000
        detail = {"state": state, "note": note}
        history.add(
            JobEvent(at_us=now_us, run=lease.run, happened=JobEventKind.ENDED, detail=detail)
        )
