"""An expensive step and one unit: the limits of its window, its calls and its records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.pipeline.core.call_outcomes import Failure, ended_process
from millrace.pipeline.core.call_window import SlidingCall
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.core.unit_publish import UnitNotes
from millrace.pipeline.core.worker_deaths import Deaths
from millrace.pipeline.paid.token_batches import cut_by_tokens, tokens_of_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """How many calls a worker has under way, and how far it goes on behind those."""

    concurrency: int = 1
    ahead_max: int = 15
    """Most calls that are recorded before a slot is free for them."""
    calls_max: int = 1024
    """Most calls between the committed offset and the last recorded one."""
    done_bytes_max: int = 64 * 1024 * 1024
    """With so many bytes of results that wait for earlier rows no further call is recorded."""
    publish_bytes: int = 1024 * 1024
    """With so many bytes of results they are published at once; also how many at a time."""
    linger_us: int = 50_000
    """How long results wait for others to be published with."""
    drains_front: bool = False
    """Whether rows are read only when nothing is under way: functions in front run for them."""
    backoff_us: int = 200_000
    """How long a call waits after its first error; twice as long after each further one."""
    backoff_us_max: int = 30_000_000
    refusals_max: int = 30
    """How often a busy provider may refuse one call before that is a failed call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidStep:
    """An expensive step and the unit that one worker has leased."""

    step: Map | FunctionSink
    schema: pa.Schema | None
    """The schema of the rows that the function returns; None for a sink."""
    notes: UnitNotes
    epoch: int
    """The epoch of the unit's lease."""
    limits: WindowLimits = WindowLimits()
    batch_rows: int = 16
    """Rows of a call, if the function gets batches."""

    @property
    def name(self) -> str:
        """The step's name."""
        return self.step.name

    @property
    def calls_batches(self) -> bool:
        """Whether one call gets a whole batch."""
        return self.step.calling.rows == "batch"

    @property
    def is_ordered(self) -> bool:
        """Whether results are published in the order of their rows."""
        return self.step.options.ordered

    def event(self, now_us: int, kind: JobEventKind, **detail: int) -> JobEvent:
        """An event of the run about this step and unit."""
        return self.notes.event(now_us, kind, self.name, **detail)

    def letters(self, now_us: int, call: SlidingCall) -> Iterator[Letter]:
        """The dead letters of the rows of a call that is given up."""
        assert call.failure is not None, "only such rows are left out"
        failure = call.failure
        if failure.answer:
            failure = replace(failure, error=f"{failure.error}\n  answer: {failure.answer}")
        for index in range(len(call.rows)):
            yield self.notes.letter(now_us, self.step, call.rows, replace(failure, place=index))

    def calls_for(
        self, rows: HopRows, deaths: Deaths, doubted: Collection[int] = ()
    ) -> list[SlidingCall]:
        """Rows as calls. Rows whose calls ended a process have calls of their own."""
        if not len(rows):
            return []
        step, retries = self.step, self.step.options.retries
        past = {} if self.calls_batches else deaths.past(step.name, rows, "row", retries)
        calls = []
        for begin, end in self._parts(rows, deaths):
            part = rows.slice(begin, end)
            attempts = past.get(begin, 0)
            if self.calls_batches:
                attempts = deaths.past(step.name, part, "batch", retries).get(0, 0)
            call = SlidingCall(rows=part, attempt=attempts + 1)
            call.in_doubt = bool(doubted) and not set(part.offsets.tolist()).isdisjoint(doubted)
            call.is_alone = call.in_doubt or (
                deaths.has_some and any(map(deaths.is_suspect, part.offsets.tolist()))
            )
            if attempts > retries:
                call.failure = ended_process(0, attempts)
            calls.append(call)
        return calls

    def _parts(self, rows: HopRows, deaths: Deaths) -> Iterator[tuple[int, int]]:
        size = self.batch_rows if self.calls_batches else 1
        if size == 1:
            yield from ((index, index + 1) for index in range(len(rows)))
            return
        most, column = self.step.options.batch_tokens, self.step.options.tokens_column
        for first, last in deaths.parts(rows):
            cuts: Iterator[tuple[int, int]]
            if most is None:
                cuts = ((begin, begin + size) for begin in range(0, last - first, size))
            else:
                tokens = tokens_of_rows(rows.batch.slice(first, last - first), column)
                cuts = cut_by_tokens(tokens, size, most)
            for begin, end in cuts:
                yield first + begin, min(first + end, last)


def result_batch(result: bytes, schema: pa.Schema | None) -> pa.RecordBatch:
    """The rows that one call made; `result` is not empty."""
    return pa.ipc.read_record_batch(pa.py_buffer(result), schema)


def is_last_attempt(failure: Failure, retries: int) -> bool:
    """Whether no further call follows this failure."""
    return failure.is_final or failure.attempts > retries
