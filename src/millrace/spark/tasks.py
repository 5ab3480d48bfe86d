"""Runs a function in Spark tasks and brings back Arrow rows.

Invariant: an error raised in a task comes back as the same kind of error, with its own words. Work
that is interrupted in the driver is cancelled in Spark.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace import errors
from millrace.errors import MillraceError, TaskFailed

_POLL_S: Final = 0.1
_RAISED: Final = re.compile(
    r"^\s*(?:pyspark\S*: )?millrace\.errors\.(\w+): (.*)", re.MULTILINE | re.DOTALL
)

_ADDED: Final = ("at org.", "at java.", "at scala.", "SQLSTATE: ")

Batches = Iterator[pa.RecordBatch]


def run_tasks(
    spark: SparkSession,
    tasks: int,
    function: Callable[[Batches], Batches],
    schema: str,
    *,
    watch: Callable[[], None] = lambda: None,
) -> pa.Table:
    """Run `function` in as many tasks; each gets its number as the one row it is given."""
    # A classic session of its own can be interrupted without ending anybody else's work. A Connect
    # session has tags for that, and one opened here and left would hang the client's exit.
    own = spark if is_connect(spark) else spark.newSession()
    frame = own.range(0, tasks, 1, tasks).mapInArrow(function, schema)
    return collect(frame, own, watch=watch)


def collect(
    frame: DataFrame, spark: SparkSession, *, watch: Callable[[], None] = lambda: None
) -> pa.Table:
    """Run a DataFrame to its end, calling `watch` meanwhile; on interruption cancel it."""
    outcome: dict[str, Any] = {}
    tag = f"millrace-{uuid.uuid4()}"

    def run() -> None:
        try:
            if is_connect(spark):
                spark.addTag(tag)
            outcome["table"] = frame.toArrow()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            outcome["error"] = error

    thread = threading.Thread(target=run, name="millrace-spark-job", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            watch()
    except BaseException:
        if is_connect(spark):
            spark.interruptTag(tag)
        else:
            spark.interruptAll()
        raise
    if "error" in outcome:
        raise from_task(outcome["error"]) from outcome["error"]
    return outcome["table"]


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


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
