"""Reads a unit's rows ahead of the worker, in a thread of its own.

Invariant: pieces come in order and without a gap, each begins where the one before it ended, and no
more than the limit is held, one piece aside.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.errors import Retriable
from millrace.journal.broker import Broker
from millrace.pipeline.core.hop_rows import HopRows, fetched_rows
from millrace.pipeline.owner_retries import patiently
from millrace.wakeup import WorkerThread, join

_PIECES: Final = 4
"""The number of pieces of the largest size that are read ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAhead:
    """Rows that were read, and where to go on behind them."""

    rows: HopRows
    next: int
    read: int
    """How many rows there were before the query took some out."""
    bytes: int


class ReadAhead:
    """Pieces of one journal from an offset on, until there are no more for now."""

    def __init__(
        self,
        broker: Broker,
        journal: str,
        offset: int,
        *,
        config: Config,
        end: int | None,
        piece_rows: int,
        through: Callable[[HopRows], HopRows] | None = None,
    ) -> None:
        """`through` is applied to each piece, in the reading thread."""
        self._broker, self._journal, self._offset = broker, journal, offset
        self._config, self._end, self._piece_rows = config, end, piece_rows
        self._through = through
        self._schema = broker.get(journal).schema
        self._pieces: deque[RowsAhead] = deque()
        self._bytes = 0
        self._is_over = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = WorkerThread(self._run, "millrace-read")
        self._thread.start()

    def next(self) -> RowsAhead | None:
        """Wait for the next piece; None when the journal has no more for now."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._is_over)
            if self._pieces:
                piece = self._pieces.popleft()
                self._bytes -= piece.bytes
                self._changed.notify_all()
                return piece
        if self._error is not None:
            raise self._error
        return None

    def is_dry(self) -> bool:
        """Whether no piece is ready."""
        return not self._pieces

    def close(self) -> None:
        """Stop reading, and wait for a read that is under way."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        join([self._thread], self._config.thread_stop_ms_max, "thread_stop_ms_max")

    def _run(self) -> None:
        try:
            while self._read_one():
                pass
        except BaseException as error:  # noqa: BLE001 - raised again where the pieces are taken
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _read_one(self) -> bool:
        """Read the next piece; whether there may be more."""
        if self._end is not None and self._offset >= self._end:
            return False
        fetched = patiently(
            lambda: self._broker.read(
                self._journal,
                self._offset,
                rows_max=self._piece_rows,
                bytes_max=max(1, self._config.job_read_ahead_bytes // _PIECES),
            ),
            self._config,
            Retriable,
        )
        rows, after = fetched_rows(fetched, self._schema, self._end)
        if after == self._offset:
            return False
        count, size = len(rows), int(rows.batch.nbytes)
        if self._through is not None:
            rows = self._through(rows)
        piece = RowsAhead(rows=rows, next=after, read=count, bytes=size)
        self._offset = after
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_over
                    or not self._pieces
                    or self._bytes + size <= self._config.job_read_ahead_bytes
                )
            )
            self._pieces.append(piece)
            self._bytes += size
            self._changed.notify_all()
            return not self._is_over
