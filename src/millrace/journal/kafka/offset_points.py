"""Which Kafka offset holds which offset of a journal. Pure.

Kafka gives offsets to the ends of transactions and to rows of transactions that came to nothing, as
well as to rows. So a row's Kafka offset runs ahead of its offset in the journal, by ever more. Some
points are known: rows that were just written, or read. From the nearest one below, a row can be
found by reading on; it is never before the Kafka offset that counting on from that point gives.

Invariant: for a known point (offset, kafka_offset), the row at `offset + n` is at
`kafka_offset + n` or above. Where rows are in frames it is at `kafka_offset` or above.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import NewType

from millrace.journal.core.journal_names import Offset

KafkaOffset = NewType("KafkaOffset", int)
"""An offset of Kafka's."""


@dataclass(frozen=True, slots=True)
class OffsetPoint:
    """A row's offset in its journal, and Kafka's."""

    offset: Offset
    kafka_offset: KafkaOffset


@dataclass(frozen=True, slots=True)
class OffsetPoints:
    """Some points of one journal, in order. Many threads look at one while the next is made."""

    points: tuple[OffsetPoint, ...] = ()

    def with_point(self, point: OffsetPoint, points_max: int) -> OffsetPoints:
        """These and one more; of too many, every other one goes."""
        at = bisect.bisect_left(self.points, point.offset, key=_offset)
        if at < len(self.points) and self.points[at].offset == point.offset:
            return self
        points = (*self.points[:at], point, *self.points[at:])
        if len(points) > points_max:
            # The last one stays: it is where appends go on, and most reads.
            points = (*points[:-1:2], points[-1])
        return OffsetPoints(points)

    def from_offset(self, offset: Offset) -> OffsetPoints:
        """These without those of rows that are truncated."""
        return OffsetPoints(self.points[bisect.bisect_left(self.points, offset, key=_offset) :])

    def below(self, offset: Offset) -> OffsetPoint | None:
        """The last point at or below an offset."""
        at = bisect.bisect_right(self.points, offset, key=_offset)
        return self.points[at - 1] if at else None

    def above(self, offset: Offset) -> OffsetPoint | None:
        """The first point above an offset."""
        at = bisect.bisect_right(self.points, offset, key=_offset)
        return self.points[at] if at < len(self.points) else None

    def last(self) -> OffsetPoint | None:
        """The last point."""
        return self.points[-1] if self.points else None


def _offset(point: OffsetPoint) -> Offset:
    return point.offset


def first_guess(
    points: OffsetPoints, offset: Offset, low: KafkaOffset, *, is_framed: bool = False
) -> KafkaOffset:
    """The highest Kafka offset at which the row of an offset cannot have been passed yet."""
    point = points.below(offset)
    if point is None:
        return low
    # A frame has many rows at one Kafka offset.
    rows = 0 if is_framed else offset - point.offset
    return KafkaOffset(max(low, point.kafka_offset + rows))
