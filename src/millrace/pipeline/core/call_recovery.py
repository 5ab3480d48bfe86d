"""Recovers the calls that a worker was about to make when its process ended. Pure.

The record names the rows. The call files, if this host has them, name the calls that had returned,
with their results, and those that were under way. Only calls that were under way are in doubt.
Invariant: results that returned are published and not called for again. Calls in doubt are dealt
with as `on_doubt` says. Those that are made again are made alone, and count as failed attempts if
they ended a process of this run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.pipeline.core.call_outcomes import CallMark, Failure, LeftCalls, LeftOutcome
from millrace.pipeline.core.call_ranges import CallRange
from millrace.pipeline.core.call_window import SlidingCall
from millrace.pipeline.core.hop_rows import HopRows, Offsets
from millrace.pipeline.core.job_events import JobEvent
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.core.paid_step import PaidStep, result_batch
from millrace.pipeline.core.worker_deaths import Death, Deaths
from millrace.pipeline.paid.call_records import CallRecord, Totals
from millrace.pipeline.paid.charges import CallCharge

_IN_DOUBT: Final = Failure(
    place=0,
    error="in doubt: a worker that died may have made this call",
    traceback="",
    kind="InDoubt",
)


@dataclass(slots=True, kw_only=True)
class RecoveredCalls:
    """The calls of a dead worker's record, as the next worker goes on with them."""

    calls: list[SlidingCall] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    charges: list[CallCharge] = field(default_factory=list)
    totals: Totals
    on_hold: tuple[int, int, int] | None = None
    """Calls in doubt that the user decides about: first and last offset, and their number."""


def recover_calls(
    paid: PaidStep,
    deaths: Deaths,
    rows: CallRange,
    record: CallRecord,
    left: LeftCalls | None,
    now_us: int,
) -> RecoveredCalls:
    """Decide about the rows of a record whose worker is dead.

    Args:
        paid: the step and its unit.
        deaths: the known deaths of the unit; new ones are added.
        rows: the rows of the record that are not published.
        record: the last record of the unit.
        left: the call files that the worker left on this host.
        now_us: the time of events.
    """
    recovery = _Recovery(paid, deaths, rows.rows, record, now_us)
    if left is None or not _fits(left, rows.rows, paid.schema):
        return recovery.without_file()
    return recovery.with_file(left)


