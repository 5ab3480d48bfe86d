"""Cuts the rows in front of an expensive step into the batches that it is called for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.pipeline.core.hop_rows import HopRows, nothing, together
from millrace.pipeline.core.worker_deaths import Deaths


@dataclass(frozen=True, slots=True)
class CallRange:
    """Rows to call for, and the offset behind all input rows that were read to get them."""

    rows: HopRows
    next: int

    def cut(self, count: int) -> CallRange:
        """Only its first rows."""
        if count >= len(self.rows):
            return self
        return CallRange(self.rows.slice(0, count), int(self.rows.offsets[count - 1]) + 1)


class CallRangeBuffer:
    """Rows that were read and not called for yet. Each range begins where the last one ended."""

    def __init__(
        self, schema: pa.Schema, at: int, *, rows_max: int, bytes_max: int, deaths: Deaths
    ) -> None:
        """`deaths`: rows whose calls ended a process get ranges of their own."""
        self._schema, self._deaths = schema, deaths
        self._rows = nothing(schema)
        self._read_to = at
        self._rows_max, self._bytes_max = rows_max, bytes_max

    @property
    def read_to(self) -> int:
        """The offset behind the last row that was read."""
        return self._read_to

    @property
    def is_empty(self) -> bool:
        """Whether no rows wait."""
        return not len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether the next range has all the rows that it may have."""
        return len(self._rows) >= self._rows_max

    def add(self, rows: HopRows, next_: int) -> None:
        """Append rows that were read, up to the offset `next_`."""
        self._rows = together(self._schema, [self._rows, rows])
        self._read_to = next_

    def below(self, offset: int) -> CallRange:
        """Remove and return all rows below an offset."""
        rows = self._rows.before(offset)
        self._rows = self._rows.slice(len(rows), len(self._rows))
        return CallRange(rows, min(offset, self._read_to))

    def put_back(self, rows: HopRows) -> None:
        """Insert rows at the front again."""
        self._rows = together(self._schema, [rows, self._rows])

    def next(self) -> CallRange:
        """Remove and return the next range; without rows if none wait."""
        whole = CallRange(self._rows, self._read_to)
        count = self._fitting()
        self._rows = self._rows.slice(count, len(self._rows))
        return whole.cut(count) if count else whole

    def _fitting(self) -> int:
        count = len(self._rows)
        if not count:
            return 0
        row_bytes = max(1, int(self._rows.batch.nbytes) // count)
        fitting = max(1, min(self._rows_max, self._bytes_max // row_bytes))
        _, alone = self._deaths.parts(self._rows)[0]
        return min(fitting, alone)
