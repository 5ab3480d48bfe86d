"""Asks the executors of a session what they are: a task on each slot tells its process."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.identity.versions import versions
from millrace.spark.session import is_local, session_with, slots, start_session
from millrace.spark.spark_presence import call_spark
from millrace.transport.agent.agent_launch import own_host

TASKS_MAX: Final = 64
_REACH_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorReport:
    """What a task told of its process."""

    host: str
    versions: dict[str, str]
    began_ms: int
    reach: str
    """Empty if it reached the driver's process, otherwise why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLook:
    """The reports of all tasks, and when they were asked for, by this host's clock."""

    spark: str
    reports: tuple[ExecutorReport, ...]
    sent_ms: int
    done_ms: int


def session_at(master: str | None, remote: str | None) -> SparkSession:
    """A session on a master or a Spark Connect server; on this host if neither is given."""
    if remote:
        return session_with({"spark.remote": remote})
    if master:
        return session_with({"spark.master": master, "spark.app.name": "millrace doctor"})
    return start_session("millrace doctor")


def look(spark: SparkSession, config: Config) -> ExecutorLook:
    """Run a task on each slot, which also connects back to this process."""
    tasks = max(1, min(slots(spark, config), TASKS_MAX))
    host = own_host(os.environ, loopback=is_local(spark, config))
    with socket.create_server((host, 0)) as server:
        address = (host, int(server.getsockname()[1]))
        sent_ms = _now_ms()
        reports = call_spark(spark, config, lambda: _ask(spark, tasks, address))
    version = call_spark(spark, config, lambda: spark.version)
    return ExecutorLook(spark=version, reports=reports, sent_ms=sent_ms, done_ms=_now_ms())


def own_versions() -> dict[str, str]:
    """The versions that tasks depend on, in this process."""
    return {"Python": "{}.{}".format(*sys.version_info), **versions()}


def _ask(spark: SparkSession, tasks: int, address: tuple[str, int]) -> tuple[ExecutorReport, ...]:
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(_TaskLook(address), "report string")
    return tuple(ExecutorReport(**json.loads(row[0])) for row in frame.collect())


@dataclass(frozen=True, slots=True)
class _TaskLook:
    """Looks at the process of a task."""

    address: tuple[str, int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        report = {
            "host": socket.gethostname(),
            "versions": own_versions(),
            "began_ms": _now_ms(),
            "reach": self._reach(),
        }
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})

    def _reach(self) -> str:
        try:
            with socket.create_connection(self.address, timeout=_REACH_S):
                return ""
        except OSError as error:
            return str(error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