def death_of(step: Map | FunctionSink, offsets: Offsets, mark: CallMark, attempts: int) -> Death:
    """The record of a call that ended its process; the mark has indexes."""
    first, last = int(offsets[mark.begin]), int(offsets[mark.end - 1])
    is_batch, options = step.calling.rows == "batch", step.options
    middle = int(offsets[(mark.begin + mark.end) // 2])
    is_cut = (
        is_batch and attempts > options.retries and options.on_error != "fail" and middle > first
    )
    return Death(
        step=step.name,
        first=first,
        next=last + 1,
        repeat=0 if is_batch else mark.begin - int(np.searchsorted(offsets, first)),
        attempts=attempts,
        middle=middle if is_cut else None,
    )


def _fits(left: LeftCalls, rows: HopRows, schema: pa.Schema | None) -> bool:
    """Whether the results in the file can be read, and its marks are about these rows."""
    known = set(rows.offsets.tolist())
    if not all(mark.begin in known for mark in left.marks):
        return False
    try:
        for outcome in left.outcomes:
            if outcome.begin in known and isinstance(outcome.result, bytes) and outcome.result:
                result_batch(outcome.result, schema).validate(full=True)
    except (pa.ArrowException, OSError):
        return False
    return True


class _Recovery:
    def __init__(
        self, paid: PaidStep, deaths: Deaths, rows: HopRows, record: CallRecord, now_us: int
    ) -> None:
        self._paid, self._deaths, self._now_us = paid, deaths, now_us
        self._rows, self._record, self._options = rows, record, paid.step.options
        self._out = RecoveredCalls(totals=record.totals)
        self._settled: list[SlidingCall] = []
        self._calls_min = 0
        """How many calls are in doubt at least, if some are."""

    def without_file(self) -> RecoveredCalls:
        """Every call may have been made. Where one batch ended and the next began is not known."""
        count = len(self._rows)
        self._calls_min = self._record.calls if self._paid.calls_batches else 0
        ends = [(0, count)] if self._paid.calls_batches else [(n, n + 1) for n in range(count)]
        suspects = [CallMark(begin, end, 0) for begin, end in ends] if count else []
        attempts: dict[CallMark, int] = {}
        for suspect in suspects:
            first, next_ = self._offsets(suspect)
            before = self._deaths.attempts(self._paid.name, first, next_)
            # Called for alone in this run, it is what ended the process.
            is_again = len(suspects) == 1 and before is not None
            attempts[suspect] = (before or 0) + is_again
        self._count(errors=sum(n > 0 for n in attempts.values()))
        return self._decide(attempts)

    def with_file(self, left: LeftCalls) -> RecoveredCalls:
        """Only calls that were under way may have been made without a result."""
        for outcome in left.outcomes:
            if outcome.number >= self._record.outcomes:
                self._account(outcome)
        settled: dict[int, LeftOutcome] = {}
        begun: set[int] = set()
        index_of = {int(offset): index for index, offset in enumerate(self._rows.offsets)}
        for outcome in left.outcomes:
            if outcome.begin in index_of:
                begun.add(outcome.begin)
                settled[outcome.begin] = outcome
        suspects: list[CallMark] = []
        for mark in left.marks:
            known = settled.get(mark.begin)
            if known is None or not self._settles(known):
                end = int(np.searchsorted(self._rows.offsets, mark.end))
                suspects.append(CallMark(index_of[mark.begin], end, mark.attempt))
        begun |= {int(self._rows.offsets[suspect.begin]) for suspect in suspects}
        for outcome in settled.values():
            if self._settles(outcome):
                self._settle(outcome, index_of[outcome.begin])
        is_counted = left.header["run"] == self._paid.notes.run
        attempts = {suspect: suspect.attempt if is_counted else 0 for suspect in suspects}
        if len(suspects) > 1:
            # One of them did it. All get a call of their own, which will tell.
            attempts = {s: min(n, self._options.retries) for s, n in attempts.items()}
        self._count(
            calls=-max(0, self._record.calls - self._begun_since(left, begun)),
            errors=is_counted * len(suspects),
        )
        return self._decide(attempts)

    def _begun_since(self, left: LeftCalls, begun: set[int]) -> int:
        """How many calls that the record counts as without an outcome were begun."""
        late = {o.begin for o in left.outcomes if o.number >= self._record.outcomes}
        under_way = {mark.begin for mark in left.marks}
        return len((late | under_way) & begun)

    def _account(self, outcome: LeftOutcome) -> None:
        """Count an outcome that no record counts yet."""
        is_failure = isinstance(outcome.result, Failure)
        self._out.totals = self._out.totals.spent(outcome.noted.spend)
        self._count(errors=int(is_failure), refused=int(outcome.result is None))
        if outcome.result is None:
            self._count(calls=-1)
        self._out.charges.append(
            self._paid.notes.charge(
                at_us=outcome.at_us,
                offset=outcome.begin,
                attempt=outcome.attempt,
                noted=outcome.noted,
                seconds=outcome.seconds,
                failure=outcome.result if isinstance(outcome.result, Failure) else None,
                is_refused=outcome.result is None,
            )
        )

    def _settles(self, outcome: LeftOutcome) -> bool:
        """Whether no further call follows this outcome."""
        match outcome.result:
            case None:
                return False
            case Failure() as failure:
                is_last = failure.is_final or failure.attempts > self._options.retries
                is_single = outcome.end - outcome.begin == 1 or not self._paid.calls_batches
                is_left_out = self._options.on_error != "fail" and not failure.ends_step
                return is_last and is_single and is_left_out
            case _:
                return True

    def _settle(self, outcome: LeftOutcome, index: int) -> None:
        end = max(index + 1, int(np.searchsorted(self._rows.offsets, outcome.end)))
        call = SlidingCall(rows=self._rows.slice(index, end), is_done=True)
        if isinstance(outcome.result, Failure):
            call.failure = outcome.result
            self._leave_out(call)
        elif outcome.result:
            call.made = result_batch(outcome.result, self._paid.schema)
        self._settled.append(call)

    def _decide(self, attempts: dict[CallMark, int]) -> RecoveredCalls:
        out = self._out
        if attempts and self._options.on_doubt == "hold":
            first = min(self._offsets(suspect)[0] for suspect in attempts)
            last = max(self._offsets(suspect)[1] for suspect in attempts)
            count = max(len(attempts), self._calls_min)
            out.on_hold = (first, last, count)
            return out
        if attempts and self._options.on_doubt == "skip":
            self._skip(list(attempts))
            attempts = {}
        self._count(in_doubt=max(len(attempts), self._calls_min if attempts else 0))
        doubted: set[int] = set()
        for suspect, count in attempts.items():
            death = death_of(self._paid.step, self._rows.offsets, suspect, count)
            self._deaths.add(death)
            out.events.append(self._paid.notes.died(self._now_us, death))
            doubted.update(self._rows.offsets[suspect.begin : suspect.end].tolist())
        out.calls = self._with_rest(frozenset(doubted))
        return out

    def _with_rest(self, doubted: frozenset[int]) -> list[SlidingCall]:
        """All calls in the order of their rows: those that are done, and those for the rest."""
        self._settled.sort(key=lambda call: call.first)
        calls: list[SlidingCall] = []
        at = 0
        for done in [*self._settled, None]:
            end = len(self._rows)
            if done is not None:
                end = int(np.searchsorted(self._rows.offsets, done.first))
            rest = self._rows.slice(at, end)
            calls += self._paid.calls_for(rest, self._deaths, doubted)
            if done is not None:
                calls.append(done)
                at = end + len(done.rows)
        return calls

    def _skip(self, suspects: Sequence[CallMark]) -> None:
        """Leave out rows in doubt and make dead letters of them."""
        for suspect in suspects:
            for index in range(suspect.begin, suspect.end):
                call = SlidingCall(
                    rows=self._rows.slice(index, index + 1),
                    is_done=True,
                    failure=_IN_DOUBT,
                )
                self._settled.append(call)
                self._count(skipped=1, dead_letters=1)
        self._count(in_doubt=max(len(suspects), self._calls_min))

    def _leave_out(self, call: SlidingCall) -> None:
        count = len(call.rows)
        self._count(skipped=count, dead_letters=count * (self._options.on_error == "dead_letter"))

    def _count(self, **more: int) -> None:
        self._out.totals = self._out.totals.plus(**more)

    def _offsets(self, suspect: CallMark) -> tuple[int, int]:
        offsets = self._rows.offsets
        return int(offsets[suspect.begin]), int(offsets[suspect.end - 1]) + 1
