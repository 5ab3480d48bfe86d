"""Keeps a job's workers running as Spark tasks: when a worker's time is up, the next one starts.

A thread of the driver runs a Spark job of one or a few tasks again and again. So a worker in a long
call does not delay the replacement of other workers.
Invariant: when `stop` has returned, no thread of the pool starts a Spark job any more.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession

from millrace.config import Config
from millrace.errors import JournalUnknown, MillraceError, SparkGone, TaskFailed, UserError
from millrace.log_lines import current_ids, take_ids
from millrace.pipeline.run.job_run import JOB_STOP_MS_MAX
from millrace.pipeline.run.worker_orders import WorkerGroup, WorkerOrder, spent_on, waves
from millrace.pipeline.worker.worker_task import JOB_YIELD_MS, RESULT_SCHEMA, worker_task
from millrace.spark.shipping.function_shipping import map_numbers
from millrace.spark.spark_presence import session_of_own, setting
from millrace.spark.spark_tasks import collect
from millrace.text import counted

JOB_WAVES_MAX: Final = 8
"""Workers of one kind are started by at most this many Spark jobs at a time."""


class _WorkersCancelled(Exception):
    """Ends a Spark job that is no longer needed."""


class SparkWorkerPool:
    """All workers of a run."""

    def __init__(
        self,
        spark: SparkSession,
        order: WorkerOrder,
        groups: Sequence[WorkerGroup],
        config: Config,
        *,
        deaths: Callable[[], int],
    ) -> None:
        """`deaths` counts the calls that ended a worker: these ends are no failures of Spark."""
        self._config, self._hops, self._deaths = config, order.hops, deaths
        self._log_ids = current_ids()
        self._ending = threading.Event()
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self.outcomes: list[dict[str, Any]] = []
        self.error: MillraceError | None = None
        """The error that keeps workers from running."""
        self._threads = [
            threading.Thread(
                target=self._guard,
                args=(spark, replace(order, only=group.hops), size, _profile(spark, config, group)),
                name="millrace-workers",
                daemon=True,
            )
            for group in groups
            for size in waves(group.workers, JOB_WAVES_MAX)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether no worker runs any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def spent(self) -> dict[str, tuple[float, float]]:
        """For each step the seconds that workers took for it, and those in the user's function."""
        with self._lock:
            return spent_on(self._hops, self.outcomes)

    def stop(self, wait_ms: int) -> bool:
        """Start no more workers and wait for running workers, which were asked to end.

        Spark ends workers that do not end in time; returns whether all ended by themselves.
        """
        self._ending.set()
        self._join(wait_ms)
        clean = self.is_over
        self.cancel()
        self._join(JOB_STOP_MS_MAX)
        return clean

    def cancel(self) -> None:
        """Have Spark end all workers, without waiting."""
        self._ending.set()
        self._cancelled.set()

    def _join(self, wait_ms: int) -> None:
        until = time.monotonic() + wait_ms / 1000
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _guard(self, *group: Any) -> None:  # noqa: ANN401 - those of `_keep_running`
        """Record the error of a thread that dies: the run would wait for its workers forever."""
        take_ids(self._log_ids)
        try:
            self._keep_running(*group)
        except Exception as error:  # noqa: BLE001 - raised by the run
            self._give_up(error)

    def _keep_running(
        self, spark: SparkSession, order: WorkerOrder, size: int, profile: ResourceProfile | None
    ) -> None:
        failures = deaths = 0
        function = worker_task(order)
        own: SparkSession | None = None
        while not self._ending.is_set():
            try:
                own = own or session_of_own(spark, self._config)

                def frame(own: SparkSession = own) -> DataFrame:
                    numbers = own.range(0, size, 1, size)
                    return map_numbers(numbers, function, RESULT_SCHEMA, profile)

                title = f"job {order.hops[0].job}, {counted(size, 'worker')}"
                table = collect(frame, own, self._config, title=title, watch=self._watch)
            except _WorkersCancelled:
                return
            except Exception as error:  # noqa: BLE001 - whatever Spark raises is counted
                known, deaths = deaths, self._deaths()
                failures = 1 if deaths > known else failures + 1
                self._failed(error, failures)
            else:
                failures = 0
                outcomes = [json.loads(text) for text in table["outcome"].to_pylist()]
                with self._lock:
                    self.outcomes += outcomes
                if any(outcome["ended"] == "failed" for outcome in outcomes):
                    # The run ends: no worker makes the failed calls once more.
                    self._ending.set()
                if all(outcome["ended"] == "idle" for outcome in outcomes):
                    self._ending.wait(JOB_YIELD_MS / 1000)

    def _failed(self, error: Exception, failures: int) -> None:
        """Try again, unless another attempt cannot help."""
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


def has_profiles(spark: SparkSession, config: Config) -> bool:
    """Whether tasks can ask for resources; on a local Spark all share what the machine has."""
    return re.match(r"local(\[|$)", setting(spark, config, "spark.master")) is None


def _profile(spark: SparkSession, config: Config, group: WorkerGroup) -> ResourceProfile | None:
    """The resource profile of a group's tasks; Spark schedules them accordingly."""
    if not group.resources or not has_profiles(spark, config):
        return None
    requests = TaskResourceRequests()
    for name, amount in group.resources:
        requests = requests.cpus(int(amount)) if name == "cpus" else requests.resource(name, amount)
    return ResourceProfileBuilder().require(requests).build


def _worker_failed(error: Exception) -> TaskFailed:
    return TaskFailed(
        "a worker failed\n  found: see below\n"
        f"  to fix: mend what it names and run the job again; it goes on\n{error}"
    )
