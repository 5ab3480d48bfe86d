"""Calls a step's function once, within its time limit, and checks the result against its schema.

`call_batch` and `async_batch` turn rows into calls and deal with errors.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import SchemaMismatch
from millrace.pipeline.calling.call_failures import MakingFailed, failure_of, keeps_answer
from millrace.pipeline.calling.call_thread import CallThread, stuck_calls
from millrace.pipeline.calling.function_instances import Instance, instance_of
from millrace.pipeline.core.call_outcomes import Row
from millrace.pipeline.core.hop_rows import asker_of
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.define.context import Context
from millrace.pipeline.define.user_functions import WorkerFunction as Function
from millrace.pipeline.large.large_passing import Passing
from millrace.pipeline.paid.call_errors import AnswerUnusable

JOB_STUCK_CALLS_MAX: Final = 2
"""How many calls that ran into their time limit a worker leaves behind before it ends."""

JOB_RETRY_MS_MAX: Final = 30_000
"""The longest wait before a retry."""

T = TypeVar("T")
NO_CONTEXT: Final = Context(job="", step="", keys=())


class FunctionCaller:
    """Calls one step's function; for one thread."""

    def __init__(
        self,
        hop: Hop,
        step: Map | FunctionSink,
        made: Instance,
        config: Config,
        *,
        workspace: str,
        job_id: str,
    ) -> None:
        self.hop, self.step, self.config, self.instance = hop, step, config, made
        self.options = step.options
        self.function: Function = made.function
        self.function.open_in(workspace)
        self.schema: pa.Schema | None = self.function.schema
        calling = step.calling
        limits_itself = calling.is_async or calling.is_engine
        is_timed = self.options.timeout is not None and not limits_itself
        self._thread = CallThread() if is_timed else None
        self._workspace, self._job_id = workspace, job_id
        self.passing = Passing(hop, step, workspace)
        self.asker = asker_of(job_id, hop.job, step.name, step.calling.identity)

    @classmethod
    def of(
        cls, hop: Hop, step: Map | FunctionSink, config: Config, *, workspace: str, job_id: str
    ) -> FunctionCaller:
        """Make the callable, if the step has one to make; `MakingFailed` if that raises."""
        try:
            instance = instance_of(hop, step)
        except BaseException as error:  # Also sys.exit.
            raise MakingFailed(step.name, failure_of(0, error, 1)) from error
        return cls(hop, step, instance, config, workspace=workspace, job_id=job_id)

    def for_another_thread(self) -> FunctionCaller:
        """A caller of the same callable, for calls of another thread."""
        return FunctionCaller(
            self.hop,
            self.step,
            self.instance,
            self.config,
            workspace=self._workspace,
            job_id=self._job_id,
        )

    def close_thread(self) -> None:
        """Close the thread that calls with a time limit are made in."""
        if self._thread is not None:
            self._thread.close()

    def close(self) -> None:
        """Close the thread, and the event loop that only these calls use."""
        self.close_thread()
        if self.instance.runner is not None and not self.step.calling.makes:
            self.instance.runner.close()

    def call_row(self, row: Row, context: Context) -> list[Row]:
        """The rows that one call makes, within its time limit."""
        return self._within_limit(lambda: self._row_or_repair(row, context))

    def _row_or_repair(self, row: Row, context: Context) -> list[Row]:
        try:
            return self.function.call_row(row, context)
        except AnswerUnusable as error:
            repair = self.step.calling.repair
            if repair is None:
                raise
            with keeps_answer(error):
                return self.function.rows_of(repair(dict(row), error))

    def call_batch(self, batch: pa.RecordBatch, context: Context) -> pa.RecordBatch:
        """The rows that one call makes of a batch, within its time limit."""
        runner = self.instance.runner
        if runner is None:
            made = self._within_limit(lambda: self.function.call_batch(batch, context))
        else:
            made = runner.run(self._awaited(batch, context))
        return self._without_nulls(made)

    async def call_row_async(self, row: Row, context: Context) -> list[Row]:
        """The rows that one call of an async function makes, within its time limit."""
        async with asyncio.timeout(self.options.timeout):
            try:
                return await self.function.call_row_async(row, context)
            except AnswerUnusable as error:
                repair = self.step.calling.repair
                if repair is None:
                    raise
                with keeps_answer(error):
                    made = repair(dict(row), error)
                    return self.function.rows_of(await made if inspect.isawaitable(made) else made)

    async def call_batch_async(self, batch: pa.RecordBatch, context: Context) -> pa.RecordBatch:
        """The rows that one call of an async function makes of a batch, within its time limit."""
        return self._without_nulls(await self._awaited(batch, context))

    async def _awaited(self, batch: pa.RecordBatch, context: Context) -> pa.RecordBatch:
        async with asyncio.timeout(self.options.timeout):
            return await self.function.call_batch_async(batch, context)

    def _without_nulls(self, made: pa.RecordBatch) -> pa.RecordBatch:
        if self.schema is not None:
            check_nulls(made, self.schema)
        return made

    def to_batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Rows that were made, in the step's schema."""
        assert self.schema is not None, "a sink makes no rows"
        made = self.function.to_batch(self.passing.with_references(rows, self.schema))
        check_nulls(made, self.schema)
        return made

    def _within_limit(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            return work()
        assert self.options.timeout is not None
        made: T = self._thread.call(work, self.options.timeout)
        return made

    def is_stuck(self) -> bool:
        """Whether this process has left so many calls behind that it makes no more."""
        return self._thread is not None and stuck_calls() >= JOB_STUCK_CALLS_MAX

    def backoff_s(self, attempt: int) -> float:
        """How long to wait behind this attempt."""
        waited = ms(self.config.job_retry_wait) << min(attempt - 1, 30)
        return float(min(waited, JOB_RETRY_MS_MAX) / 1000)


def check_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse nulls in columns that have none."""
    for column, field in zip(batch.columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"the function returned no value for column {field.name!r}\n"
                f"  expected: {field.type} in every row, found: {column.null_count} nulls\n"
                "  to fix: return a value, or let the schema allow nulls"
            )
