"""Runs a function in Spark tasks and brings back Arrow rows.

Invariant: an error raised in a task comes back as the same kind of error, with its own words. Work
that is interrupted in the driver is cancelled in Spark. A call ends when Spark goes away.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace import errors
from millrace.config import Config
from millrace.errors import MillraceError, TaskFailed
from millrace.spark.spark_presence import call_spark, is_connect, session_of_own

_RAISED: Final = re.compile(
    r"^\s*(?:pyspark\S*: )?millrace\.errors\.(\w+): (.*)", re.MULTILINE | re.DOTALL
)

_ADDED: Final = ("at org.", "at java.", "at scala.", "SQLSTATE: ")

Batches = Iterator[pa.RecordBatch]


def run_tasks(
    spark: SparkSession,
    config: Config,
    tasks: int,
    function: Callable[[Batches], Batches],
    schema: str,
    *,
    watch: Callable[[], None] = lambda: None,
) -> pa.Table:
    """Run `function` in as many tasks; each gets its number as the one row it is given."""
    own = session_of_own(spark, config)

    def frame() -> DataFrame:
        return own.range(0, tasks, 1, tasks).mapInArrow(function, schema)

    return collect(frame, own, config, watch=watch)


def collect(
    frame: Callable[[], DataFrame],
    spark: SparkSession,
    config: Config,
    *,
    watch: Callable[[], None] = lambda: None,
) -> pa.Table:
    """Make a DataFrame and run it to its end, calling `watch` meanwhile; interrupted, cancel it.

    Raises:
        SparkGone: Spark does not answer any more.
    """
    tag = f"millrace-{uuid.uuid4()}"

    def run() -> pa.Table:
        if is_connect(spark):
            spark.addTag(tag)
        try:
            return frame().toArrow()
        except Exception as error:
            raise from_task(error) from error

    def cancel() -> None:
        if is_connect(spark):
            spark.interruptTag(tag)
        else:
            spark.interruptAll()

    return call_spark(spark, config, run, watch=watch, cancel=cancel)


def from_task(error: BaseException) -> BaseException:
    """The error a task raised, as its own kind; any other as `TaskFailed` with its text."""
    text = str(error)
    raised = list(_RAISED.finditer(text))
    if raised:
        kind = getattr(errors, raised[-1][1], None)
        if isinstance(kind, type) and issubclass(kind, MillraceError):
            return kind(_message(raised[-1][2]))
    return (
        TaskFailed(
            "a Spark task failed\n  found: see below\n"
            f"  to fix: mend what the last line names; run again, finished tasks are kept\n"
            f"{text.strip()}"
        )
        if isinstance(error, Exception)
        else error
    )


def _message(text: str) -> str:
    """The message alone, without what the JVM adds behind it."""
    lines = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(_ADDED):
            break
        lines.append(line)
    return "\n".join(lines)
