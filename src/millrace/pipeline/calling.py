"""Calls a step's function over a batch of rows: retries, time limits, and what is left of errors.

Invariant: rows are settled from the first on without a gap. A row is settled when its results are
there or when its step says that it is left out; nothing that the function raises is lost, and
what ends a process is never held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from millrace.config import Config
from millrace.errors import SchemaMismatch
from millrace.pipeline.context import Context
from millrace.pipeline.failing import Failure, MakingFailed, Stopped, failure_of
from millrace.pipeline.functions import Caller as Function
from millrace.pipeline.hands import CallTimedOut, Hands, stuck_calls
from millrace.pipeline.hops import Hop
from millrace.pipeline.instances import Instance, instance_of
from millrace.pipeline.model import FunctionSink, Map
from millrace.pipeline.passing import Passing
from millrace.pipeline.rows import Rows, nothing
from millrace.pipeline.rule import halves, row_key

Row = dict[str, Any]
T = TypeVar("T")
_NO_CONTEXT: Final = Context(job="", step="", keys=())


class Hooks(Protocol):
    """What has to happen before a call; each may raise `Stopped`."""

    def delay_s(self, number: int) -> float:
        """How long the first call of this number is to wait."""

    def again(self, number: int) -> float:
        """Some calls are made once more: record it, and say how long to wait."""

    def sleep(self, seconds: float) -> None:
        """Wait, unless this is to end."""


@dataclass(slots=True, kw_only=True)
class Called:
    """What became of a batch."""

    done: int
    """So many rows are settled, from the first on."""
    out: Rows
    """What the function made of them."""
    left_out: list[Failure] = field(default_factory=list)
    """Rows among them that raised and are left out."""
    failed: Failure | None = None
    """Why the step gives up, at the first row that is not settled."""
    calls: int = 0
    """Made, again or for the first time."""
    errors: int = 0
    wasted: int = 0
    """Calls whose results are dropped, since a row before theirs failed."""
    stuck: bool = False
    """Whether so many calls never returned that this process is to make no more."""
    seconds: float = 0.0
    """In the function."""


class Caller:
    """Calls one step's function; for one thread."""

    def __init__(
        self, hop: Hop, step: Map | FunctionSink, made: Instance, config: Config, workspace: str
    ) -> None:
        self.hop, self.step, self.config, self.instance = hop, step, config, made
        self.options = step.options
        self.function: Function = made.function
        self.schema: pa.Schema | None = self.function.schema
        self._hands = Hands() if self.options.timeout_s is not None else None
        self.is_careful = hop.expensive is step
        self.passing = Passing(hop, step, workspace)

    @classmethod
    def of(cls, hop: Hop, step: Map | FunctionSink, config: Config, workspace: str) -> Caller:
        """Make what is called, if need be; `MakingFailed` if that raises."""
        try:
            instance = instance_of(hop, step)
        except Exception as error:
            raise MakingFailed(step.name, failure_of(0, error, 1)) from error
        return cls(hop, step, instance, config, workspace)

    def close(self) -> None:
        """End what was only for these calls."""
        if self._hands is not None:
            self._hands.close()
        if self.instance.runner is not None and not self.step.calling.makes:
            self.instance.runner.close()

    def run(self, rows: Rows, journal_id: int, hooks: Hooks, *, in_doubt: bool = False) -> Called:
        """Call the function for all rows, or until it fails."""
        called = self._run(Batch(self, rows, journal_id, hooks, in_doubt=in_doubt))
        called.out = self.passing.put_away(called.out)
        return called

    def _run(self, batch: Batch) -> Called:
        if self.step.calling.rows == "batch":
            return batch.as_whole()
        if self.step.calling.is_async:
            from millrace.pipeline.calling_async import run_async  # noqa: PLC0415 - rarely needed

            return run_async(batch)
        return batch.row_by_row()

    def call_row(self, row: Row, context: Context) -> list[Row]:
        """The rows that one call makes, within its time limit."""
        return self._within_limit(lambda: self._checked(self.function.call_row(row, context)))

    def call_batch(self, batch: pa.RecordBatch, context: Context) -> pa.RecordBatch:
        """The rows that one call makes of a batch, within its time limit."""
        runner = self.instance.runner

        def work() -> pa.RecordBatch:
            if runner is None:
                made = self.function.call_batch(batch, context)
            else:
                made = runner.run(self.function.call_batch_async(batch, context))
            if self.schema is not None:
                check_nulls(made, self.schema)
            return made

        return self._within_limit(work)

    def to_batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Rows that were made, in the step's schema."""
        assert self.schema is not None, "a sink makes no rows"
        made = self.function.to_batch(self.passing.taken_out(rows, self.schema))
        check_nulls(made, self.schema)
        return made

    def _checked(self, rows: list[Row]) -> list[Row]:
        if self.is_careful and rows:
            self.to_batch(rows)  # Before the next call is paid for.
        return rows

    def _within_limit(self, work: Callable[[], T]) -> T:
        if self._hands is None:
            return work()
        assert self.options.timeout_s is not None
        made: T = self._hands.call(work, self.options.timeout_s)
        return made

    def is_stuck(self) -> bool:
        """Whether this process has left so many calls behind that it makes no more."""
        return self._hands is not None and stuck_calls() >= self.config.job_stuck_calls_max

    def backoff_s(self, attempt: int) -> float:
        """How long to wait behind this attempt."""
        waited = self.config.job_retry_ms << min(attempt - 1, 30)
        return float(min(waited, self.config.job_retry_ms_max) / 1000)


