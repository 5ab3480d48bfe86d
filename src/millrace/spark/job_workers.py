"""Keeps a job's workers running as Spark tasks: when one's time is up, the next is started.

Each seat is a Spark job of one or a few tasks, run again and again by a thread of the driver. So a
worker that is long in a call keeps no other from being replaced.
Invariant: when `stop` has returned, no thread of the crew starts anything any more.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession

from millrace.config import Config
from millrace.errors import JournalUnknown, MillraceError, SparkGone, TaskFailed, UserError
from millrace.pipeline.core.hops import Hop
from millrace.spark import job_task
from millrace.spark.job_task import JOB_YIELD_MS, Work
from millrace.spark.spark_presence import session_of_own, setting
from millrace.spark.spark_tasks import collect
from millrace.text import counted

JOB_STOP_MS_MAX: Final = 30_000
"""How long an ending run waits for its workers before it has Spark end them."""

JOB_WAVES_MAX: Final = 8
"""Workers of one kind are started by at most this many Spark jobs at a time."""

Resources = tuple[tuple[str, float], ...]


class _WorkersCancelled(Exception):
    """Ends a Spark job that is no longer wanted."""


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Workers of one kind: what they may take, what a task needs for it, and how many."""

    hops: tuple[str, ...] | None
    resources: Resources
    workers: int


def posts_of(hops: Sequence[Hop], units: Mapping[str, int], slots: int) -> list[WorkerGroup]:
    """The kinds of workers that a job needs: one for each set of resources that steps ask for."""
    kinds: dict[Resources, list[Hop]] = {}
    for hop in hops:
        kinds.setdefault(tuple(sorted(hop.options.resources.items())), []).append(hop)
    posts = []
    for resources, mine in sorted(kinds.items()):
        wanted = sum(min(units[hop.name], hop.options.workers or units[hop.name]) for hop in mine)
        names = tuple(hop.name for hop in mine) if len(kinds) > 1 else None
        posts.append(WorkerGroup(names, resources, max(1, min(slots, wanted))))
    return posts


class WorkerPool:
    """All workers of a run."""

    def __init__(
        self,
        spark: SparkSession,
        work: Work,
        posts: Sequence[WorkerGroup],
        config: Config,
        *,
        deaths: Callable[[], int],
    ) -> None:
        """`deaths` counts the calls that are known to have ended a worker: no fault of Spark's."""
        self._config, self._hops, self._deaths = config, work.hops, deaths
        self._ending = threading.Event()
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self.outcomes: list[dict[str, Any]] = []
        self.error: MillraceError | None = None
        """Why workers cannot be run."""
        self._threads = [
            threading.Thread(
                target=self._guard,
                args=(spark, replace(work, only=post.hops), size, _profile(spark, config, post)),
                name="millrace-seat",
                daemon=True,
            )
            for post in posts
            for size in waves(post.workers, JOB_WAVES_MAX)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nobody works any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def spent(self) -> dict[str, tuple[float, float]]:
        """For each step the seconds that workers took for it, and those in the user's function."""
        with self._lock:
            return spent_on(self._hops, self.outcomes)

    def stop(self, wait_ms: int) -> bool:
        """Start nobody any more and wait for those who work, who were told to end.

        Those who do not end in time are ended by Spark; says whether that was not needed.
        """
        self._ending.set()
        self._join(wait_ms)
        clean = self.is_over
        self.cancel()
        self._join(JOB_STOP_MS_MAX)
        return clean

    def cancel(self) -> None:
        """Have Spark end everything, without waiting."""
        self._ending.set()
        self._cancelled.set()

    def _join(self, wait_ms: int) -> None:
        until = time.monotonic() + wait_ms / 1000
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _guard(self, *seat: Any) -> None:  # noqa: ANN401 - those of `_sit`
        """A thread that dies says so: the run would wait for workers that nobody starts."""
        try:
            self._sit(*seat)
        except Exception as error:  # noqa: BLE001 - raised by the run
            self._give_up(error)

    def _sit(
        self, spark: SparkSession, work: Work, size: int, profile: ResourceProfile | None
    ) -> None:
        failures = deaths = 0
        function = job_task.worker_task(work)
        own: SparkSession | None = None
        while not self._ending.is_set():
            try:
                own = own or session_of_own(spark, self._config)

                def frame(own: SparkSession = own) -> DataFrame:
                    numbers = own.range(0, size, 1, size)
                    return numbers.mapInArrow(function, job_task.RESULT_SCHEMA, profile=profile)

                title = f"job {work.hops[0].job}, {counted(size, 'worker')}"
                table = collect(frame, own, self._config, title=title, watch=self._watch)
            except _WorkersCancelled:
                return
            except Exception as error:  # noqa: BLE001 - whatever Spark raises is counted
                known, deaths = deaths, self._deaths()
                failures = 1 if deaths > known else failures + 1
                self._failed(error, failures)
            else:
                failures = 0
                found = [json.loads(text) for text in table["outcome"].to_pylist()]
                with self._lock:
                    self.outcomes += found
                if any(outcome["ended"] == "failed" for outcome in found):
                    # The run ends: nobody is to make the calls that failed once more.
                    self._ending.set()
                if all(outcome["ended"] == "idle" for outcome in found):
                    self._ending.wait(JOB_YIELD_MS / 1000)

    def _failed(self, error: Exception, failures: int) -> None:
        """Try again, unless it is no use."""
        # A worker may meet a journal of the user's just before what belongs to it is made.
        wrong = isinstance(error, UserError) and not isinstance(error, JournalUnknown)
        is_over = wrong or isinstance(error, SparkGone)
        if is_over or failures >= self._config.job_failures_max:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self.error is None:
            self.error = error if isinstance(error, MillraceError) else _worker_failed(error)
        self._ending.set()

    def _watch(self) -> None:
        if self._cancelled.is_set():
            raise _WorkersCancelled


def spent_on(
    hops: Sequence[Hop], outcomes: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    """For each hop the seconds of its turns, and those in functions, fused ones included."""
    names = {hop.name: {hop.name, *(step.name for step in hop.steps)} for hop in hops}
    sums: dict[str, tuple[float, float]] = {}
    for outcome in outcomes:
        inside = outcome["seconds_in_function"]
        for name, taken_s in outcome["seconds_per_hop"].items():
            before = sums.get(name, (0.0, 0.0))
            called_s = sum(inside.get(step, 0.0) for step in names[name])
            sums[name] = (before[0] + taken_s, before[1] + called_s)
    return sums


def waves(workers: int, waves_max: int) -> list[int]:
    """How many tasks each of at most so many Spark jobs has."""
    count = min(workers, waves_max)
    return [workers // count + (number < workers % count) for number in range(count)]


def has_profiles(spark: SparkSession, config: Config) -> bool:
    """Whether tasks can ask for resources; on a local Spark all share what the machine has."""
    return re.match(r"local(\[|$)", setting(spark, config, "spark.master")) is None


def _profile(spark: SparkSession, config: Config, post: WorkerGroup) -> ResourceProfile | None:
    """What each task of a post needs; Spark puts it where that is."""
    if not post.resources or not has_profiles(spark, config):
        return None
    asked = TaskResourceRequests()
    for name, amount in post.resources:
        asked = asked.cpus(int(amount)) if name == "cpus" else asked.resource(name, amount)
    return ResourceProfileBuilder().require(asked).build


def _worker_failed(error: Exception) -> TaskFailed:
    return TaskFailed(
        "a worker failed\n  found: see below\n"
        f"  to fix: mend what it names and run the job again; it goes on\n{error}"
    )
