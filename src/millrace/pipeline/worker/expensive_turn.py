"""A worker's turn on a unit of an expensive step: carries out the actions of the machine.

The worker's own thread makes the calls, and a thread of the turn does all the rest: it gives the
machine what comes in, reads rows, publishes. So calls wait for nothing but their records.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from dataclasses import replace
from typing import Final, assert_never

import numpy as np
import pyarrow as pa

from millrace.pipeline.calling.call_pool import CallGate, CallPool
from millrace.pipeline.calling.engine_pool import EnginePool
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import CallOutcome
from millrace.pipeline.core.expensive_actions import (
    Actions,
    CountRows,
    EndTurn,
    ExpensiveAction,
    ForgetCallFiles,
    GoOn,
    KeepResults,
    PublishChange,
    ReadLeftCalls,
    ReadMoreRows,
    StartCalls,
    Wait,
    WithdrawCalls,
)
from millrace.pipeline.core.expensive_machine import ExpensiveMachine
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.paid.call_records import CallRecord
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.call_range_reader import CallRangeReader
from millrace.pipeline.worker.publisher import BudgetMoved, Publisher
from millrace.pipeline.worker.sliding.call_segments import CallSegments
from millrace.pipeline.worker.turn import LeasedUnit, now_us
from millrace.wakeup import WorkerThread

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.1
"""How often a turn looks whether it is to end, while it waits for calls."""


class ExpensiveTurn:
    """Carries out reads, calls and publishes of the machine."""

    def __init__(
        self,
        unit: LeasedUnit,
        machine: ExpensiveMachine,
        *,
        caller: FunctionCaller,
        ranges: CallRangeReader,
        publisher: Publisher,
        files: CallFiles,
        gate: CallGate | None = None,
    ) -> None:
        self.unit, self.machine, self._caller = unit, machine, caller
        self._ranges, self._publisher, self._files = ranges, publisher, files
        self._inbox: queue.SimpleQueue[CallOutcome] = queue.SimpleQueue()
        slots = max(1, caller.options.concurrency)
        self._segments = CallSegments(files, caller.step.name, slots, self._inbox.put)
        journal_id = int(unit.journal.id)
        make_pool = EnginePool if caller.step.calling.is_engine else CallPool
        self._pool = make_pool(caller, journal_id, self._segments, gate, unit.is_ending)
        self._error: BaseException | None = None
        self._read_error: BaseException | None = None
        self._ended: EndTurn | None = None
        self._is_told = False
        """Whether the machine knows that the turn is over."""

    def run(self) -> TurnEnd:
        """Work until the machine ends the turn."""
        thread = WorkerThread(self._lead, "millrace-turn")
        thread.start()
        try:
            self._pool.run()
        finally:
            thread.join()
            # Files of published results go: the next worker may need the rest.
            is_whole = self._ended is not None and not self._ended.keeps_file
            self._segments.close(keeps=not is_whole)
            tally, step = self.unit.tally, self._caller.step.name
            tally.add(tally.in_function, step, self._pool.seconds)
        for error in (self._error, self._read_error):
            if error is not None:
                raise error
        assert self._ended is not None, "a turn without an error was ended"
        return self._ended.end

    def _lead(self) -> None:
        try:
            actions = deque(self.machine.on_start())
            while self._ended is None:
                while actions and self._ended is None:
                    actions.extend(self._do(actions.popleft()))
                if self._ended is None:
                    self._take_outcomes(actions)
                    if not actions:
                        actions.extend(self.machine.on_idle(now_us()))
        except BaseException as error:  # noqa: BLE001 - raised by the worker's own thread
            self._error = error
        finally:
            self._pool.close()

    def _take_outcomes(self, actions: deque[ExpensiveAction]) -> None:
        """Give the machine all outcomes that are there."""
        while True:
            try:
                outcome = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._count(outcome)
            actions.extend(self.machine.on_called(outcome, now_us()))

    def _do(self, action: ExpensiveAction) -> Actions:
        """Carry out one action; the actions that follow from its outcome."""
        match action:
            case ReadLeftCalls(record):
                return self._read_left_calls(record)
            case KeepResults(calls):
                self._segments.keep(calls)
            case ForgetCallFiles():
                self._files.forget()
            case ReadMoreRows():
                return self._read_rows()
            case PublishChange(change, point):
                return self._publish(change, point)
            case StartCalls(calls):
                self._pool.start(calls)
            case GoOn():
                self._pool.go_on()
            case WithdrawCalls():
                return self.machine.on_withdrawn(self._pool.withdraw())
            case Wait(until_us):
                return self._wait(until_us)
            case CountRows(skipped, dead_letters):
                tally, step = self.unit.tally, self._caller.step.name
                _LOG.info("step %s: %d rows left out, %d dead letters", step, skipped, dead_letters)
                tally.add(tally.skipped, step, skipped)
                tally.add(tally.dead_letters, step, dead_letters)
            case EndTurn():
                self._ended = action
            case _:
                assert_never(action)
        return []

    def _read_left_calls(self, record: CallRecord) -> Actions:
        step, journal = self._caller.step.name, self.unit.journal.name
        _LOG.info("step %s: takes over the calls of a dead worker on %s", step, journal)
        batch = self._ranges.up_to(record.next)
        if batch is None:
            assert self._ranges.end is not None
            return self.machine.on_left_unread(self._ranges.end, now_us())
        return self.machine.on_left_calls(batch, self._files.take(record), now_us())

    def _read_rows(self) -> Actions:
        try:
            if not self.unit.goes_on():
                return self._turn_over()
            batch = self._ranges.next(self.unit.goes_on)
        except BaseException as error:  # noqa: BLE001 - raised when results are published
            self._read_error = error
            return self.machine.on_read_error()
        return self.machine.on_rows(batch, self._ranges.end, now_us())

    def _turn_over(self) -> Actions:
        self._is_told = True
        return self.machine.on_turn_over()

    def _wait(self, until_us: int | None) -> Actions:
        """Wait for an outcome, a time, or the end of the turn."""
        if not self._is_told and not self.unit.goes_on():
            return self._turn_over()
        wait_s = _LOOK_S
        if until_us is not None:
            wait_s = min(wait_s, max(0.0, (until_us - now_us()) / 1_000_000))
        try:
            outcome = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return []
        self._count(outcome)
        return self.machine.on_called(outcome, now_us())

    def _publish(self, change: UnitPublish, point: str) -> Actions:
        self._segments.open()
        try:
            self._publisher.publish(self._with_large(change), point)
        except BudgetMoved:
            self._publisher.read_budget()
            return self.machine.on_budget_moved(self._publisher.last_share, now_us())
        self._segments.published(change.next)
        before = self.machine.rows_done
        actions = self.machine.on_published(self._publisher.last_share, now_us())
        tally, step = self.unit.tally, self._caller.step.name
        tally.add(tally.rows_in, step, self.machine.rows_done - before)
        tally.add(tally.rows_out, step, sum(part.num_rows for part in change.outputs))
        return actions

    def _with_large(self, change: UnitPublish) -> UnitPublish:
        """The change as it is published: large values are in files."""
        if not change.outputs or not self._caller.options.large:
            return change
        batch = pa.concat_batches(change.outputs)
        rows = HopRows(batch, np.zeros(batch.num_rows, np.int64))
        return replace(change, outputs=(self._caller.passing.store_large(rows).batch,))

    def _count(self, outcome: CallOutcome) -> None:
        tally, step = self.unit.tally, self._caller.step.name
        self.unit.on_called(outcome.seconds)
        if outcome.refused_s is not None:
            return
        tally.add(tally.calls, step, 1)
        tally.add(tally.errors, step, outcome.failure is not None)
