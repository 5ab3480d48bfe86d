"""What a queue asks of a disk, behind a port, so that a simulation can put its own there."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from millrace.reads.queue.blocks import SegmentNumber


class QueueDisk(Protocol):
    """Segment files of one queue. What the operating system refuses is a `StorageError`."""

    def append(self, segment: SegmentNumber, data: memoryview) -> int:
        """Put bytes behind a segment, making it if need be; where they begin.

        Segments are written one after the other: no earlier one grows again.
        """

    def map(self, segment: SegmentNumber, position: int, length: int) -> pa.Buffer:
        """Bytes of a segment, without a copy. They stay readable when it is unlinked."""

    def is_held(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """Whether somebody still has mapped bytes of this range in hand."""

    def punch(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """Give bytes back that read as zeros from now on; False if it cannot be done here."""

    def unlink(self, segment: SegmentNumber) -> None:
        """Remove a segment."""

    def used_bytes(self) -> int:
        """What all segments take, as the disk itself sees it."""

    def close(self) -> None:
        """Remove all segments."""
