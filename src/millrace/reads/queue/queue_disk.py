"""The disk of a queue, as a port, so that a simulation can use a disk of its own."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from millrace.reads.queue.blocks import SegmentNumber


class QueueDisk(Protocol):
    """Segment files of one queue. Errors of the operating system become `StorageError`."""

    def append(self, segment: SegmentNumber, data: memoryview) -> int:
        """Append bytes to a segment, made if it is new; returns the position of the bytes.

        Segments are written one after the other: no earlier one grows again.
        """

    def map(self, segment: SegmentNumber, position: int, length: int) -> pa.Buffer:
        """Bytes of a segment, without a copy. They stay readable when it is unlinked."""

    def is_held(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """Whether a caller still uses mapped bytes of this range."""

    def punch(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """Give bytes back that read as zeros from now on; False if it cannot be done here."""

    def unlink(self, segment: SegmentNumber) -> None:
        """Remove a segment."""

    def used_bytes(self) -> int:
        """The bytes of all segments, as the disk counts them."""

    def close(self) -> None:
        """Remove all segments."""
