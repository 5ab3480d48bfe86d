"""Runs what only Spark computes: over saved rows of its inputs, which it sees as views.

Invariant: rows are recognised in later runs by the query, the content of all inputs, Spark's
version and the settings of its session. Views have names of their own, and are dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace.config import Config
from millrace.engine.run_values import RunMoment
from millrace.errors import SchemaMismatch
from millrace.execute.query_run import QueryRun
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.plan.nodes.on_spark import OnSpark, SparkCall, SparkCode, SparkText
from millrace.shuffle.handle import Shuffle
from millrace.spark.frames.rows_as_frames import outputs_to_frame
from millrace.spark.frames.table_identity import table_files
from millrace.spark.session_settings import given_settings
from millrace.spark.spark_analysis import (
    arrow_columns,
    built_frame,
    frame_of_text,
)
from millrace.spark.spark_presence import call_spark
from millrace.sql.spark_text import at_moment, called_names

Used = TypeVar("Used")
_NO_MATTER: Final = (
    "spark.sql.artifact.",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.warehouse.dir",
    "spark.sql.ui.",
    "spark.sql.streaming.",
)
"""Settings that do not change the rows of a query."""


def over_answers(runs: Sequence[QueryRun], use: Callable[[tuple[Shuffle, ...]], Used]) -> Used:
    """What `use` makes of the answers of all runs; answers that are lost are made again."""

    def with_rest(number: int, answers: tuple[Shuffle, ...]) -> Used:
        if number == len(runs):
            return use(answers)
        return runs[number].with_answer(lambda answer: with_rest(number + 1, (*answers, answer)))

    return with_rest(0, ())


def recognise(
    spark: SparkSession, config: Config, scan: OnSpark, answers: Sequence[Shuffle]
) -> tuple[str | None, str | None]:
    """What identifies the rows in later runs, or the reason that nothing does."""
    work = scan.work
    files = table_files(spark, config, work) if work.unrecognised is not None else None
    if work.unrecognised is not None and files is None:
        return None, work.unrecognised
    if isinstance(work.query, str):
        own = functions_of_users(spark, config) & called_names(work.query)
        if own:
            return None, f"the session's function {min(own)} may change"
    if isinstance(work.query, SparkCall):
        query: object = [work.query.method, repr(work.query.args), repr(work.query.kwargs)]
    elif isinstance(work.query, SparkCode):
        query = [work.query.text, work.query.identity]
    else:
        query = str(work.query)
    inputs = [
        [name, [[f.name, str(f.type)] for f in answer.schema], _contents(answer)]
        for (name, _), answer in zip(work.inputs, answers, strict=True)
    ]
    settings = deciding_settings(spark, config)
    version = call_spark(spark, config, lambda: spark.version)
    text = json.dumps([query, inputs, files, settings, version], sort_keys=True)
    return f"on Spark {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}", None


def deciding_settings(spark: SparkSession, config: Config) -> dict[str, str]:
    """The settings of a session that may change the rows of a query."""
    return {
        name: value
        for name, value in given_settings(spark, config).items()
        if name.startswith("spark.sql.") and not name.startswith(_NO_MATTER)
    }


@contextlib.contextmanager
def frame_of_work(
    spark: SparkSession,
    workspace: ShuffleWorkspace,
    scan: OnSpark,
    answers: Sequence[Shuffle],
    moment: RunMoment,
) -> Iterator[DataFrame]:
    """The DataFrame of the query over its inputs' rows, as long as their views are there.

    A text that asks for the time gets that of the run, as all other parts of the query do.
    """
    config, work = workspace.config, scan.work
    frames = [outputs_to_frame(spark, answer, workspace.folders, config) for answer in answers]
    with contextlib.ExitStack() as views:
        query = work.query
        if isinstance(query, SparkCall | SparkCode):
            frame = call_spark(spark, config, lambda: built_frame(query, frames))
        else:
            relations = {
                name: f"SELECT * FROM {views.enter_context(_view(spark, config, rows))}"  # noqa: S608 - a name made here
                for (name, _), rows in zip(work.inputs, frames, strict=True)
            }
            frame = call_spark(
                spark, config, lambda: _frame_at(spark, query, relations, scan, moment)
            )
        columns = arrow_columns(call_spark(spark, config, lambda: frame.schema))
        if not columns.equals(scan.whole):
            raise SchemaMismatch(
                "Spark gives other columns than when the query was written\n"
                f"  expected: {', '.join(map(str, scan.whole))}\n"
                f"  found: {', '.join(map(str, columns))}\n"
                "  to fix: write the query again, in the session as it is now"
            )
        yield frame


def _frame_at(
    spark: SparkSession,
    query: str | SparkText,
    relations: Mapping[str, str],
    scan: OnSpark,
    moment: RunMoment,
) -> DataFrame:
    """The DataFrame of a text at the moment of a run, under the columns that it had without it.

    Where a column inside it is named after a call, the text stays as it is.
    """
    as_written = frame_of_text(spark, query, relations)
    text = query if isinstance(query, str) else query.text
    names = [name for _, node in scan.work.inputs for name in node.schema.names]
    dated = at_moment(text, moment.micros, names)
    if dated == text:
        return as_written()
    changed = dated if isinstance(query, str) else replace(query, text=dated)
    try:
        frame = frame_of_text(spark, changed, relations)().toDF(*scan.whole.names)
        return frame if arrow_columns(frame.schema).equals(scan.whole) else as_written()
    except PySparkException:
        return as_written()


@contextlib.contextmanager
def _view(spark: SparkSession, config: Config, frame: DataFrame) -> Iterator[str]:
    name = f"millrace_{uuid.uuid4().hex}"
    call_spark(spark, config, lambda: frame.createOrReplaceTempView(name))
    try:
        yield name
    finally:
        with contextlib.suppress(Exception):  # Of a Spark that is gone, the view is gone too.
            call_spark(spark, config, lambda: spark.catalog.dropTempView(name))


def _contents(answer: Shuffle) -> list[str]:
    return [choice.content for choice in answer.manifest.chosen]


def functions_of_users(spark: SparkSession, config: Config) -> frozenset[str]:
    """The names of functions that a session was given."""
    rows = call_spark(spark, config, lambda: spark.sql("SHOW USER FUNCTIONS").collect())
    return frozenset(row[0].lower().rpartition(".")[2] for row in rows)
