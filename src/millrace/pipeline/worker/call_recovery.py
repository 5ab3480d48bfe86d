"""What becomes of calls that a worker was about to make when its process ended.

Its record says which rows it called for. Its flight, if this host has it, says which calls had
returned, with their results, and which were under way. Only these are in doubt.
Invariant: what returned is published and not called for again. Calls in doubt are dealt with as
`on_doubt` says. Those that are made again are made alone, and count as failed attempts if they
ended a process of this run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.pipeline.calling.call_failures import Failure
from millrace.pipeline.calling.call_file import CallMark, LeftCalls
from millrace.pipeline.calling.function_caller import FunctionCaller, Row
from millrace.pipeline.core.hop_rows import HopRows, Offsets
from millrace.pipeline.core.worker_deaths import Death
from millrace.pipeline.worker.call_ranges import CallRange
from millrace.pipeline.worker.publisher import UnitPublish
from millrace.pipeline.worker.turn import LeasedUnit

Result = bytes | Failure
"""What a call came to: rows as an Arrow IPC message, or why there are none."""
_IN_DOUBT: Final = Failure(
    place=0,
    error="in doubt: a worker that died may have made this call",
    traceback="",
)


@dataclass(slots=True, kw_only=True)
class Recovered:
    """What is done about the calls of a dead worker."""

    change: UnitPublish
    """To publish: results, letters, events."""
    done: int = 0
    """So many rows are settled, from the first on."""
    known: dict[int, Result] = field(default_factory=dict)
    """Results of rows behind these, by offset."""
    counts: dict[str, int] = field(default_factory=dict)
    """To add to the totals of the unit."""
    doubted: frozenset[int] = frozenset()
    """Offsets of rows whose calls are made again."""
    held: HopRows | None = None
    """Rows whose calls are in doubt, and wait for the user."""


def rows_of(result: bytes, caller: FunctionCaller) -> list[Row]:
    """Rows that a call made."""
    if not result:
        return []
    made: list[Row] = _batch(result, caller).to_pylist()
    return made


def recover(
    held: LeasedUnit,
    caller: FunctionCaller,
    batch: CallRange,
    planned: int,
    flown: LeftCalls | None,
) -> Recovered:
    """Decide about the rows of a record whose worker is dead.

    Args:
        held: the unit.
        caller: of its step.
        batch: the rows of the record.
        planned: how many calls the record was for.
        flown: what the worker left on this host.
    """
    if flown is None or not _fits(flown, batch.rows, caller):
        return _Recovery(held, caller, batch).without_flight()
    return _Recovery(held, caller, batch).with_flight(flown, planned)


def _fits(flown: LeftCalls, rows: HopRows, caller: FunctionCaller) -> bool:
    """Whether it is about these rows, and results are what the step gives."""
    if not np.array_equal(flown.offsets, rows.offsets):
        return False
    try:
        for result in (*flown.settled.values(), *flown.known.values()):
            if result and not isinstance(result, Failure):
                _batch(result, caller).validate(full=True)
    except (pa.ArrowException, OSError):
        return False
    return True


class _Recovery:
    def __init__(self, held: LeasedUnit, caller: FunctionCaller, batch: CallRange) -> None:
        self._held, self._caller, self._batch = held, caller, batch
        self._rows, self._step = batch.rows, caller.step
        self._options = caller.options
        self._is_batch = caller.step.calling.rows == "batch"
        self._found = Recovered(change=UnitPublish(next=0))

    def without_flight(self) -> Recovered:
        """Every call may have been made."""
        count = len(self._rows)
        ends = [(0, count)] if self._is_batch else [(n, n + 1) for n in range(count)]
        suspects = [CallMark(begin, end, 0) for begin, end in ends] if count else []
        attempts: dict[CallMark, int] = {}
        for suspect in suspects:
            first, next_ = self._offsets(suspect)
            before = self._held.deaths.attempts(self._step.name, first, next_)
            # Called for alone in this run, it is what ended the process.
            is_again = len(suspects) == 1 and before is not None
            attempts[suspect] = (before or 0) + is_again
        self._found.counts = {"errors": sum(n > 0 for n in attempts.values())}
        return self._decide({}, attempts)

    def with_flight(self, flown: LeftCalls, planned: int) -> Recovered:
        """Only calls that were under way may have been made without a result."""
        settled = dict(flown.settled)
        begun = {begin for begin, _ in settled} | set(flown.raised)
        suspects = [mark for mark in flown.marks if not _is_settled(mark, settled)]
        begun |= {mark.begin for mark in suspects}
        places = {int(offset): place for place, offset in enumerate(self._rows.offsets)}
        for offset, result in flown.known.items():
            place = places.get(offset)
            if place is None:
                self._found.known[offset] = result
            else:
                settled.setdefault((place, place + 1), result)
        is_counted = flown.header["run"] == self._held.run
        attempts = {suspect: suspect.attempt if is_counted else 0 for suspect in suspects}
        if len(suspects) > 1:
            # One of them did it. All get a call of their own, which will tell.
            attempts = {s: min(n, self._options.retries) for s, n in attempts.items()}
        made = min(1, len(begun)) if self._is_batch else len(begun)
        self._found.counts = {
            "calls": -max(0, planned - made),
            "errors": len(flown.raised) + is_counted * len(suspects),
        }
        return self._decide(settled, attempts)

    def _decide(
        self, settled: dict[tuple[int, int], Result], attempts: Mapping[CallMark, int]
    ) -> Recovered:
        found = self._found
        if attempts and self._options.on_doubt == "skip":
            self._leave_out(settled, list(attempts))
            attempts = {}
        self._settle(settled)
        if attempts and self._options.on_doubt == "hold":
            last = max(suspect.end for suspect in attempts)
            found.held = self._rows.slice(found.done, last)
            return found
        found.counts["in_doubt"] = found.counts.get("in_doubt", 0) + len(attempts)
        found.doubted = frozenset(
            int(offset) for s in attempts for offset in self._rows.offsets[s.begin : s.end]
        )
        for suspect, count in attempts.items():
            death = death_of(self._caller, self._rows.offsets, suspect, count)
            found.change.events.append(self._held.died(death))
        return found

    def _leave_out(self, settled: dict[tuple[int, int], Result], suspects: list[CallMark]) -> None:
        """Go on without rows in doubt; they become dead letters."""
        places = [place for suspect in suspects for place in range(suspect.begin, suspect.end)]
        self._found.change.letters[self._step.name] = [
            self._held.letter(self._step, self._rows, replace(_IN_DOUBT, place=place))
            for place in places
        ]
        for place in places:
            settled[place, place + 1] = b""
        self._count(in_doubt=len(suspects), skipped=len(places), dead_letters=len(places))

    def _settle(self, settled: Mapping[tuple[int, int], Result]) -> None:
        """Publish from the first row on; what lies behind a gap is kept for when its turn comes."""
        found, ends = self._found, dict(settled.keys())
        while found.done in ends:
            begin, found.done = found.done, ends[found.done]
            result = settled[begin, found.done]
            if isinstance(result, Failure):
                self._bury(replace(result, place=begin))
            elif result:
                batch = _batch(result, self._caller)
                rows = HopRows(batch, np.full(batch.num_rows, self._rows.offsets[begin], np.int64))
                found.change.outputs.append(self._caller.passing.put_away(rows).batch)
        for (begin, _), result in settled.items():
            if begin >= found.done:
                found.known[int(self._rows.offsets[begin])] = result
        is_whole = found.done == len(self._rows)
        found.change.next = self._batch.next if is_whole else int(self._rows.offsets[found.done])

    def _bury(self, failure: Failure) -> None:
        self._count(skipped=1)
        if self._options.on_error == "dead_letter":
            letters = self._found.change.letters.setdefault(self._step.name, [])
            letters.append(self._held.letter(self._step, self._rows, failure))
            self._count(dead_letters=1)

    def _count(self, **more: int) -> None:
        counts, tally = self._found.counts, self._held.tally
        for name, count in more.items():
            counts[name] = counts.get(name, 0) + count
        for name in ("skipped", "dead_letters"):
            tally.add(getattr(tally, name), self._step.name, more.get(name, 0))

    def _offsets(self, suspect: CallMark) -> tuple[int, int]:
        offsets = self._rows.offsets
        return int(offsets[suspect.begin]), int(offsets[suspect.end - 1]) + 1


def death_of(caller: FunctionCaller, offsets: Offsets, mark: CallMark, attempts: int) -> Death:
    """What is recorded of a call that ended its process."""
    first, last = int(offsets[mark.begin]), int(offsets[mark.end - 1])
    is_batch = caller.step.calling.rows == "batch"
    options = caller.options
    middle = int(offsets[(mark.begin + mark.end) // 2])
    is_cut = (
        is_batch and attempts > options.retries and options.on_error != "fail" and middle > first
    )
    return Death(
        step=caller.step.name,
        first=first,
        next=last + 1,
        repeat=0 if is_batch else mark.begin - int(np.searchsorted(offsets, first)),
        attempts=attempts,
        middle=middle if is_cut else None,
    )


def _is_settled(mark: CallMark, settled: Mapping[tuple[int, int], Result]) -> bool:
    return (mark.begin, mark.end) in settled


def _batch(result: bytes, caller: FunctionCaller) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(result), caller.schema)
