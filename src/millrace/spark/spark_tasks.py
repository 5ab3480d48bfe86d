"""Runs a function in Spark tasks and brings back Arrow rows.

Invariant: an error raised in a task comes back as the same kind of error, with its own words. Work
that is interrupted in the driver is cancelled in Spark. A call ends when Spark goes away.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace import errors
from millrace.config import Config
from millrace.errors import MillraceError, TaskFailed
from millrace.execute.task_runner import SharedWork, TaskTry, TaskWork, Watch, never_stop
from millrace.log_lines import current_ids
from millrace.spared_work import spare_collections
from millrace.spark.session import master, slots, slots_of_executor
from millrace.spark.shipping.function_shipping import map_numbers, map_shares, pack_shares
from millrace.spark.shipping.plain_jobs import PlainJob
from millrace.spark.spark_presence import call_spark, is_connect, session_of_own

_RAISED: Final = re.compile(
    r"^\s*(?:pyspark\S*: )?millrace\.errors\.(\w+): (.*)", re.MULTILINE | re.DOTALL
)

_ADDED: Final = ("at org.", "at java.", "at scala.", "SQLSTATE: ")

Batches = Iterator[pa.RecordBatch]


class SparkTaskRunner:
    """The `TaskRunner` on a Spark session."""

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark, self._config = spark, config

    def slots(self) -> int:
        """How many tasks run at the same time."""
        return slots(self._spark, self._config)

    def slots_of_host(self) -> int:
        """The slots of one executor."""
        return slots_of_executor(self._spark, self._config)

    def run(
        self, work: TaskWork, tasks: int, schema: pa.Schema, *, title: str, watch: Watch
    ) -> pa.Table:
        """Run so many tasks to their end; returns all rows that they reported."""
        types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        spark, config = self._spark, self._config
        if isinstance(work, SharedWork):
            packed = pack_shares(_over_shares(work), work.shares)
            apart = work.calls_users or bool(packed.options) or packed.are_many_bytes
            if not apart and not is_connect(spark):
                job = PlainJob(spark, packed, schema)
                return _run_plain(job, spark, config, title=title, watch=watch)
            own = session_of_own(spark, config)
            return collect(
                lambda: map_shares(own, packed, types), own, config, title=title, watch=watch
            )
        return run_tasks(spark, config, tasks, _over_numbers(work), types, title=title, watch=watch)

    def about(self) -> dict[str, Any]:
        """The master and Spark's version."""
        return runner_facts(master(self._spark, self._config) or None)


def runner_facts(master: str | None) -> dict[str, Any]:
    """What the record of a run says about Spark; `master` is None where no session is known."""
    return {"versions": {"pyspark": pyspark.__version__}, "master": master}


def this_task() -> TaskTry:
    """In a task: its partition's number, and how many tries failed before."""
    context = TaskContext.get()
    assert context is not None, "only Spark runs this"
    return TaskTry(context.partitionId(), context.attemptNumber())


def _over_numbers(work: TaskWork) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over task numbers, a number for each Spark task."""

    def run(numbers: Batches) -> Batches:
        spare_collections()
        failed_before = this_task().failed_before
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(TaskTry(number, failed_before))

    return run


def _over_shares(work: SharedWork) -> Callable[[int, Any], Batches]:
    """What one Spark task does with its number and its share."""
    work_of_one = work.run

    def run(number: int, share: object) -> Batches:
        spare_collections()
        return work_of_one(TaskTry(number, this_task().failed_before), share)

    return run


def run_tasks(
    spark: SparkSession,
    config: Config,
    tasks: int,
    function: Callable[[Batches], Batches],
    schema: str | StructType,
    *,
    title: str,
    watch: Watch = never_stop,
) -> pa.Table:
    """Run `function` in as many tasks; each gets its number as the one row it is given."""
    own = session_of_own(spark, config)

    def frame() -> DataFrame:
        return map_numbers(own.range(0, tasks, 1, tasks), function, schema)

    return collect(frame, own, config, title=title, watch=watch)


def collect(
    frame: Callable[[], DataFrame],
    spark: SparkSession,
    config: Config,
    *,
    title: str,
    watch: Watch = never_stop,
) -> pa.Table:
    """Make a DataFrame and run it to its end, calling `watch` meanwhile; interrupted, cancel it.

    Spark's page names its jobs by `title`.

    Raises:
        SparkGone: Spark does not answer any more.
    """
    tag = f"millrace-{uuid.uuid4()}"

    def run() -> pa.Table:
        describe_jobs(spark, title)
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


def _run_plain(
    job: PlainJob, spark: SparkSession, config: Config, *, title: str, watch: Watch
) -> pa.Table:
    """As `collect`, for a job without a DataFrame."""

    def run() -> pa.Table:
        describe_jobs(spark, title)
        try:
            return job.run()
        except Exception as error:
            raise from_task(error) from error

    return call_spark(spark, config, run, watch=watch, cancel=job.cancel)


def describe_jobs(spark: SparkSession, title: str) -> None:
    """Name the jobs that this thread starts from now on, as Spark's page shows them.

    Their group is the run and stage of a query, or the job and its run: `cancelJobGroup` ends it.

    On Connect the server words the descriptions itself. There the name is a tag of the jobs, and
    has no commas, which tags cannot have.
    """
    text, group = f"millrace: {title}", _job_group()
    if is_connect(spark):
        spark.addTag(text.replace(",", ";"))
        if group:
            spark.addTag(group.replace(",", ";"))
    elif group:
        spark.sparkContext.setJobGroup(group, text, interruptOnCancel=False)
    else:
        spark.sparkContext.setJobDescription(text)


def _job_group() -> str:
    """The run and stage, or the job, that this thread works for; empty if it is neither."""
    ids = current_ids()
    names = [f"{name} {ids[name]}" for name in ("job", "run", "stage") if name in ids]
    return " ".join(["millrace", *names]) if names else ""


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
