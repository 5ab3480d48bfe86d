"""Calls an async function for the rows of a batch, several at once, on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from millrace.errors import SchemaMismatch
from millrace.pipeline.calling.call_batch import CallBatch
from millrace.pipeline.calling.call_failures import Stopped, failure_of
from millrace.pipeline.core.call_outcomes import BatchOutcome, Failure, Row, ended_process


def run_async(batch: CallBatch) -> BatchOutcome:
    """Call for all rows, at most `concurrency` at once; no call begins after a row has failed."""
    runner = batch.caller.instance.runner
    assert runner is not None, "an async function has a loop"
    begun = time.perf_counter()
    work = _Several(batch)
    try:
        run_through(runner.get_loop(), work.run())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    batch.called.seconds += time.perf_counter() - begun
    return work.finish()


def run_through(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run to the end. A task of the user's that calls sys.exit leaves the loop at once.

    When the loop goes on, the call that waits for that task gets the exception, and fails by it.
    """
    task = loop.create_task(work)
    while True:
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            if task.done():
                raise
        else:
            return


class _Several:
    def __init__(self, batch: CallBatch) -> None:
        self.batch, self.caller, self.called = batch, batch.caller, batch.called
        self.dicts: list[Row] = batch.caller.passing.dicts(batch.rows.batch)
        self.results: dict[int, list[Row] | Failure] = {}
        self.waiting: Iterator[int] = iter(range(len(self.dicts)))
        self.is_ending = False

    async def run(self) -> None:
        count = max(1, min(self.caller.options.concurrency, len(self.dicts)))
        async with asyncio.TaskGroup() as group:
            for slot in range(count):
                group.create_task(self._serve(slot))

    async def _serve(self, slot: int) -> None:
        while not self.is_ending and (index := next(self.waiting, None)) is not None:
            try:
                answer = await self._call_until_settled(slot, index)
            except Stopped:
                self.is_ending = True
                return
            self.results[index] = answer
            if isinstance(answer, Failure) and (
                self.caller.options.on_error == "fail" or answer.ends_step
            ):
                self.is_ending = True

    async def _call_until_settled(self, slot: int, index: int) -> list[Row] | Failure:
        number = 1 + self.batch.past.attempts.get(index, 0)
        if number > self.caller.options.retries + 1:
            return ended_process(index, number - 1)
        while True:
            self.called.calls += 1
            try:
                return await self._call(slot, index, number)
            except BaseException as error:
                if is_cancelled(error):
                    raise
                self.called.errors += 1
                failure = failure_of(index, error, number)
                is_final = isinstance(error, SchemaMismatch) or failure.ends_step
                if is_final or number > self.caller.options.retries:
                    return failure
            await asyncio.sleep(self.caller.backoff_s(number))
            number += 1

    async def _call(self, slot: int, index: int, number: int) -> list[Row]:
        context = self.batch.context(index, index + 1, number)
        self.batch.call_file.begin(slot, index, index + 1, number)
        try:
            rows = await self.caller.call_row_async(self.dicts[index], context)
            if rows:
                self.caller.to_batch(rows)
        finally:
            self.batch.call_file.end(slot)
        return rows

    def finish(self) -> BatchOutcome:
        """Settle rows from the first on, up to the first row that failed or was not called for."""
        for index in range(len(self.dicts)):
            answer = self.results.get(index)
            if answer is None:
                break
            if isinstance(answer, Failure):
                if not self.batch.settle(answer):
                    break
            else:
                self.batch.made += answer
                self.batch.row_indexes += [index] * len(answer)
            self.called.done = index + 1
        return self.batch.finish()


def is_cancelled(error: BaseException) -> bool:
    """Whether this task was cancelled, and not only a task of the user's function."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
