"""Recovers the calls that a worker was about to make when its process ended. Pure.

The record names the rows. The call file, if this host has it, names the calls that had returned,
with their results, and those that were under way. Only calls that were under way are in doubt.
Invariant: results that returned are published and not called for again. Calls in doubt are dealt
with as `on_doubt` says. Those that are made again are made alone, and count as failed attempts if
they ended a process of this run.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.pipeline.core.call_outcomes import CallMark, CallResult, Failure, LeftCalls
from millrace.pipeline.core.call_ranges import CallRange
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hop_rows import HopRows, Offsets
from millrace.pipeline.core.job_events import JobEvent
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.core.paid_step import PaidStep, result_batch
from millrace.pipeline.core.worker_deaths import Death, Deaths

_IN_DOUBT: Final = Failure(
    place=0,
    error="in doubt: a worker that died may have made this call",
    traceback="",
)


@dataclass(slots=True, kw_only=True)
class RecoveredCalls:
    """The results of a dead worker's calls that are published, and the rows that are left to do."""

    next: int = 0
    """The first offset that is not settled."""
    outputs: list[HopRows] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    done: int = 0
    """The number of settled rows, counted from the first row on."""
    rest: HopRows | None = None
    """Rows behind these, if there are any."""
    known: dict[int, CallResult] = field(default_factory=dict)
    """Results of rows behind these, by offset."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counts to add to the totals of the unit."""
    doubted: frozenset[int] = frozenset()
    """Offsets of rows whose calls are made again."""
    on_hold: HopRows | None = None
    """Rows whose calls are in doubt: the user decides about them."""


def recover_calls(
    paid: PaidStep,
    deaths: Deaths,
    batch: CallRange,
    planned: int,
    left: LeftCalls | None,
    now_us: int,
) -> RecoveredCalls:
    """Decide about the rows of a record whose worker is dead.

    Args:
        paid: the step and its unit.
        deaths: the known deaths of the unit; new ones are added.
        batch: the rows of the record.
        planned: how many calls the record was for.
        left: the call file that the worker left on this host.
        now_us: the time of events and dead letters.
    """
    recovery = _Recovery(paid, deaths, batch, now_us)
    if left is None or not _fits(left, batch.rows, paid.schema):
        return recovery.without_file(planned)
    return recovery.with_file(left, planned)


def death_of(step: Map | FunctionSink, offsets: Offsets, mark: CallMark, attempts: int) -> Death:
    """The record of a call that ended its process."""
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
    """Whether the file is about these rows, and its results have the step's schema."""
    if not np.array_equal(left.offsets, rows.offsets):
        return False
    try:
        for result in (*left.settled.values(), *left.known.values()):
            if result and not isinstance(result, Failure):
                result_batch(result, schema).validate(full=True)
    except (pa.ArrowException, OSError):
        return False
    return True


