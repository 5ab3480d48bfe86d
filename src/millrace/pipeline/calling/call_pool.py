"""Makes the calls of an expensive step: `concurrency` at once, each followed by the next at once.

Calls come from the thread of the turn, which has them recorded before. Async calls are tasks of one
event loop, in the worker's own thread; others are made there, and in further threads if several are
to be under way. Outcomes go to the turn in the order in which they are in the call file.
Invariant: a call is marked before it is made, and its outcome is in the call file before the mark
goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import pyarrow as pa

from millrace.errors import SchemaMismatch
from millrace.faults import fault
from millrace.metrics.process_metrics import CALL_SECONDS, IN_FUNCTION, RETRIES
from millrace.metrics.traces import note_span
from millrace.pipeline.calling.async_batch import is_cancelled, run_through
from millrace.pipeline.calling.call_failures import failure_of
from millrace.pipeline.calling.call_thread import CallTimedOut
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import CallOutcome
from millrace.pipeline.core.call_window import SlidingCall
from millrace.pipeline.core.hop_rows import row_keys
from millrace.pipeline.define.context import Context
from millrace.pipeline.paid.retry_policy import RetryPolicy, refusal_s
from millrace.wakeup import WorkerThread

_MAKING: Final = "millrace-call"
_ENDING_S: Final = 0.05
_LOG: Final = logging.getLogger(__name__)


class CallNotes(Protocol):
    """Writes down what calls do, for the next process."""

    def begin(self, slot: int, call: SlidingCall) -> object:
        """A call is about to be made; returns what `ended` wants to know."""

    def ended(self, slot: int, begun: object, call: SlidingCall, outcome: CallOutcome) -> None:
        """A call has ended: keep its outcome, then tell the turn."""


class CallGate(Protocol):
    """Lets calls pass as fast as limits allow."""

    def wait_s(self) -> float:
        """Take the right to make a call: 0, or how long to wait before it is asked for again."""

    def on_called(self, outcome: CallOutcome) -> None:
        """A call has ended."""


class CallPool:
    """The calls of one turn."""

    def __init__(
        self,
        caller: FunctionCaller,
        journal_id: int,
        notes: CallNotes,
        gate: CallGate | None,
        is_ending: Callable[[], bool],
    ) -> None:
        """`is_ending`: whether no call is to be begun any more, before the turn says so."""
        self._caller, self._journal_id, self._notes, self._gate = caller, journal_id, notes, gate
        self._is_ending = is_ending
        self._concurrency = max(1, caller.options.concurrency)
        options = caller.options
        self._policy = RetryPolicy(retry_on=options.retry_on, give_up_on=options.give_up_on)
        self._ready: deque[SlidingCall] = deque()
        self._changed = threading.Condition()
        self._is_held = self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._asking = asyncio.Lock()
        self._errors: list[BaseException] = []
        self.seconds = 0.0
        """Time spent in the function, over all slots, by their number."""

    # For the thread of the turn.
    def start(self, calls: Sequence[SlidingCall]) -> None:
        """Make these calls when slots are free."""
        with self._changed:
            again = [call for call in calls if call.is_again]
            RETRIES.add(len(again), "provider")
            self._ready.extend(call for call in calls if call not in again)
            self._ready.extendleft(reversed(again))
            self._is_held = self._is_held and not again
            self._wake()

    def go_on(self) -> None:
        """The call that failed is settled: the next may be made."""
        with self._changed:
            self._is_held = False
            self._wake()

    def withdraw(self) -> list[int]:
        """Begin no call of those that were given; returns the offsets of those not begun."""
        with self._changed:
            firsts = [call.first for call in self._ready]
            self._ready.clear()
            return firsts

    def close(self) -> None:
        """Let `run` end when the calls under way have ended."""
        with self._changed:
            self._ready.clear()
            self._is_closed = True
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: all calls have ended.
                self._loop.call_soon_threadsafe(self._wake_tasks)

    # For the worker's own thread.
    def run(self) -> None:
        """Make calls until `close`."""
        if self._caller.step.calling.is_async:
            self._run_tasks()
        else:
            self._run_threads()
        if self._errors:
            raise self._errors[0]

    def _run_threads(self) -> None:
        threads = [
            WorkerThread(self._serve_later(slot), f"{_MAKING}-{slot}")
            for slot in range(1, self._concurrency)
        ]
        for thread in threads:
            thread.start()
        self._serve(0, self._caller)
        for thread in threads:
            thread.join()

    def _serve_later(self, slot: int) -> Callable[[], None]:
        def serve() -> None:
            caller = self._caller.for_another_thread()
            try:
                self._serve(slot, caller)
            finally:
                caller.close_thread()

        return serve

    def _serve(self, slot: int, caller: FunctionCaller) -> None:
        try:
            while (call := self._take()) is not None:
                begun, context = self._begin(slot, call)
                began = time.perf_counter()
                outcome: CallOutcome
                try:
                    made = self._made(caller, call, context)
                    outcome = self._returned(call, context, began, made)
                except BaseException as error:  # noqa: BLE001 - an outcome of the call
                    outcome = self._raised(caller, call, context, began, error)
                self._ended(slot, begun, call, outcome)
        except BaseException as error:  # noqa: BLE001 - raised in the worker's own thread
            self._errors.append(error)
            self.close()

    def _take(self, *, waits: bool = True) -> SlidingCall | None:
        """The next call, when there is one and it may be made; None at the end.

        Without `waits` also None if there is none now.
        """
        with self._changed:
            while True:
                if self._ready and not self._is_held:
                    wait_s = self._wait_s()
                    if wait_s <= 0:
                        return self._ready.popleft()
                    if not waits:
                        return None
                    self._changed.wait(wait_s)
                elif self._is_closed or not waits:
                    return None
                else:
                    self._changed.wait()

    def _made(
        self, caller: FunctionCaller, call: SlidingCall, context: Context
    ) -> pa.RecordBatch | None:
        if caller.step.calling.rows == "batch":
            made = caller.call_batch(call.rows.batch, context)
            return made if caller.schema is not None else None
        (row,) = caller.passing.dicts(call.rows.batch)
        rows = caller.call_row(row, context)
        return caller.to_batch(rows) if rows else None

    # Async calls.
    def _run_tasks(self) -> None:
        runner = self._caller.instance.runner
        assert runner is not None, "an async function has a loop"
        self._loop = runner.get_loop()
        try:
            run_through(self._loop, self._all_tasks())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        finally:
            self._loop = None

    async def _all_tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            for slot in range(self._concurrency):
                group.create_task(self._serve_async(slot))

    async def _serve_async(self, slot: int) -> None:
        caller = self._caller
        is_batch = caller.step.calling.rows == "batch"
        while (call := await self._take_async()) is not None:
            begun, context = self._begin(slot, call)
            began = time.perf_counter()
            try:
                made: pa.RecordBatch | None
                if is_batch:
                    made = await caller.call_batch_async(call.rows.batch, context)
                    made = made if caller.schema is not None else None
                else:
                    (row,) = caller.passing.dicts(call.rows.batch)
                    rows = await caller.call_row_async(row, context)
                    made = caller.to_batch(rows) if rows else None
                outcome = self._returned(call, context, began, made)
            except BaseException as error:
                if is_cancelled(error):
                    raise
                outcome = self._raised(caller, call, context, began, error)
            self._ended(slot, begun, call, outcome)

    async def _take_async(self) -> SlidingCall | None:
        while True:
            if self._ready and not self._is_held:
                # One slot at a time asks: the others would only ask for the same.
                async with self._asking:
                    wait_s = self._wait_s() if self._ready else 0.0
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                        continue
                    with contextlib.suppress(IndexError):  # Withdrawn meanwhile.
                        return self._ready.popleft()
            elif self._is_closed:
                return None
            else:
                await self._idle_for_calls()

    async def _idle_for_calls(self) -> None:
        """Wait for a call."""
        woken = asyncio.get_running_loop().create_future()
        self._idle.append(woken)
        await woken

    def _wake_tasks(self) -> None:
        """Wake as many slots as there are calls; all of them at the end."""
        count = len(self._idle) if self._is_closed else len(self._ready)
        while self._idle and count > 0:
            woken = self._idle.pop()
            if not woken.done():
                woken.set_result(None)
                count -= 1

    # All calls.
    def _wait_s(self) -> float:
        """How long until the next call is asked for again; 0 if it may be made."""
        if self._is_ending():
            return _ENDING_S
        return 0.0 if self._gate is None else self._gate.wait_s()

    def _begin(self, slot: int, call: SlidingCall) -> tuple[object, Context]:
        fault("worker.call.before")
        caller = self._caller
        context = Context(
            job=caller.hop.job,
            step=caller.step.name,
            keys=row_keys(caller.asker, self._journal_id, call.rows, 0, len(call.rows))
            if caller.step.calling.takes_context or caller.step.calling.is_engine
            else (),
            attempt=call.attempt,
            in_doubt=call.in_doubt,
        )
        return self._notes.begin(slot, call), context

    def _returned(
        self, call: SlidingCall, context: Context, began: float, made: pa.RecordBatch | None
    ) -> CallOutcome:
        return CallOutcome(
            first=call.first,
            attempt=call.attempt,
            at_us=time.time_ns() // 1000,
            seconds=time.perf_counter() - began,
            made=made if made is not None and made.num_rows else None,
            noted=context.noted.noted,
        )

    def _raised(
        self,
        caller: FunctionCaller,
        call: SlidingCall,
        context: Context,
        began: float,
        error: BaseException,
    ) -> CallOutcome:
        is_stuck = caller.is_stuck()
        kind = type(error).__name__
        _LOG.info("step %s: try %d of a call raised %s", caller.step.name, call.attempt, kind)
        is_final = isinstance(error, SchemaMismatch) or self._policy.is_final(error)
        is_final = is_final or (isinstance(error, CallTimedOut) and is_stuck)
        return CallOutcome(
            first=call.first,
            attempt=call.attempt,
            at_us=time.time_ns() // 1000,
            seconds=time.perf_counter() - began,
            failure=failure_of(0, error, call.attempt, is_final=is_final),
            refused_s=refusal_s(error),
            noted=context.noted.noted,
            is_stuck=is_stuck,
            chance=random.random(),  # noqa: S311 - keeps calls apart
        )

    def _ended(self, slot: int, begun: object, call: SlidingCall, outcome: CallOutcome) -> None:
        self.seconds += outcome.seconds / self._concurrency
        labels = (self._caller.hop.job, self._caller.step.name)
        CALL_SECONDS.note(outcome.seconds, *labels)
        IN_FUNCTION.add(outcome.seconds / self._concurrency, *labels)
        failed = None if outcome.failure is None else outcome.failure.kind
        note_span("call", outcome.seconds, failed, attempt=call.attempt)
        if self._concurrency == 1 and outcome.failure is not None:
            self._is_held = True
        if self._gate is not None:
            self._gate.on_called(outcome)
        self._notes.ended(slot, begun, call, outcome)
        fault("worker.call.after")
