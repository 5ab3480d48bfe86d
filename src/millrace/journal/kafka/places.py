"""Which Kafka offset holds which offset of a journal. Pure.

Kafka gives offsets to the ends of transactions and to rows of transactions that came to nothing, as
well as to rows. So a row's Kafka offset runs ahead of its offset in the journal, by ever more. Some
points are known: rows that were just written, or read. From the nearest one below, a row can be
found by reading on; it never lies before the place that counting on from that point gives.

Invariant: for a known point (offset, place), the row at `offset + n` lies at `place + n` or above.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import NewType

from millrace.journal.names import Offset

Place = NewType("Place", int)
"""An offset of Kafka's."""


@dataclass(frozen=True, slots=True)
class Point:
    """A row's offset in its journal, and Kafka's."""

    offset: Offset
    place: Place


@dataclass(slots=True)
class Places:
    """The known points of one journal, at most `points_max` of them."""

    points_max: int
    _offsets: list[Offset] = field(default_factory=list)
    _places: list[Place] = field(default_factory=list)

    def learn(self, offset: Offset, place: Place) -> None:
        """Take a point in."""
        at = bisect.bisect_left(self._offsets, offset)
        if at < len(self._offsets) and self._offsets[at] == offset:
            self._places[at] = max(place, self._places[at])
            return
        self._offsets.insert(at, offset)
        self._places.insert(at, place)
        if len(self._offsets) > self.points_max:
            # The last one stays: it is where appends go on, and most reads.
            self._offsets = [*self._offsets[:-1:2], self._offsets[-1]]
            self._places = [*self._places[:-1:2], self._places[-1]]

    def below(self, offset: Offset) -> Point | None:
        """The last known point at or below an offset."""
        at = bisect.bisect_right(self._offsets, offset) - 1
        return None if at < 0 else Point(self._offsets[at], self._places[at])

    def above(self, offset: Offset) -> Point | None:
        """The first known point above an offset."""
        at = bisect.bisect_right(self._offsets, offset)
        return None if at == len(self._offsets) else Point(self._offsets[at], self._places[at])

    def last(self) -> Point | None:
        """The last known point."""
        return Point(self._offsets[-1], self._places[-1]) if self._offsets else None

    def forget_before(self, offset: Offset) -> None:
        """Drop points of rows that are truncated."""
        at = bisect.bisect_left(self._offsets, offset)
        del self._offsets[:at], self._places[:at]


def first_guess(places: Places, offset: Offset, low: Place) -> Place:
    """The highest place at which the row of an offset cannot have been passed yet."""
    point = places.below(offset)
    return low if point is None else Place(max(low, point.place + offset - point.offset))
