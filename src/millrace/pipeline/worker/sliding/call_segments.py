"""The call files of one turn: a new segment is begun now and then, old ones are removed.

Invariant: a segment stays until all rows whose calls it has are published, so outcomes that no
record counts, and results that are not published, are in some segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.core.call_outcomes import CallOutcome
from millrace.pipeline.core.call_window import SlidingCall
from millrace.pipeline.worker.call_files import CallFiles

_SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""With so many bytes of outcomes the next segment is begun."""
_COUNTED: Final = -1
"""The number of an outcome that a record counts already."""


@dataclass(slots=True)
class _CallSegment:
    file: CallFile
    last: int = -1
    """The highest offset of a row that a call of it began with."""


class CallSegments:
    """Notes of the calls of one turn. Calls are of any thread, the rest is of the turn's."""

    def __init__(
        self, files: CallFiles, step: str, slots: int, tell: Callable[[CallOutcome], None]
    ) -> None:
        """`tell` hands an outcome to the turn, in the order of their numbers."""
        self._files, self._step, self._slots, self._tell = files, step, slots, tell
        self._segments: list[_CallSegment] = []
        self._lock = threading.Lock()
        self._number = self._begun = 0

    def open(self) -> None:
        """Have a file for the calls that are about to be recorded."""
        with self._lock:
            if not self._segments or self._segments[-1].file.size > _SEGMENT_BYTES:
                self._begin()

    def _begin(self) -> None:
        file = self._files.open(self._begun, slots=self._slots)
        file.next_batch(self._step, np.empty(0, np.int64))
        self._begun += 1
        self._segments.append(_CallSegment(file))

    def keep(self, calls: Sequence[SlidingCall]) -> None:
        """Keep results of a dead worker that wait for earlier rows."""
        self.open()
        with self._lock:
            segment = self._segments[-1]
            for call in calls:
                segment.last = max(segment.last, call.first)
                outcome = CallOutcome(
                    first=call.first,
                    attempt=call.attempt,
                    at_us=0,
                    seconds=0.0,
                    made=call.made,
                    failure=call.failure,
                )
                segment.file.outcome(_COUNTED, call.end, outcome)

    def begin(self, slot: int, call: SlidingCall) -> object:
        """A call is about to be made: mark it."""
        with self._lock:
            segment = self._segments[-1]
            segment.last = max(segment.last, call.first)
            segment.file.begin(slot, call.first, call.end, call.attempt)
            return segment

    def ended(self, slot: int, begun: object, call: SlidingCall, outcome: CallOutcome) -> None:
        """A call has ended: its outcome is kept, its mark goes, and the turn is told."""
        assert isinstance(begun, _CallSegment)
        with self._lock:
            begun.file.outcome(self._number, call.end, outcome)
            begun.file.end(slot)
            self._number += 1
            self._tell(outcome)

    def published(self, at: int) -> None:
        """All rows below an offset are published: remove what only has calls of those."""
        with self._lock:
            for segment in self._segments[:-1]:
                if segment.last < at:
                    segment.file.remove()
                    self._segments.remove(segment)

    def close(self, *, keeps: bool) -> None:
        """Leave the files to the next worker, or remove them."""
        with self._lock:
            for segment in self._segments:
                if keeps:
                    segment.file.close()
                else:
                    segment.file.remove()
            self._segments.clear()