class _Recovery:
    def __init__(self, paid: PaidStep, deaths: Deaths, batch: CallRange, now_us: int) -> None:
        self._paid, self._deaths, self._batch, self._now_us = paid, deaths, batch, now_us
        self._rows, self._options = batch.rows, paid.step.options
        self._out = RecoveredCalls()
        self._calls_min = 0
        """How many calls are in doubt at least, if some are."""

    def without_file(self, planned: int) -> RecoveredCalls:
        """Every call may have been made. Where one batch ended and the next began is not known."""
        count = len(self._rows)
        self._calls_min = planned if self._paid.calls_batches else 0
        ends = [(0, count)] if self._paid.calls_batches else [(n, n + 1) for n in range(count)]
        suspects = [CallMark(begin, end, 0) for begin, end in ends] if count else []
        attempts: dict[CallMark, int] = {}
        for suspect in suspects:
            first, next_ = self._offsets(suspect)
            before = self._deaths.attempts(self._paid.name, first, next_)
            # Called for alone in this run, it is what ended the process.
            is_again = len(suspects) == 1 and before is not None
            attempts[suspect] = (before or 0) + is_again
        self._out.counts = {"errors": sum(n > 0 for n in attempts.values())}
        return self._decide({}, attempts)

    def with_file(self, left: LeftCalls, planned: int) -> RecoveredCalls:
        """Only calls that were under way may have been made without a result."""
        settled = dict(left.settled)
        begun = {begin for begin, _ in settled} | set(left.raised)
        suspects = [mark for mark in left.marks if (mark.begin, mark.end) not in settled]
        begun |= {mark.begin for mark in suspects}
        indexes = {int(offset): index for index, offset in enumerate(self._rows.offsets)}
        for offset, result in left.known.items():
            index = indexes.get(offset)
            if index is None:
                self._out.known[offset] = result
            else:
                settled.setdefault((index, index + 1), result)
        is_counted = left.header["run"] == self._paid.notes.run
        attempts = {suspect: suspect.attempt if is_counted else 0 for suspect in suspects}
        if len(suspects) > 1:
            # One of them did it. All get a call of their own, which will tell.
            attempts = {s: min(n, self._options.retries) for s, n in attempts.items()}
        if self._paid.calls_batches:
            begun = {bisect.bisect_right(left.batches, index) for index in begun}
        self._out.counts = {
            "calls": -max(0, planned - len(begun)),
            "errors": len(left.raised) + is_counted * len(suspects),
        }
        return self._decide(settled, attempts)

    def _decide(
        self, settled: dict[tuple[int, int], CallResult], attempts: Mapping[CallMark, int]
    ) -> RecoveredCalls:
        out = self._out
        if attempts and self._options.on_doubt == "skip":
            self._leave_out(settled, list(attempts))
            attempts = {}
        self._settle(settled)
        if attempts and self._options.on_doubt == "hold":
            last = max(suspect.end for suspect in attempts)
            out.on_hold = self._rows.slice(out.done, last)
            return out
        self._count(in_doubt=max(len(attempts), self._calls_min if attempts else 0))
        out.doubted = frozenset(
            int(offset) for s in attempts for offset in self._rows.offsets[s.begin : s.end]
        )
        for suspect, count in attempts.items():
            death = death_of(self._paid.step, self._rows.offsets, suspect, count)
            self._deaths.add(death)
            out.events.append(self._paid.notes.died(self._now_us, death))
        return out

    def _leave_out(
        self, settled: dict[tuple[int, int], CallResult], suspects: Sequence[CallMark]
    ) -> None:
        """Leave out rows in doubt and make dead letters of them."""
        indexes = [index for suspect in suspects for index in range(suspect.begin, suspect.end)]
        for index in indexes:
            self._add_letter(replace(_IN_DOUBT, place=index))
            settled[index, index + 1] = b""
        in_doubt = max(len(suspects), self._calls_min)
        self._count(in_doubt=in_doubt, skipped=len(indexes), dead_letters=len(indexes))

    def _settle(self, settled: Mapping[tuple[int, int], CallResult]) -> None:
        """Publish from the first row on; keep results behind a gap until the gap is closed."""
        out, ends = self._out, dict(settled.keys())
        while out.done in ends:
            begin, out.done = out.done, ends[out.done]
            result = settled[begin, out.done]
            if isinstance(result, Failure):
                self._give_up(replace(result, place=begin))
            elif result:
                batch = result_batch(result, self._paid.schema)
                offsets = np.full(batch.num_rows, self._rows.offsets[begin], np.int64)
                out.outputs.append(HopRows(batch, offsets))
        for (begin, _), result in settled.items():
            if begin >= out.done:
                out.known[int(self._rows.offsets[begin])] = result
        is_whole = out.done == len(self._rows)
        out.rest = None if is_whole else self._rows.slice(out.done, len(self._rows))
        out.next = self._batch.next if is_whole else int(self._rows.offsets[out.done])

    def _give_up(self, failure: Failure) -> None:
        self._count(skipped=1)
        if self._options.on_error == "dead_letter":
            self._add_letter(failure)
            self._count(dead_letters=1)

    def _add_letter(self, failure: Failure) -> None:
        letter = self._paid.notes.letter(self._now_us, self._paid.step, self._rows, failure)
        self._out.letters.append(letter)

    def _count(self, **more: int) -> None:
        counts = self._out.counts
        for name, count in more.items():
            counts[name] = counts.get(name, 0) + count

    def _offsets(self, suspect: CallMark) -> tuple[int, int]:
        offsets = self._rows.offsets
        return int(offsets[suspect.begin]), int(offsets[suspect.end - 1]) + 1
