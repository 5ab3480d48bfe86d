"""The user's handle of a source or step, while defining a job.

Invariant: a call refuses its own wrong arguments, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.datasets.dataset import Dataset
from millrace.durations import Duration
from millrace.errors import UserError
from millrace.identity.schemas import difference
from millrace.keys import check_partitions
from millrace.pipeline.core import job_model
from millrace.pipeline.core.job_model import OnDoubt, OnError
from millrace.pipeline.define.answer_repairs import with_repair
from millrace.pipeline.define.function_schema import checked
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.keyed.step_lookup import StepLookup
from millrace.pipeline.define.keyed.step_timed import StepTimed
from millrace.pipeline.define.step_checks import (
    STEP_OPTIONS,
    NotRun,
    check_calling,
    check_large,
    check_sql,
)
from millrace.pipeline.define.step_options import options_of
from millrace.pipeline.define.step_prompts import StepPrompts
from millrace.pipeline.define.step_sinks import Function
from millrace.pipeline.define.user_functions import calling_of, output_schema
from millrace.pipeline.large.large_values import stored_schema
from millrace.pipeline.paid.limits_and_budget import Budget, Limits
from millrace.pipeline.paid.retry_policy import ErrorClasses
from millrace.plan.nodes.map_batches import FunctionRows
from millrace.plan.relation import relation_of
from millrace.sql.name_checks import check_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

StepFrame = Callable[[str, str], "DataFrame"]
"""Gives the saved rows of a step, by the names of its job and itself."""


class Step(StepPrompts, StepLookup, StepTimed):
    """Rows of a source or a step. Made by `Job.source` and by the methods of other steps.

    Example:
        >>> def size(row: dict) -> dict:
        ...     return {"path": row["path"], "n": row["size"]}
        >>> sizes = texts.map("size", size, schema="path string, n bigint")
        >>> sizes.filter("n > 5").sink_parquet("sizes/")
    """

    __slots__ = ("_frame",)

    def __init__(self, graph: JobGraph, node: job_model.Anything, frame: StepFrame) -> None:
        """`frame` gives the saved rows of a step of a job as a Spark DataFrame."""
        super().__init__(graph, node)
        self._frame = frame

    @property
    def name(self) -> str:
        """Its name in the job.

        Example:
            >>> texts.name
            'texts'
        """
        return self._node.name

    @property
    def columns(self) -> list[str]:
        """Names of the columns.

        Example:
            >>> texts.columns
            ['path', 'size', 'modified']
        """
        return list(self.schema.names)

    def map(  # noqa: PLR0913 - each option has a name
        self,
        name: str,
        function: Function,
        *,
        schema: pa.Schema | str | None = None,
        batch: bool | None = None,
        workers: int | None = None,
        partitions: int | None = None,
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        batch_tokens: int | None = None,
        tokens_column: str | None = None,
        expensive: bool = False,
        durable: bool | None = None,
        concurrency: int = 1,
        resources: Mapping[str, float] | None = None,
        timeout: Duration | None = None,
        retries: int = 3,
        on_error: OnError = "fail",
        on_doubt: OnDoubt = "retry",
        retry_on: ErrorClasses = (),
        give_up_on: ErrorClasses = (),
        repair: Function | None = None,
        ordered: bool = True,
        budget: Budget | None = None,
        limits: Limits | None = None,
        rate: float | None = None,
        max_calls: int | None = None,
        large: str | Sequence[str] | None = None,
        version: str | None = None,
    ) -> Step:
        """Rows that a function makes of these: none, one or many of each.

        Args:
            name: of the step, unique in the job. Progress is kept under it.
            function: gets a dict for each row, or, if its first parameter has the type
                `pa.RecordBatch` or `pa.Table`, a batch. A second parameter `context` gets a
                `millrace.Context`. A class is made once in a worker process, and its instance
                called; its `close()` is called when the worker turns to another step. An async
                function is called up to `concurrency` times at once.
            schema: what it returns: a pa.Schema, or Spark DDL such as "id bigint, score double".
                By default as its return annotation says: a dataclass, TypedDict or NamedTuple, or
                a list, an iterator or `| None` of one.
            batch: whether it gets batches, where its type hint does not say.
            workers: most workers at once.
            partitions: over how many journals its output is spread.
            batch_rows: most rows that are called for before the next publish.
            batch_bytes: about how many bytes of rows.
            batch_tokens: most tokens of a batch of an expensive step; a row with more is alone.
            tokens_column: has the tokens of each row; without it four letters of text are one.
            expensive: each call is recorded before it is made and published when it was, so that it
                is not made again.
            durable: keep its rows in journals; by default if it is expensive or feeds several.
            concurrency: most calls at once in a worker: tasks of an async function, else threads.
            resources: what a task needs of each of Spark's resources: `{"gpu": 1}`.
            timeout: how long a call may take: seconds, a `timedelta`, or text such as "10s".
            retries: how often a call that raised is made again.
            on_error: what then: "fail", "skip" the row, or put it into the "dead_letter" journal.
            on_doubt: what to do about calls that a worker that died may have made: "retry" them,
                "skip" their rows, or "hold" until you say.
            retry_on: classes of errors, or their names: a call that raised another is not made
                again.
            give_up_on: classes of errors after which a call is not made again.
            repair: gets a row and the `mr.AnswerUnusable` that the function raised for it, and
                returns rows like the function: what was paid for is not paid for again.
            ordered: whether results of an expensive step are published in the order of its rows;
                if not, a slow call holds back no result.
            budget: what the calls may cost, over all workers and runs: `mr.Budget(usd=25)`. The job
                stops when it is used up.
            limits: how fast calls may come, over all workers: `mr.Limits(rpm=500, tpm=200_000)`.
            rate: `limits` of so many calls per second.
            max_calls: a `budget` of so many calls.
            large: columns whose values are kept in files of their own.
            version: names what the function does where its code alone does not tell.

        Example:
            >>> def caption(row: dict, context: mr.Context) -> dict:
            ...     return {"path": row["path"], "caption": "about " + row["path"]}
            >>> schema = "path string, caption string"
            >>> captions = texts.map("caption", caption, schema=schema, expensive=True, max_calls=9)
            >>> captions.columns
            ['path', 'caption']
        """
        given = {option: value for option, value in locals().items() if option in STEP_OPTIONS}
        call = f"map({name!r})"
        options = options_of(call, given)
        calling = calling_of(call, function, batch=batch, version=version)
        check_calling(call, calling, options, self.schema, expensive=expensive)
        output = output_schema(call, function, schema)
        check_large(call, output, options.large)
        return self._add(
            job_model.Map(
                name=self._graph.take_name(name, call),
                inputs=(self._node,),
                schema=stored_schema(output, options.large),
                calling=with_repair(call, calling, repair, options),
                options=options,
                returned=output if options.large else None,
            )
        )

    def filter(self, condition: str, name: str | None = None) -> Step:
        """Rows for which a condition is true, as Spark SQL: `filter("score > 0.5")`.

        Example:
            >>> texts.filter("size > 5 AND path LIKE '%.txt'", name="long").name
            'long'
        """
        call = f"filter({condition!r})"
        check_sql(call, "filter", condition, self._rows())
        return self._add(
            job_model.FilterStep(
                name=self._graph.take_name(name, call, "filter"),
                inputs=(self._node,),
                schema=self.schema,
                condition=condition,
            )
        )

    def select(self, *columns: str, name: str | None = None) -> Step:
        """Columns, calculated ones too, as Spark SQL: `select("id", "length(text) AS n")`.

        Example:
            >>> texts.select("path", "size / 1024 AS kib").columns
            ['path', 'kib']
        """
        call = f"select({', '.join(map(repr, columns))})"
        for column in columns:
            check_sql(call, "select", column, self._rows())
        schema = checked(call, self._rows().select(*columns).arrow_schema)
        return self._add(
            job_model.Select(
                name=self._graph.take_name(name, call, "select"),
                inputs=(self._node,),
                schema=schema,
                columns=columns,
            )
        )

    def key_by(self, *columns: str, partitions: int | None = None, name: str | None = None) -> Step:
        """The same rows, those with equal keys in one partition, in the order they come in.

        Example:
            >>> texts.key_by("path", partitions=8).name
            'key_by'
        """
        call = f"key_by({', '.join(map(repr, columns))})"
        if not columns:
            raise UserError(f"{call} has no keys\n  to fix: name at least one column")
        check_keys(self.schema, columns, call)
        if partitions is not None:
            check_partitions(partitions)
        return self._add(
            job_model.KeyBy(
                name=self._graph.take_name(name, call, "key_by"),
                inputs=(self._node,),
                schema=self.schema,
                keys=columns,
                partitions=partitions or self._graph.partitions,
            )
        )

    def union(self, *others: Step, name: str | None = None) -> Step:
        """All rows of this and the others, which have the same columns.

        Example:
            >>> small, large = texts.filter("size < 10"), texts.filter("size > 1000")
            >>> small.union(large).columns
            ['path', 'size', 'modified']
        """
        call = f"union({', '.join(repr(getattr(other, 'name', other)) for other in others)})"
        if not others:
            raise UserError(f"{call} of nothing\n  to fix: give at least one other step")
        for index, other in enumerate(others):
            _check_side(call, self, other)
            if other.name in (self.name, *(earlier.name for earlier in others[:index])):
                raise UserError(
                    f"{call} of {other.name!r} with itself\n  to fix: for its rows twice, give "
                    f"{other.name}.select('*') as well"
                )
        return self._add(
            job_model.UnionStep(
                name=self._graph.take_name(name, call, "union"),
                inputs=(self._node, *(node_of_step(other) for other in others)),
                schema=self.schema,
            )
        )

    def to_spark(self) -> DataFrame:
        """The saved rows of the step as a Spark DataFrame, as far as the job has run.

        Only a step whose rows are kept has some: a source, an expensive step, or one with
        `durable=True`.

        Example:
            >>> listing = ws.job("listing")
            >>> texts = listing.source("texts", mr.files("texts/*.txt"))
            >>> texts.sink_journal("listed")
            >>> report = listing.run()
            >>> texts.to_spark().count()
            2
        """
        return self._frame(self._graph.job, self.name)

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return f"Step({self.name!r}: {shown})"

    def _add(self, node: job_model.Anything) -> Step:
        self._graph.add(node)
        return Step(self._graph, node, self._frame)

    def _rows(self) -> Dataset:
        """Rows like these as a dataset, for what is checked there."""
        return Dataset(relation_of(FunctionRows(self.schema)), NotRun(self._graph.config))


def graph_of_step(step: Step) -> JobGraph:
    """The job that a step belongs to, for the package."""
    return step._graph  # noqa: SLF001 - for the package, not for users


def node_of_step(step: Step) -> job_model.Anything:
    """The node of a step, for the package."""
    return step._node  # noqa: SLF001 - for the package, not for users


def _check_side(call: str, left: Step, right: object) -> None:
    if not isinstance(right, Step):
        raise UserError(f"{call} of {type(right).__name__}\n  to fix: give steps of this job")
    if graph_of_step(right) is not graph_of_step(left):
        raise UserError(
            f"{call}: {right.name!r} is of job {graph_of_step(right).job!r}, "
            f"not of {graph_of_step(left).job!r}\n"
            "  to fix: give steps of one job; read another job's rows with source(journals=...)"
        )
    different = difference(right.schema, left.schema)
    if different is not None:
        raise UserError(
            f"{call}: {right.name!r} has other columns than {left.name!r}\n  {different}\n"
            "  to fix: bring them to the same columns with select()"
        )
