"""The report of a slice to the session, sent when all of its rows are in the queues. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.model.number_tables import Table, pack, unpack
from millrace.reads.model.tags import Clocks, Ints


@dataclass(frozen=True, slots=True)
class Points(Table):
    """Commits: the clock, and the offset at which the first row of it begins.

    Points of one tag and producer are in order. A run of commits without hints is one point: its
    last clock, its first begin.
    """

    TYPES: ClassVar[dict[str, Any]] = {"clock": np.uint64}

    tag: Ints
    producer: Ints
    clock: Clocks
    begin: Ints


@dataclass(frozen=True, slots=True)
class Hints(Table):
    """Journals of the same transaction, each named by an ACK with this clock in this tag."""

    TYPES: ClassVar[dict[str, Any]] = {"clock": np.uint64}

    tag: Ints
    producer: Ints
    clock: Clocks
    journal: Ints
    """One that is read in the tag's cohort, or that the slice does not know yet."""


@dataclass(frozen=True, slots=True)
class Opens(Table):
    """Where a producer's open transaction in a tag begins; `NONE`: it has none any more."""

    tag: Ints
    producer: Ints
    begin: Ints


@dataclass(frozen=True, slots=True)
class Reads(Table):
    """How far a tag was read: its next offset."""

    tag: Ints
    offset: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProgress:
    """The progress of a slice between two flushes."""

    points: Points = field(default_factory=Points.empty)
    hints: Hints = field(default_factory=Hints.empty)
    opens: Opens = field(default_factory=Opens.empty)
    rolled_back: RolledBack = field(default_factory=RolledBack.empty)
    reads: Reads = field(default_factory=Reads.empty)

    def to_bytes(self) -> bytes:
        """For the wire."""
        return pack([self.points, self.hints, self.opens, self.rolled_back, self.reads])

    @classmethod
    def from_bytes(cls, content: bytes) -> SliceProgress:
        """From the wire."""
        kinds = [Points, Hints, Opens, RolledBack, Reads]
        points, hints, opens, gone, reads = unpack(content, kinds)
        return cls(points=points, hints=hints, opens=opens, rolled_back=gone, reads=reads)


def run_starts(points: Points, hinted: npt.NDArray[np.bool_]) -> Ints:
    """The starts of runs that can be joined: runs of commits without hints.

    Points must be grouped by tag and producer.
    """
    begins = np.ones(len(points), np.bool_)
    same = (points.tag[1:] == points.tag[:-1]) & (points.producer[1:] == points.producer[:-1])
    begins[1:] = ~same | hinted[1:] | hinted[:-1]
    return np.flatnonzero(begins)


def collapse(points: Points, starts: Ints) -> Points:
    """Join runs of commits, which start there."""
    if not len(points):
        return points
    ends = np.append(starts[1:], len(points)) - 1
    return Points(
        points.tag[starts], points.producer[starts], points.clock[ends], points.begin[starts]
    )
