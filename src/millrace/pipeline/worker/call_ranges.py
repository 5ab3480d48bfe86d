"""Cuts what was read ahead into the batches of an expensive step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.core.hop_rows import HopRows, nothing, together
from millrace.pipeline.core.worker_deaths import Deaths
from millrace.pipeline.worker.read_ahead import ReadAhead


@dataclass(frozen=True, slots=True)
class CallRange:
    """Rows to call for, and the offset behind all that was looked at to find them."""

    rows: HopRows
    next: int

    def cut(self, count: int) -> CallRange:
        """Only the first rows of it."""
        if count >= len(self.rows):
            return self
        return CallRange(self.rows.slice(0, count), int(self.rows.offsets[count - 1]) + 1)


class CallRanges:
    """Batches of a unit, each beginning where the one before it ended."""

    def __init__(
        self,
        ahead: ReadAhead,
        schema: pa.Schema,
        at: int,
        *,
        rows_max: int,
        bytes_max: int,
        deaths: Deaths,
    ) -> None:
        """`deaths`: rows whose calls ended a process make batches of their own."""
        self._ahead, self._schema, self._deaths = ahead, schema, deaths
        self._held = nothing(schema)
        self._read_to = at
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self.failed: QueryFailed | None = None
        """Why nothing is read any more, if a filter or a column failed."""

    def up_to(self, offset: int) -> CallRange:
        """All rows below an offset."""
        while self._read_to < offset and self._read_on():
            pass
        rows = self._held.before(offset)
        self._held = self._held.slice(len(rows), len(self._held))
        return CallRange(rows, min(offset, self._read_to))

    def put_back(self, rows: HopRows) -> None:
        """Give rows that were taken once more."""
        self._held = together(self._schema, [rows, self._held])

    def next(self, goes_on: Callable[[], bool]) -> CallRange:
        """The next batch; without rows when there are none for now, or it is not to go on."""
        while len(self._held) < self._rows_max and self._read_on():
            if not len(self._held) and not goes_on():
                break
        count = self._fitting()
        if count >= len(self._held):
            taken, self._held = self._held, nothing(self._schema)
            return CallRange(taken, self._read_to)
        whole = CallRange(self._held, self._read_to)
        self._held = self._held.slice(count, len(self._held))
        return whole.cut(count)

    def _fitting(self) -> int:
        count = len(self._held)
        if not count:
            return 0
        each = max(1, int(self._held.batch.nbytes) // count)
        fitting = max(1, min(self._rows_max, self._bytes_max // each))
        _, alone = self._deaths.parts(self._held)[0]
        return min(fitting, alone)

    def _read_on(self) -> bool:
        if self.failed is not None:
            return False
        try:
            piece = self._ahead.next()
        except QueryFailed as failed:
            self.failed = failed
            return False
        if piece is None:
            return False
        self._held = together(self._schema, [self._held, piece.rows])
        self._read_to = piece.next
        return True
