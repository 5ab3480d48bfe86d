"""Reads the rows of an expensive step's unit, in the batches that it is called for.

Functions in front of the step run here, in the thread of the turn, over batches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.core.call_ranges import (
    CallRange,
    CallRangeBuffer,
    FrontEnd,
    FrontFailed,
    FrontStopped,
    FrontStuck,
)
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.worker.read_ahead import ReadAhead
from millrace.pipeline.worker.step_chain import ChainOutput, StepChain
from millrace.pipeline.worker.turn import LeasedUnit


class CallRangeReader:
    """Batches of a unit, each beginning where the last one ended."""

    def __init__(
        self,
        ahead: ReadAhead,
        buffer: CallRangeBuffer,
        chain: StepChain,
        unit: LeasedUnit,
        call_file: CallFile,
    ) -> None:
        """`call_file` marks the calls of the functions in `chain`."""
        self._ahead, self._buffer = ahead, buffer
        self._chain, self._unit, self._call_file = chain, unit, call_file
        self._batches: Iterator[tuple[HopRows, int]] = iter(())
        """Rows that were read, for the steps in front."""
        self.end: FrontEnd | None = None
        """Why the steps in front give no more rows."""

    @property
    def has_functions(self) -> bool:
        """Whether functions are called for rows in front of the step."""
        return bool(self._chain.callers)

    def up_to(self, offset: int) -> CallRange | None:
        """All rows below an offset; None if the steps in front ended before it."""
        while self._buffer.read_to < offset and self._read_on():
            pass
        if self._buffer.read_to < offset and self.end is not None:
            return None
        return self._buffer.below(offset)

    def next(self, goes_on: Callable[[], bool]) -> CallRange:
        """The next batch; without rows if none are there yet, or the turn is over."""
        while not self._buffer.is_full and self._read_on():
            if self._buffer.is_empty and not goes_on():
                break
        return self._buffer.next()

    def _read_on(self) -> bool:
        """Take more rows through the steps in front; whether there were some."""
        if self.end is not None:
            return False
        batch = next(self._batches, None)
        if batch is None:
            batch = self._next_piece()
        if batch is None:
            return False
        rows, next_ = batch
        through = self._chain.run(rows, self._unit, self._call_file)
        if through.out is not None:
            self._buffer.add(through.out, next_, through.letters)
        self.end = self._end_of(through, rows)
        return self.end is None

    def _next_piece(self) -> tuple[HopRows, int] | None:
        """The first batch of the next piece; None if there is no more for now."""
        try:
            ahead = self._ahead.next()
        except QueryFailed as error:
            self.end = FrontFailed(error.step, error.offset, error.failure)
            return None
        if ahead is None:
            return None
        if not self._chain.parts:
            return ahead.rows, ahead.next
        self._batches = self._chain.cut(ahead, self._unit)
        return next(self._batches)

    def _end_of(self, through: ChainOutput, rows: HopRows) -> FrontEnd | None:
        """Why the steps ended; rows in front of one that failed go through once more."""
        if through.failed is not None:
            step, offset, failure = through.failed
            before = rows.before(offset)
            again = self._chain.run(before, self._unit, self._call_file)
            if again.out is None:
                return FrontStopped()
            self._buffer.add(again.out, offset, again.letters)
            return FrontFailed(step, offset, failure)
        if through.stuck is not None:
            return FrontStuck(through.stuck)
        return FrontStopped() if through.out is None else None
