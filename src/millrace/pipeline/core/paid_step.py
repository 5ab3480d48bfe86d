"""An expensive step and one unit: its records, and the past calls for its rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from millrace.pipeline.core.call_outcomes import CallResult, Failure, KnownCalls, Row
from millrace.pipeline.core.call_records import CallRecord, CallRecordKind, Totals
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.core.unit_publish import UnitNotes
from millrace.pipeline.core.worker_deaths import Deaths


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidStep:
    """An expensive step and the unit that one worker has leased."""

    step: Map | FunctionSink
    schema: pa.Schema | None
    """The schema of the rows that the function returns; None for a sink."""
    notes: UnitNotes
    epoch: int
    """The epoch of the unit's lease."""
    has_budget: bool = False

    @property
    def name(self) -> str:
        """The step's name."""
        return self.step.name

    @property
    def calls_batches(self) -> bool:
        """Whether one call gets a whole batch."""
        return self.step.calling.rows == "batch"

    def event(self, now_us: int, kind: JobEventKind, **detail: int) -> JobEvent:
        """An event of the run about this step and unit."""
        return self.notes.event(now_us, kind, self.name, **detail)

    def intent(
        self, now_us: int, first: int, next_: int, *, calls: int, totals: Totals
    ) -> CallRecord:
        """The record that calls for these offsets are about to be made."""
        return self._record(now_us, CallRecordKind.INTENT, first, next_, calls, totals)

    def retry(
        self, now_us: int, first: int, next_: int, *, calls: int, totals: Totals
    ) -> CallRecord:
        """The record that a call is about to be made once more."""
        return self._record(now_us, CallRecordKind.RETRY, first, next_, calls, totals)

    def settled(self, now_us: int, first: int, next_: int, totals: Totals) -> CallRecord:
        """The record that no call for these offsets is in doubt."""
        return self._record(now_us, CallRecordKind.SETTLED, first, next_, 0, totals)

    def _record(
        self, at_us: int, kind: CallRecordKind, first: int, next_: int, calls: int, totals: Totals
    ) -> CallRecord:
        return CallRecord(
            at_us=at_us,
            epoch=self.epoch,
            kind=kind,
            first=first,
            next=next_,
            calls=calls,
            totals=totals,
        )


@dataclass(slots=True)
class PastCalls:
    """The results of earlier calls for the rows of a unit."""

    paid: PaidStep
    deaths: Deaths
    results: dict[int, CallResult] = field(default_factory=dict)
    """Results of a dead worker that wait for the rows before them, by offset."""
    doubted: frozenset[int] = frozenset()
    """Offsets of rows for which a dead worker may have made a call without a known result."""

    def settle(self, offsets: Iterable[int]) -> None:
        """Forget the past of these rows: their results are about to be published."""
        if self.results or self.doubted:
            settled = frozenset(offsets)
            self.results = {n: result for n, result in self.results.items() if n not in settled}
            self.doubted -= settled

    def is_suspect(self, rows: HopRows) -> bool:
        """Whether calls for some of these rows are in doubt, or ended a process."""
        if self.are_doubted(rows):
            return True
        return self.deaths.has_some and any(map(self.deaths.is_suspect, rows.offsets.tolist()))

    def are_doubted(self, rows: HopRows) -> bool:
        """Whether a dead worker may have made calls for some of these rows."""
        return not self.doubted.isdisjoint(rows.offsets.tolist())

    def calls_of(self, rows: HopRows) -> int:
        """The number of calls that rows need: none for known results, or after the last attempt."""
        known, retries = self.known(rows), self.paid.step.options.retries
        spent = sum(attempts > retries for attempts in known.attempts.values())
        if self.paid.calls_batches:
            return 1 - spent
        return len(rows) - len(known.settled) - spent

    def known(self, rows: HopRows) -> KnownCalls:
        """Known attempts and results of rows, before the calls."""
        kind, retries = self.paid.step.calling.rows, self.paid.step.options.retries
        attempts = self.deaths.past(self.paid.name, rows, kind, retries)
        settled: dict[int, list[Row] | Failure] = {}
        if self.results:
            for index, offset in enumerate(rows.offsets.tolist()):
                result = self.results.get(offset)
                if isinstance(result, Failure):
                    settled[index] = replace(result, place=index)
                elif result is not None:
                    settled[index] = result_rows(result, self.paid.schema)
        return KnownCalls(attempts, settled)


def result_batch(result: bytes, schema: pa.Schema | None) -> pa.RecordBatch:
    """The rows that one call made; `result` is not empty."""
    return pa.ipc.read_record_batch(pa.py_buffer(result), schema)


def result_rows(result: bytes, schema: pa.Schema | None) -> list[Row]:
    """The rows that one call made, as the function returned them."""
    if not result:
        return []
    rows: list[Row] = result_batch(result, schema).to_pylist()
    return rows
