"""Calls an async function for the rows of a batch, several at once, on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from millrace.errors import SchemaMismatch
from millrace.pipeline.calling.call_batch import CallBatch
from millrace.pipeline.calling.call_failures import Stopped, failure_of
from millrace.pipeline.core.call_outcomes import BatchOutcome, Failure, Row, ended_process


def run_async(batch: CallBatch) -> BatchOutcome:
    """Call for all rows, at most `concurrency` at once; none is begun behind one that fails."""
    runner = batch.caller.instance.runner
    assert runner is not None, "an async function has a loop"
    begun = time.perf_counter()
    work = _Several(batch)
    try:
        _run(runner.get_loop(), work)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    batch.called.seconds += time.perf_counter() - begun
    return work.finish()


def _run(loop: asyncio.AbstractEventLoop, work: _Several) -> None:
    """Run to the end. A task of the user's that calls sys.exit leaves the loop at once.

    When the loop goes on, the call that waits for that task gets the exception, and fails by it.
    """
    task = loop.create_task(work.run())
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
        self.found: dict[int, list[Row] | Failure] = dict(batch.past.settled)
        places = [place for place in range(len(self.dicts)) if place not in self.found]
        self.places: Iterator[int] = iter(places)
        self.is_ending = False
        self.recording = asyncio.Lock()

    async def run(self) -> None:
        count = max(1, min(self.caller.options.concurrency, len(self.dicts)))
        async with asyncio.TaskGroup() as group:
            for slot in range(count):
                group.create_task(self._serve(slot))

    async def _serve(self, slot: int) -> None:
        while not self.is_ending and (place := next(self.places, None)) is not None:
            try:
                answer = await self._one(slot, place)
            except Stopped:
                self.is_ending = True
                return
            self.found[place] = answer
            if isinstance(answer, Failure) and self.caller.options.on_error == "fail":
                self.is_ending = True

    async def _one(self, slot: int, place: int) -> list[Row] | Failure:
        await asyncio.sleep(self.batch.hooks.delay_s(place))
        number = 1 + self.batch.past.attempts.get(place, 0)
        if number > self.caller.options.retries + 1:
            return ended_process(place, number - 1)
        while True:
            self.called.calls += 1
            try:
                return await self._call(slot, place, number)
            except BaseException as error:
                if _is_cancelled(error):
                    raise
                self.called.errors += 1
                if isinstance(error, SchemaMismatch) or number > self.caller.options.retries:
                    failure = failure_of(place, error, number)
                    if self.caller.options.on_error != "fail":
                        self.batch.flight.left_out(failure)
                    return failure
                self.batch.flight.raised(place)
            await asyncio.sleep(self.caller.backoff_s(number))
            async with self.recording:
                wait_s = await asyncio.to_thread(self.batch.hooks.before_retry, place)
            await asyncio.sleep(wait_s)
            number += 1

    async def _call(self, slot: int, place: int, number: int) -> list[Row]:
        context = self.batch.context(place, place + 1, number)
        self.batch.flight.begin(slot, place, place + 1, number)
        try:
            async with asyncio.timeout(self.caller.options.timeout):
                rows = await self.caller.function.call_row_async(self.dicts[place], context)
            if rows:
                self.caller.to_batch(rows)
            self.batch.keep(place, rows)
        finally:
            self.batch.flight.end(slot)
        return rows

    def finish(self) -> BatchOutcome:
        """Settle rows from the first on, up to one that failed or was not called for."""
        for place in range(len(self.dicts)):
            answer = self.found.get(place)
            if answer is None:
                break
            if isinstance(answer, Failure):
                if not self.batch.settle(answer):
                    break
            else:
                self.batch.made += answer
                self.batch.places += [place] * len(answer)
            self.called.done = place + 1
        behind = [place for place in self.found if place > self.called.done]
        self.called.wasted = len(behind)
        return self.batch.finish()


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is this task that is to end, and not something the function gave up."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
