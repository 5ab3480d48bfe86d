"""Reads the rows of an expensive step's unit, in the batches that it is called for."""

from __future__ import annotations

from collections.abc import Callable

from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.core.call_ranges import CallRange, CallRangeBuffer
from millrace.pipeline.core.expensive_machine import FailedQuery
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.worker.read_ahead import ReadAhead


class CallRangeReader:
    """Batches of a unit, each beginning where the last one ended."""

    def __init__(self, ahead: ReadAhead, buffer: CallRangeBuffer) -> None:
        self._ahead, self._buffer = ahead, buffer
        self.failed: FailedQuery | None = None
        """The failure of a filter or a column, which ended the reading."""

    def up_to(self, offset: int) -> CallRange:
        """All rows below an offset."""
        while self._buffer.read_to < offset and self._read_on():
            pass
        return self._buffer.below(offset)

    def put_back(self, rows: HopRows) -> None:
        """Read these rows once more."""
        self._buffer.put_back(rows)

    def next(self, goes_on: Callable[[], bool]) -> CallRange:
        """The next batch; without rows if none are there yet, or the turn is over."""
        while not self._buffer.is_full and self._read_on():
            if self._buffer.is_empty and not goes_on():
                break
        return self._buffer.next()

    def _read_on(self) -> bool:
        if self.failed is not None:
            return False
        try:
            ahead = self._ahead.next()
        except QueryFailed as error:
            self.failed = FailedQuery(error.step, error.offset, error.failure)
            return False
        if ahead is None:
            return False
        self._buffer.add(ahead.rows, ahead.next)
        return True
