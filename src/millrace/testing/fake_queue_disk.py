"""A queue's disk in memory, for simulations: it runs full, fails when asked to, or has no holes."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import StorageError
from millrace.reads.queue.blocks import SegmentNumber
from millrace.reads.queue.segments import PAGE_BYTES


class FakeQueueDisk:
    """Holds segments in memory, and asserts what a queue must keep to."""

    def __init__(
        self,
        *,
        bytes_max: int | None = None,
        fails_at_append: int | None = None,
        can_punch: bool = True,
    ) -> None:
        self._bytes_max = bytes_max
        self._appends_left = fails_at_append
        self._can_punch = can_punch
        self.segments: dict[SegmentNumber, bytearray] = {}
        self.punches = 0
        self.maps = 0
        self.unlinked: list[SegmentNumber] = []
        self._holes: dict[SegmentNumber, set[int]] = {}
        self._views: dict[SegmentNumber, list[tuple[int, weakref.ref[Any]]]] = {}
        self._last = 0

    def append(self, segment: SegmentNumber, data: memoryview) -> int:
        """See `QueueDisk.append`."""
        assert segment >= self._last, (segment, self._last)
        self._last = segment
        if self._appends_left is not None:
            self._appends_left -= 1
            if not self._appends_left:
                raise StorageError(
                    f"writing segment {segment} failed: it was to fail here\n"
                    "  to fix: take the fault out of the test"
                )
        if self._bytes_max is not None and self.used_bytes() + len(data) > self._bytes_max:
            raise StorageError(
                f"writing segment {segment} failed: the disk is full\n  to fix: make room"
            )
        content = self.segments.setdefault(segment, bytearray())
        position = len(content)
        content += data
        return position

    def map(self, segment: SegmentNumber, position: int, length: int) -> pa.Buffer:
        """See `QueueDisk.map`. This one copies, so that nothing changes under a reader."""
        self.maps += 1
        content = bytes(self.segments[segment][position : position + length])
        assert len(content) == length, (segment, position, length)
        view = np.frombuffer(content, np.uint8)
        self._views.setdefault(segment, []).append((position, weakref.ref(view)))
        return pa.py_buffer(view)

    def is_held(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """See `QueueDisk.is_held`."""
        views = [(at, view()) for at, view in self._views.get(segment, [])]
        alive = [(at, view) for at, view in views if view is not None]
        self._views[segment] = [(at, weakref.ref(view)) for at, view in alive]
        return any(at < end and begin < at + len(view) for at, view in alive)

    def punch(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """See `QueueDisk.punch`."""
        assert not self.is_held(segment, begin, end), (segment, begin, end)
        assert 0 <= begin < end <= len(self.segments[segment])
        if not self._can_punch:
            return False
        self.punches += 1
        self.segments[segment][begin:end] = bytes(end - begin)
        pages = range(-(-begin // PAGE_BYTES), end // PAGE_BYTES)
        self._holes.setdefault(segment, set()).update(pages)
        return True

    def unlink(self, segment: SegmentNumber) -> None:
        """See `QueueDisk.unlink`."""
        del self.segments[segment]
        self._holes.pop(segment, None)
        self._views.pop(segment, None)
        self.unlinked.append(segment)

    def used_bytes(self) -> int:
        """See `QueueDisk.used_bytes`."""
        holes = sum(len(pages) for pages in self._holes.values()) * PAGE_BYTES
        return sum(len(content) for content in self.segments.values()) - holes

    def close(self) -> None:
        """See `QueueDisk.close`."""
        for segment in sorted(self.segments):
            self.unlink(segment)
