"""The rows of a unit between those that are published and those that were not read yet. Pure.

Each call of the window is for one row, or for a batch of rows. It waits, is recorded (it may be
made, or is under way), or is done: its result waits to be published.
Invariant: calls are in the order of their rows. The unit's committed offset is that of the first
call that is not published; results behind it are published only if the step is not ordered, and
then their offsets are remembered.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.call_ranges import CallRange
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.paid.call_records import Ranges


@dataclass(slots=True, kw_only=True, eq=False)
class SlidingCall:
    """A call, and how far it is."""

    rows: HopRows
    attempt: int = 1
    """The number of the next call, or of the one under way."""
    in_doubt: bool = False
    """Whether a process that died may have made it."""
    is_alone: bool = False
    """Whether no other call may be under way with it, since it may end the process."""
    is_half: bool = False
    """Whether it is a part of a batch that raised: it is called for once."""
    refusals: int = 0
    """How often a busy provider refused it."""
    is_recorded: bool = False
    is_done: bool = False
    made: pa.RecordBatch | None = None
    failure: Failure | None = None
    """Why its row is left out."""

    @property
    def first(self) -> int:
        """The offset of its first row."""
        return int(self.rows.offsets[0])

    @property
    def end(self) -> int:
        """The offset behind its last row."""
        return int(self.rows.offsets[-1]) + 1

    @property
    def is_again(self) -> bool:
        """Whether a call for its rows has failed before."""
        return self.attempt > 1 or self.is_half or self.refusals > 0

    @property
    def bytes(self) -> int:
        """The bytes of its result."""
        return 0 if self.made is None else int(self.made.nbytes)


@dataclass(slots=True)
class CallWindow:
    """Calls by the offset of their first row."""

    at: int
    """The committed offset, as this window would have it."""
    read_to: int
    published: Ranges = ()
    """Offsets behind `at` that are published already."""
    calls: dict[int, SlidingCall] = field(default_factory=dict)
    waiting: deque[SlidingCall] = field(default_factory=deque)
    """Calls that are not recorded, in order."""
    outstanding: int = 0
    """The number of recorded calls without an outcome."""
    has_alone: bool = False
    """Whether one of these is alone."""
    done_bytes: int = 0
    """Bytes of results that are not published."""
    _retries: list[tuple[int, int]] = field(default_factory=list)
    """When a call is made again, and its offset."""
    _letters: deque[tuple[str, Letter]] = field(default_factory=deque)

    def add(self, range_: CallRange, new: list[SlidingCall]) -> None:
        """Rows that were read, as calls, without those that are published already."""
        for call in new:
            if not _has(self.published, call.first):
                self.calls[call.first] = call
                if not call.is_done:
                    self.waiting.append(call)
                self.done_bytes += call.bytes
        self._letters.extend(range_.letters)
        self.read_to = max(self.read_to, range_.next)

    # Calls that are made.
    def record(self, call: SlidingCall) -> None:
        """A call is recorded, and may be made."""
        call.is_recorded = True
        self.outstanding += 1
        self.has_alone = self.has_alone or call.is_alone

    def unrecord(self, call: SlidingCall) -> None:
        """A recorded call has an outcome, or was not made."""
        assert call.is_recorded, "a call is recorded before it is made"
        call.is_recorded = False
        self.outstanding -= 1
        self.has_alone = False if call.is_alone else self.has_alone

    def wait_until(self, call: SlidingCall, due_us: int) -> None:
        """A call is to be made again, not before a time."""
        heapq.heappush(self._retries, (due_us, call.first))

    def requeue(self, now_us: int) -> None:
        """Calls whose wait is over wait to be recorded, before all others."""
        due: list[SlidingCall] = []
        while self._retries and self._retries[0][0] <= now_us:
            due.append(self.calls[heapq.heappop(self._retries)[1]])
        self.waiting.extendleft(sorted(due, key=lambda call: -call.first))

    def retry_us(self) -> int | None:
        """When the next call is due that waits after an error."""
        return self._retries[0][0] if self._retries else None

    def put_back(self, first: int) -> None:
        """A recorded call was not made: it waits again."""
        call = self.calls[first]
        self.unrecord(call)
        self.waiting.append(call)

    def settle(
        self,
        call: SlidingCall,
        *,
        made: pa.RecordBatch | None = None,
        failure: Failure | None = None,
    ) -> None:
        """A call is done."""
        call.is_done, call.made, call.failure = True, made, failure
        self.done_bytes += call.bytes

    def halve(self, call: SlidingCall) -> None:
        """Two calls in place of one whose batch raised."""
        middle = len(call.rows) // 2
        parts = [call.rows.slice(0, middle), call.rows.slice(middle, len(call.rows))]
        halves = [
            SlidingCall(rows=rows, in_doubt=call.in_doubt, is_alone=call.is_alone, is_half=True)
            for rows in parts
        ]
        behind = {first: other for first, other in self.calls.items() if first > call.first}
        before = {first: other for first, other in self.calls.items() if first < call.first}
        self.calls = before | {half.first: half for half in halves} | behind
        self.waiting.extendleft(reversed(halves))

    # Results that are published.
    def publishable(self, bytes_max: int | None, *, ordered: bool) -> list[SlidingCall]:
        """Calls whose results can be published now: at least one, if any, then up to a size."""
        chosen: list[SlidingCall] = []
        size = 0
        for call in self.calls.values():
            if not call.is_done:
                if ordered:
                    break
                continue
            size += call.bytes
            if chosen and bytes_max is not None and size > bytes_max:
                break
            chosen.append(call)
        return chosen

    def next_behind(self, chosen: list[SlidingCall]) -> int:
        """The committed offset when these are published."""
        leaving = {call.first for call in chosen}
        first = next((first for first in self.calls if first not in leaving), None)
        return self.read_to if first is None else first

    def published_behind(self, chosen: list[SlidingCall], next_: int) -> Ranges:
        """The ranges that are published behind the committed offset, when these are."""
        own = [(call.first, call.end) for call in chosen]
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(chain(self.published, own)):
            if end <= next_:
                continue
            if merged and merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        return tuple(merged)

    def remove(self, chosen: list[SlidingCall], next_: int, published: Ranges) -> None:
        """These calls are published."""
        for call in chosen:
            del self.calls[call.first]
            self.done_bytes -= call.bytes
        self.at, self.published = next_, published

    def letters_below(self, offset: int) -> list[tuple[str, Letter]]:
        """The dead letters of the steps in front for rows below an offset."""
        return [pair for pair in self._letters if pair[1].offset < offset]

    def drop_letters(self, offset: int) -> None:
        """The dead letters below an offset are published."""
        while self._letters and self._letters[0][1].offset < offset:
            self._letters.popleft()

    def kept(self) -> Iterator[SlidingCall]:
        """Calls whose results are not published."""
        return (call for call in self.calls.values() if call.is_done)


def _has(ranges: Ranges, offset: int) -> bool:
    return any(begin <= offset < end for begin, end in ranges)


def without(rows: HopRows, ranges: Ranges) -> HopRows:
    """Rows without those in the ranges."""
    if not ranges or not len(rows):
        return rows
    keep = np.ones(len(rows), bool)
    for begin, end in ranges:
        keep &= (rows.offsets < begin) | (rows.offsets >= end)
    return HopRows(rows.batch.filter(pa.array(keep)), rows.offsets[keep])
