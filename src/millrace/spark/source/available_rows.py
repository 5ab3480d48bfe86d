"""The rows of a stream that are there at one moment: read to their end, and no further."""

from __future__ import annotations

import time

from millrace.spark.source.stream_session import BatchLimit, StreamSession


class AvailableRows:
    """Reads up to the ends of journals at the first call, and then reports no more rows.

    No checkpoint is split: the last one may have rows that came later.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] | None = None
        self._last: int | None = None
        """The checkpoint that shows it all."""
        self._offsets: dict[str, int] | None = None
        self._moved_s = 0.0
        """Since when journals have stood at these offsets."""

    def advance(self, session: StreamSession, start: int, limit: BatchLimit) -> int:
        """The next offset; `start` when everything was shown."""
        if self._ends is None:
            self._ends = session.ends()
        while True:
            if self._last is None and self._is_read(session, self._ends):
                self._last = session.settled()
            if self._last is not None and start >= self._last:
                return start
            end = session.advance(start, limit, upto=self._last)
            if end > start:
                return end

    def _is_read(self, session: StreamSession, ends: dict[str, int]) -> bool:
        """Whether journals were read to these ends, or no row came for a while."""
        offsets = session.offsets()
        if all(offsets.get(name, 0) >= end for name, end in ends.items()):
            return True
        if offsets != self._offsets:
            self._offsets, self._moved_s = offsets, time.monotonic()
        return time.monotonic() - self._moved_s > session.quiet_s
