"""Calls an async function for the rows of a batch, several at once, on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from millrace.errors import SchemaMismatch
from millrace.pipeline.calling.batch import Batch
from millrace.pipeline.calling.caller import Called, Row
from millrace.pipeline.calling.failing import Failure, Stopped, failure_of


def run_async(batch: Batch) -> Called:
    """Call for all rows, at most `concurrency` at once; none is begun behind one that fails."""
    runner = batch.caller.instance.runner
    assert runner is not None, "an async function has a loop"
    begun = time.perf_counter()
    work = _Several(batch)
    try:
        runner.run(work.run())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    batch.called.seconds += time.perf_counter() - begun
    return work.finish()


class _Several:
    def __init__(self, batch: Batch) -> None:
        self.batch, self.caller, self.called = batch, batch.caller, batch.called
        self.dicts: list[Row] = batch.caller.passing.dicts(batch.rows.batch)
        self.places: Iterator[int] = iter(range(len(self.dicts)))
        self.found: dict[int, list[Row] | Failure] = {}
        self.is_ending = False
        self.recording = asyncio.Lock()

    async def run(self) -> None:
        count = max(1, min(self.caller.options.concurrency, len(self.dicts)))
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._serve())

    async def _serve(self) -> None:
        while not self.is_ending and (place := next(self.places, None)) is not None:
            try:
                answer = await self._one(place)
            except Stopped:
                self.is_ending = True
                return
            self.found[place] = answer
            if isinstance(answer, Failure) and self.caller.options.on_error == "fail":
                self.is_ending = True

    async def _one(self, place: int) -> list[Row] | Failure:
        await asyncio.sleep(self.batch.hooks.delay_s(place))
        number = 1
        while True:
            self.called.calls += 1
            try:
                return await self._call(place, number)
            except Exception as error:  # noqa: BLE001 - goes into the record, and to the user
                self.called.errors += 1
                if isinstance(error, SchemaMismatch) or number > self.caller.options.retries:
                    return failure_of(place, error, number)
            await asyncio.sleep(self.caller.backoff_s(number))
            async with self.recording:
                wait_s = await asyncio.to_thread(self.batch.hooks.again, place)
            await asyncio.sleep(wait_s)
            number += 1

    async def _call(self, place: int, number: int) -> list[Row]:
        context = self.batch.context(place, place + 1, number)
        async with asyncio.timeout(self.caller.options.timeout_s):
            rows = await self.caller.function.call_row_async(self.dicts[place], context)
        if rows:
            self.caller.to_batch(rows)
        return rows

    def finish(self) -> Called:
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
