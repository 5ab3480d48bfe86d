"""One batch of rows while the function of a cheap step is called for it.

Invariant: rows are settled from the first on without a gap. A row is settled when it has results,
or when the options of its step leave it out. Every exception of the function is a failed call, also
one that would end the process, such as SystemExit. A call that does end the process is marked in
the call file, for the next process to see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.errors import SchemaMismatch
from millrace.pipeline.calling.call_failures import Stopped, failure_of
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.calling.call_thread import CallTimedOut
from millrace.pipeline.calling.function_caller import NO_CONTEXT, FunctionCaller
from millrace.pipeline.core.call_outcomes import (
    BatchOutcome,
    Failure,
    KnownCalls,
    Row,
    ended_process,
)
from millrace.pipeline.core.hop_rows import HopRows, nothing, row_keys
from millrace.pipeline.define.context import Context


class CallBatch:
    """One batch while it is called for."""

    def __init__(
        self,
        caller: FunctionCaller,
        rows: HopRows,
        journal_id: int,
        sleep: Callable[[float], None],
        *,
        call_file: CallFile,
        past: KnownCalls,
    ) -> None:
        self.caller, self.rows, self.sleep = caller, rows, sleep
        self.journal_id = journal_id
        self.call_file, self.past = call_file, past
        self.made: list[Row] = []
        self.row_indexes: list[int] = []
        self.raised: BaseException | None = None
        self.called = BatchOutcome(done=0, out=nothing(caller.schema or rows.batch.schema))

    # One row at a time.
    def row_by_row(self) -> BatchOutcome:
        """Call for each row in turn."""
        dicts = self.caller.passing.dicts(self.rows.batch)
        at = self._quickly(dicts) if self._is_plain() else 0
        while at < len(dicts):
            try:
                failure = self.one_row(at, dicts[at])
            except Stopped:
                break
            at += 1
            if failure is not None and not self.settle(failure):
                break
            self.called.done = at
            if self.caller.is_stuck():
                self.called.stuck = True
                break
            if failure is not None and self._is_plain():
                at = self._quickly(dicts, at)
        return self.finish()

    def one_row(self, index: int, row: Row) -> Failure | None:
        """Call for a row until it succeeds or is given up."""

        def attempt(number: int) -> None:
            self.call_file.begin(0, index, index + 1, number)
            made = self.caller.call_row(row, self.context(index, index + 1, number))
            self._take(index, made)
            self.call_file.end(0)

        return self._attempts(index, attempt)

    def _take(self, index: int, made: list[Row]) -> None:
        self.made += made
        self.row_indexes += [index] * len(made)

    def settle(self, failure: Failure) -> bool:
        """Settle a row that failed for good; returns whether to go on with the next row."""
        if self.caller.options.on_error == "fail" or failure.ends_step:
            self.called.failed = failure
            return False
        self.called.left_out.append(failure)
        return True

    def context(self, begin: int, end: int, attempt: int) -> Context:
        """The context of a call; an empty one if the function takes none."""
        if not self.caller.step.calling.takes_context:
            return NO_CONTEXT
        return Context(
            job=self.caller.hop.job,
            step=self.caller.step.name,
            keys=row_keys(self.caller.asker, self.journal_id, self.rows, begin, end),
            attempt=attempt,
        )

    def _is_plain(self) -> bool:
        """Whether no work is needed between calls, so that `_quickly` can make them."""
        caller = self.caller
        return not (
            self.past.attempts
            or caller.step.calling.takes_context
            or caller.options.timeout is not None
        )

    def _quickly(self, dicts: Sequence[Row], at: int = 0) -> int:
        """Call for rows until a call raises; return the index of its row, or the number of rows."""
        call, made, row_indexes = self.caller.function.call_row, self.made, self.row_indexes
        begun, first, marks = time.perf_counter(), at, self.call_file.marks
        self.call_file.begin(0, at, 0, 1)
        try:
            while at < len(dicts):
                marks[0] = at + 1
                several = call(dicts[at], NO_CONTEXT)
                made += several
                row_indexes += [at] * len(several)
                at += 1
        except BaseException as error:  # noqa: BLE001 - dealt with as the row's first attempt
            self.raised = error
        marks[0] = 0
        self.called.seconds += time.perf_counter() - begun
        self.called.calls += at - first
        self.called.done = at
        return at

    def _attempts(self, index: int, attempt: Callable[[int], None]) -> Failure | None:
        """Call until a call succeeds, at most as often as `retries` allows."""
        number = 1 + self.past.attempts.get(index, 0)
        if number > self.caller.options.retries + 1:
            return ended_process(index, number - 1)
        while True:
            begun = time.perf_counter()
            try:
                self.called.calls += 1
                self._raise_first()
                attempt(number)
            except BaseException as error:  # noqa: BLE001 - goes into the record, and to the user
                self.call_file.end(0)
                failure = failure_of(index, error, number)
                self.called.errors += 1
                is_final = isinstance(error, SchemaMismatch) or (
                    isinstance(error, CallTimedOut) and self.caller.is_stuck()
                )
            else:
                return None
            finally:
                self.called.seconds += time.perf_counter() - begun
            if is_final or failure.ends_step or number > self.caller.options.retries:
                return failure
            self.sleep(self.caller.backoff_s(number))
            number += 1

    def _raise_first(self) -> None:
        """Raise the exception of the first attempt, if `_quickly` made that attempt."""
        if self.raised is not None:
            error, self.raised = self.raised, None
            raise error

    # A whole batch at a time.
    def as_whole(self) -> BatchOutcome:
        """Call for the batch; if it raises and rows may be left out, find the rows that raise."""
        if self.past.attempts.get(0, 0) > self.caller.options.retries:
            return self._give_up()
        count = len(self.rows)
        out: list[pa.RecordBatch] = []

        def attempt(number: int, begin: int = 0, end: int = count) -> None:
            given = self.rows.batch.slice(begin, end - begin)
            # A half is called for once: no attempt is left behind it.
            last = number if end - begin == count else self.caller.options.retries + 1
            self.call_file.begin(0, begin, end, last)
            made = self.caller.call_batch(given, self.context(begin, end, number))
            out.append(made)
            self.call_file.end(0)

        def halve(begin: int, end: int, failure: Failure) -> None:
            """Settle the rows from `begin` to `end`, which raised together."""
            if end - begin == 1:
                self.settle(failure)
                self.called.done = end
                return
            middle = (end - begin) // 2
            for low, high in ((0, middle), (middle, end - begin)):
                if self.caller.is_stuck():
                    raise Stopped
                half_failure = self._once(begin + low, begin + high, attempt)
                if half_failure is None:
                    self.called.done = begin + high
                else:
                    halve(begin + low, begin + high, half_failure)

        try:
            failure = self._attempts(0, attempt)
            if failure is None:
                self.called.done = count
            elif self.caller.options.on_error == "fail" or failure.ends_step:
                self.called.failed = failure
            else:
                halve(0, count, failure)
        except Stopped:
            pass
        self.called.stuck = self.caller.is_stuck()
        if self.caller.schema is not None:
            self.called.out = self._batches(out)
        return self.called

    def _give_up(self) -> BatchOutcome:
        """Calls for this batch ended their process too often, and it was halved before."""
        failure = ended_process(0, self.past.attempts[0])
        for index in range(len(self.rows)):
            if not self.settle(replace(failure, place=index)):
                break
            self.called.done = index + 1
        return self.called

    def _once(
        self, begin: int, end: int, attempt: Callable[[int, int, int], None]
    ) -> Failure | None:
        begun = time.perf_counter()
        try:
            self.called.calls += 1
            attempt(1, begin, end)
        except BaseException as error:  # noqa: BLE001 - goes into the record, and to the user
            self.call_file.end(0)
            self.called.errors += 1
            return failure_of(begin, error, self.caller.options.retries + 1)
        finally:
            self.called.seconds += time.perf_counter() - begun
        return None

    def _batches(self, out: Sequence[pa.RecordBatch]) -> HopRows:
        """Results of batches. The input row of a result is known only if each row made one."""
        if not out:
            return nothing(self.caller.schema)
        batch = out[0] if len(out) == 1 else pa.concat_batches(out)
        if batch.num_rows == len(self.rows):
            return HopRows(batch, self.rows.offsets)
        return HopRows(batch, np.full(batch.num_rows, self.rows.offsets[0], np.int64))

    def finish(self) -> BatchOutcome:
        """Results of rows as a batch; rows whose results do not fit are given up as well."""
        called = self.called
        if self.caller.schema is None:
            return called
        try:
            batch = self.caller.to_batch(self.made)
        except SchemaMismatch:
            self._drop_misfits()
            batch = self.caller.to_batch(self.made)
        offsets = self.rows.offsets[np.array(self.row_indexes, np.int64)]
        called.out = HopRows(batch, offsets)
        return called

    def _drop_misfits(self) -> None:
        """Give up the rows whose results do not fit; a row that fails the step ends the batch."""
        rows_of: dict[int, list[Row]] = {}
        for index, row in zip(self.row_indexes, self.made, strict=True):
            rows_of.setdefault(index, []).append(row)
        self.made, self.row_indexes = [], []
        for index, rows in rows_of.items():
            try:
                self.caller.to_batch(rows)
            except SchemaMismatch as error:
                self.called.errors += 1
                if not self.settle(failure_of(index, error, 1)):
                    self.called.done = index
                    self.called.left_out = [f for f in self.called.left_out if f.place < index]
                    return
            else:
                self.made += rows
                self.row_indexes += [index] * len(rows)
