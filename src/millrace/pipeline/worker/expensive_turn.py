"""A worker's turn on a unit of an expensive step: carries out the actions of the machine.

While calls take long, a second thread publishes earlier results and records the next intent, so
that calls do not wait for journals that are far away. One thread at a time talks to the machine
about something to publish; rows are read by that thread alone while the calls are under way.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final, assert_never

from millrace.faults import fault
from millrace.pipeline.calling.call_failures import Stopped
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.calling.call_styles import call_for
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import BatchOutcome
from millrace.pipeline.core.call_records import CallRecord
from millrace.pipeline.core.expensive_actions import (
    CallFileAction,
    CountRows,
    DiscardNewCallFile,
    EndTurn,
    ExpensiveAction,
    ForgetCallFiles,
    MakeCalls,
    NextCallFile,
    OpenCallFile,
    PublishChange,
    PutBackRows,
    ReadBatch,
    ReadLeftCalls,
    RemoveCalledFiles,
    RemoveCallFile,
    StopCalls,
    StoreLarge,
    SwitchCallFile,
    WaitForRate,
)
from millrace.pipeline.core.expensive_machine import ExpensiveMachine
from millrace.pipeline.core.paid_turn import Actions
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.call_range_reader import CallRangeReader
from millrace.pipeline.worker.meanwhile import Meanwhile
from millrace.pipeline.worker.publisher import BudgetMoved, Publisher
from millrace.pipeline.worker.turn import LeasedUnit, now_us

_LOG: Final = logging.getLogger(__name__)


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
    ) -> None:
        self.unit, self.machine, self._caller = unit, machine, caller
        self._ranges, self._publisher, self._files = ranges, publisher, files
        self._file: CallFile | None = None
        """The call file of the batch in work."""
        self._new_file: CallFile | None = None
        """The call file of the batch whose intent is being published, or is the last one."""
        self._called_files: list[CallFile] = []
        """Call files of batches whose results wait to be published."""
        self._publishing = threading.Lock()
        """Held from what the machine wants published to its answer, while calls are under way."""
        self._read_error: BaseException | None = None
        self._end = TurnEnd.OVER

    def run(self) -> TurnEnd:
        """Work until the machine ends the turn."""
        try:
            self._carry_out(self.machine.on_start())
        finally:
            # Files of published results are removed before: the next worker may need the rest.
            for file in (*self._called_files, self._file, self._new_file):
                if file is not None:
                    file.close()
        return self._end

    def _carry_out(self, actions: Actions) -> None:
        waiting = deque(actions)
        while waiting:
            waiting.extend(self._do(waiting.popleft()))

    def _do(self, action: ExpensiveAction) -> Actions:
        """Carry out one action; the actions that follow from its outcome."""
        match action:
            case ReadLeftCalls(record):
                return self._read_left_calls(record)
            case StoreLarge(rows):
                stored = tuple(self._caller.passing.store_large(part) for part in rows)
                return self.machine.on_large_stored(stored, now_us())
            case ReadBatch(until_stopped):
                return self._read_batch(until_stopped=until_stopped)
            case PublishChange():
                return self._publish(action)
            case MakeCalls():
                return self._make_calls(action)
            case PutBackRows(range_):
                self._ranges.put_back(range_)
            case CountRows(skipped, dead_letters):
                tally, step = self.unit.tally, self._caller.step.name
                _LOG.info("step %s: %d rows left out, %d dead letters", step, skipped, dead_letters)
                tally.add(tally.skipped, step, skipped)
                tally.add(tally.dead_letters, step, dead_letters)
            case EndTurn(end):
                self._end = end
            case WaitForRate() | StopCalls():
                raise AssertionError(f"{action} outside of a retry")
            case _:
                self._change_files(action)
        return []

    def _change_files(self, action: CallFileAction) -> None:
        match action:
            case OpenCallFile():
                self._new_file = self._open_file(action)
            case SwitchCallFile():
                self._remove_files()
                self._file, self._new_file = self._new_file, None
            case NextCallFile():
                assert self._file is not None
                self._called_files.append(self._file)
                self._file, self._new_file = self._new_file, None
            case RemoveCalledFiles():
                self._remove_called_files()
            case DiscardNewCallFile():
                assert self._new_file is not None
                self._new_file.remove()
                self._new_file = None
            case RemoveCallFile():
                self._remove_files()
            case ForgetCallFiles():
                self._files.forget()
            case _:
                assert_never(action)

    def _read_left_calls(self, record: CallRecord) -> Actions:
        step, journal = self._caller.step.name, self.unit.journal.name
        _LOG.info("step %s: takes over the calls of a dead worker on %s", step, journal)
        batch = self._ranges.up_to(record.next)
        if batch is None:
            assert self._ranges.end is not None
            return self.machine.on_left_unread(self._ranges.end, now_us())
        return self.machine.on_left_calls(batch, self._files.take(record), now_us())

    def _read_batch(self, *, until_stopped: bool) -> Actions:
        def goes_on() -> bool:
            return not self.unit.is_ending() if until_stopped else self.unit.goes_on()

        try:
            if not goes_on():
                return self.machine.on_turn_over(now_us())
            if self._ranges.is_front_due and (first := self.machine.on_front_due(now_us())):
                return first
            batch = self._ranges.next(goes_on)
        except BaseException:
            self._carry_out(self.machine.on_read_error(now_us()))
            raise
        return self.machine.on_batch(batch, self._ranges.end, now_us())

    def _publish(self, action: PublishChange) -> Actions:
        try:
            self._publisher.publish(action.change, action.point)
        except BudgetMoved:
            self._publisher.read_budget()
            return self.machine.on_budget_moved(self._publisher.last_share, now_us())
        return self.machine.on_published(self._publisher.last_share)

    def _open_file(self, action: OpenCallFile) -> CallFile:
        file = self._files.open(action.first, slots=self._caller.options.concurrency)
        file.next_batch(self._caller.step.name, action.offsets)
        for offset, result in action.known.items():
            file.known(offset, result)
        return file

    def _remove_files(self) -> None:
        self._remove_called_files()
        if self._file is not None:
            self._file.remove()
            self._file = None

    def _remove_called_files(self) -> None:
        for file in self._called_files:
            file.remove()
        self._called_files.clear()

    def _make_calls(self, action: MakeCalls) -> Actions:
        after_ms = self.unit.config.job_ahead_ms
        is_far = self._publisher.last_s * 1000 >= after_ms
        goes_ahead = is_far and self.machine.goes_ahead and not self._ranges.has_functions
        ahead = Meanwhile(self._record_ahead if goes_ahead else None, after_ms)
        try:
            called = self._call(action)
        finally:
            ahead.finish(self.unit.config)
        if ahead.error is None:
            return self.machine.on_called(called, now_us())
        if ahead.error is self._read_error:
            self._carry_out(self.machine.on_called(called, now_us()))
        raise ahead.error

    def _record_ahead(self) -> None:
        """Publish results and record the intent of the next batch, while calls are under way."""
        try:
            batch = self._ranges.next(self.unit.goes_on) if self.unit.goes_on() else None
        except BaseException as error:
            self._read_error = error
            with self._publishing:
                self._carry_out(self.machine.on_read_error(now_us()))
            raise
        with self._publishing:
            if batch is None:
                self._carry_out(self.machine.on_turn_over(now_us()))
            else:
                self._carry_out(self.machine.on_batch(batch, self._ranges.end, now_us()))

    def _call(self, action: MakeCalls) -> BatchOutcome:
        fault("worker.call.before")
        called = call_for(
            self._caller,
            action.rows,
            self.unit.journal.id,
            _RecordedCalls(self),
            in_doubt=action.in_doubt,
            call_file=self._file,
            past=action.past,
        )
        fault("worker.call.after")
        self._count(called)
        return called

    def _count(self, called: BatchOutcome) -> None:
        tally, step = self.unit.tally, self._caller.step.name
        tally.add(tally.calls, step, called.calls)
        tally.add(tally.errors, step, called.errors)
        tally.add(tally.in_function, step, called.seconds)
        tally.add(tally.rows_in, step, called.done)
        tally.add(tally.rows_out, step, len(called.out))

    def record_retry(self) -> float:
        """Record that a call is made once more; how long it waits, in seconds."""
        _LOG.info("step %s: a call is retried", self._caller.step.name)
        with self._publishing:
            actions = self.machine.on_retry(now_us())
            while True:
                (action,) = actions
                match action:
                    case PublishChange():
                        actions = self._publish(action)
                    case WaitForRate(wait_us):
                        return wait_us / 1_000_000
                    case StopCalls():
                        raise Stopped
                    case _:
                        raise AssertionError(f"{action} in a retry")


class _RecordedCalls:
    """Hooks before each call of a batch."""

    def __init__(self, turn: ExpensiveTurn) -> None:
        self._turn = turn

    def delay_s(self, number: int) -> float:
        """How long the call of this number waits because of the rate."""
        if self._turn.unit.is_ending():
            raise Stopped
        return self._turn.machine.on_call_due(number, now_us()) / 1_000_000

    def before_retry(self, number: int) -> float:
        """Record a retry."""
        del number
        if self._turn.unit.is_ending():
            raise Stopped
        return self._turn.record_retry()

    def sleep(self, seconds: float) -> None:
        """Wait, unless the worker is to end."""
        if seconds > 0:
            self._turn.unit.sleep(seconds)