class Batch:
    """One batch while it is called for."""

    def __init__(
        self, caller: Caller, rows: Rows, journal_id: int, hooks: Hooks, *, in_doubt: bool
    ) -> None:
        self.caller, self.rows, self.hooks = caller, rows, hooks
        self.journal_id, self.in_doubt = journal_id, in_doubt
        self.made: list[Row] = []
        self.places: list[int] = []
        self.raised: Exception | None = None
        self.called = Called(done=0, out=nothing(caller.schema or rows.batch.schema))

    # One row at a time.
    def row_by_row(self) -> Called:
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

    def one_row(self, place: int, row: Row) -> Failure | None:
        """Call for a row until it succeeds or is given up."""
        if self.raised is None:
            self.hooks.sleep(self.hooks.delay_s(place))

        def attempt(number: int) -> None:
            found = self.caller.call_row(row, self.context(place, place + 1, number))
            self.made += found
            self.places += [place] * len(found)

        return self._attempts(place, attempt)

    def settle(self, failure: Failure) -> bool:
        """Deal with a row that was given up; whether to go on behind it."""
        if self.caller.options.on_error == "fail":
            self.called.failed = failure
            return False
        self.called.left_out.append(failure)
        return True

    def context(self, begin: int, end: int, attempt: int) -> Context:
        """What the function may ask about a call, if it does."""
        if not self.caller.step.calling.takes_context:
            return _NO_CONTEXT
        job, step = self.caller.hop.job, self.caller.step.name
        offsets = self.rows.offsets[begin:end].tolist()
        return Context(
            job=job,
            step=step,
            keys=tuple(row_key(job, step, self.journal_id, offset) for offset in offsets),
            attempt=attempt,
            in_doubt=self.in_doubt,
        )

    def _is_plain(self) -> bool:
        """Whether nothing has to happen between calls, so that rows go through quickly."""
        caller = self.caller
        return not (
            caller.is_careful
            or caller.step.calling.takes_context
            or caller.options.timeout_s is not None
        )

    def _quickly(self, dicts: Sequence[Row], at: int = 0) -> int:
        """Call for rows until one raises; the place of that one, or behind the last."""
        call, made, places = self.caller.function.call_row, self.made, self.places
        begun, first = time.perf_counter(), at
        try:
            while at < len(dicts):
                several = call(dicts[at], _NO_CONTEXT)
                made += several
                places += [at] * len(several)
                at += 1
        except Exception as error:  # noqa: BLE001 - dealt with as the row's first attempt
            self.raised = error
        self.called.seconds += time.perf_counter() - begun
        self.called.calls += at - first
        self.called.done = at
        return at

    def _attempts(self, place: int, attempt: Callable[[int], None]) -> Failure | None:
        """Call until it succeeds, or as often as the step says."""
        number = 1
        while True:
            begun = time.perf_counter()
            try:
                self.called.calls += 1
                self._raise_first()
                attempt(number)
            except Exception as error:  # noqa: BLE001 - goes into the record, and to the user
                failure = failure_of(place, error, number)
                self.called.errors += 1
                is_final = isinstance(error, SchemaMismatch) or (
                    isinstance(error, CallTimedOut) and self.caller.is_stuck()
                )
            else:
                return None
            finally:
                self.called.seconds += time.perf_counter() - begun
            if is_final or number > self.caller.options.retries:
                return failure
            self.hooks.sleep(self.caller.backoff_s(number))
            self.hooks.sleep(self.hooks.again(place))
            number += 1

    def _raise_first(self) -> None:
        """Raise what the first attempt raised, if that was made before."""
        if self.raised is not None:
            error, self.raised = self.raised, None
            raise error

    # A whole batch at a time.
    def as_whole(self) -> Called:
        """Call for the batch; if it raises and its rows may be left out, find those that do."""
        count = len(self.rows)
        out: list[pa.RecordBatch] = []

        def attempt(number: int, begin: int = 0, end: int = count) -> None:
            given = self.rows.batch.slice(begin, end - begin)
            out.append(self.caller.call_batch(given, self.context(begin, end, number)))

        def halve(begin: int, end: int, failure: Failure) -> None:
            """Settle the rows from `begin` to `end`, which raised together."""
            if end - begin == 1:
                self.called.left_out.append(failure)
                self.called.done = end
                return
            for low, high in halves(end - begin):
                if self.caller.is_stuck():
                    raise Stopped
                self.hooks.sleep(self.hooks.again(begin))
                each = self._once(begin + low, begin + high, attempt)
                if each is None:
                    self.called.done = begin + high
                else:
                    halve(begin + low, begin + high, each)

        try:
            self.hooks.sleep(self.hooks.delay_s(0))
            failure = self._attempts(0, attempt)
            if failure is None:
                self.called.done = count
            elif self.caller.options.on_error == "fail":
                self.called.failed = failure
            else:
                halve(0, count, failure)
        except Stopped:
            pass
        self.called.stuck = self.caller.is_stuck()
        if self.caller.schema is not None:
            self.called.out = self._batches(out)
        return self.called

    def _once(
        self, begin: int, end: int, attempt: Callable[[int, int, int], None]
    ) -> Failure | None:
        begun = time.perf_counter()
        try:
            self.called.calls += 1
            attempt(1, begin, end)
        except Exception as error:  # noqa: BLE001 - goes into the record, and to the user
            self.called.errors += 1
            return failure_of(begin, error, self.caller.options.retries + 1)
        finally:
            self.called.seconds += time.perf_counter() - begun
        return None

    def _batches(self, out: Sequence[pa.RecordBatch]) -> Rows:
        """Results of batches. Which row made which is not known, unless each made one."""
        if not out:
            return nothing(self.caller.schema)
        batch = out[0] if len(out) == 1 else pa.concat_batches(out)
        if batch.num_rows == len(self.rows):
            return Rows(batch, self.rows.offsets)
        return Rows(batch, np.full(batch.num_rows, self.rows.offsets[0], np.int64))

    def finish(self) -> Called:
        """Results of rows as a batch; rows whose results do not fit are given up as well."""
        called = self.called
        if self.caller.schema is None:
            return called
        try:
            batch = self.caller.to_batch(self.made)
        except SchemaMismatch:
            self._drop_misfits()
            batch = self.caller.to_batch(self.made)
        offsets = self.rows.offsets[np.array(self.places, np.int64)]
        called.out = Rows(batch, offsets)
        return called

    def _drop_misfits(self) -> None:
        """Give up the rows whose results do not fit; one that fails takes all behind it with it."""
        rows_of: dict[int, list[Row]] = {}
        for place, row in zip(self.places, self.made, strict=True):
            rows_of.setdefault(place, []).append(row)
        self.made, self.places = [], []
        for place, rows in rows_of.items():
            try:
                self.caller.to_batch(rows)
            except SchemaMismatch as error:
                self.called.errors += 1
                if not self.settle(failure_of(place, error, 1)):
                    self.called.done = place
                    self.called.left_out = [f for f in self.called.left_out if f.place < place]
                    return
            else:
                self.made += rows
                self.places += [place] * len(rows)


def check_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse nulls in columns that have none."""
    for column, each in zip(batch.columns, schema, strict=True):
        if not each.nullable and column.null_count:
            raise SchemaMismatch(
                f"the function returned no value for column {each.name!r}\n"
                f"  expected: {each.type} in every row, found: {column.null_count} nulls\n"
                "  to fix: return a value, or let the schema allow nulls"
            )
