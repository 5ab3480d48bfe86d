"""Reading a small world: slices that report, a plain frontier, and what a consumer would see.

The frontier here is written from the rules, with dicts and loops; the real one is held to it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import numpy as np
from tests.property.reads_world_kit import Row, World
from tests.unit.reads.model.test_sequence import stamped

from millrace.journal.core.row_format import Flag
from millrace.reads.model.checkpoint import Checkpoint, RolledBack, resume_offsets
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.sequence import Sequences
from millrace.reads.model.slice_progress import (
    Hints,
    Opens,
    Points,
    Reads,
    SliceProgress,
    collapse,
    run_starts,
)
from millrace.reads.model.tags import journal_of

Pair = tuple[int, int]
Seen = tuple[int, Row]
"""A row under a tag."""


class PlainFrontier:
    """What is shown, by the rules."""

    def __init__(self, world: World, base: Checkpoint) -> None:
        self.world = world
        self.shown: dict[Pair, int] = {}
        self.committed: dict[Pair, int] = {}
        self.points: dict[Pair, list[tuple[int, int]]] = {}
        self.open: dict[Pair, int] = {}
        self.read: dict[int, int] = {}
        self.reported: set[int] = set()
        self.hints: list[tuple[int, int, int, int]] = []
        """Producer, clock, source and target."""
        self.gone: set[tuple[int, ...]] = set()
        self.handed_gone = {row[:3] for row in base.rolled_back.rows()}
        self._note(base)

    def _note(self, given: Checkpoint) -> None:
        for tag, producer, clock, begin, _ in given.shown.rows():
            pair = tag, producer
            self.shown[pair] = max(self.shown.get(pair, 0), clock)
            self.committed[pair] = max(self.committed.get(pair, 0), clock)
            if tag not in self.reported:
                self.open[pair] = begin
        for tag, offset, _ in given.reads.rows():
            if tag not in self.reported:
                self.read[tag] = offset

    def apply(self, progress: SliceProgress) -> None:
        """Commits first, then hints."""
        for tag, offset in progress.reads.rows():
            if tag not in self.reported:
                self.reported.add(tag)
                self.open = {pair: begin for pair, begin in self.open.items() if pair[0] != tag}
            self.read[tag] = offset
        for tag, producer, clock, begin in progress.points.rows():
            pair = tag, producer
            self.committed[pair] = max(self.committed.get(pair, 0), clock)
            self.points.setdefault(pair, []).append((clock, begin))
        for tag, producer, begin in progress.opens.rows():
            self.open[tag, producer] = begin
        self.gone |= {row[:3] for row in progress.rolled_back.rows()}
        for tag, producer, clock, journal in progress.hints.rows():
            for target in self.world.tags_of(journal, self.world.cohort_of(tag)):
                if target != tag:
                    self.hints.append((producer, clock, tag, target))

    def unmet(self) -> list[tuple[int, int, int, int]]:
        return [
            (producer, clock, source, target)
            for producer, clock, source, target in self.hints
            if self.committed.get((target, producer), 0) < clock
            and self.shown.get((source, producer), 0) < clock
        ]

    def next_shown(self) -> dict[Pair, tuple[int, int]]:
        """Of each tag and producer: the clock to show, and the begin of what is not."""
        bounds: dict[tuple[int, int], int] = {}
        for producer, clock, source, _ in self.unmet():
            where = self.world.cohort_of(source), producer
            bounds[where] = min(bounds.get(where, clock), clock)
        found = {}
        for pair in {*self.shown, *self.points, *self.open}:
            bound = bounds.get((self.world.cohort_of(pair[0]), pair[1]))
            points = self.points.get(pair, [])
            clocks = [clock for clock, _ in points if bound is None or clock < bound]
            clock = max([self.shown.get(pair, 0), *clocks])
            waiting = [begin for each, begin in points if each > clock]
            found[pair] = clock, (waiting[0] if waiting else self.open.get(pair, NONE))
        return found

    def has_news(self) -> bool:
        moved = any(c > self.shown.get(pair, 0) for pair, (c, _) in self.next_shown().items())
        return moved or bool(self.gone - self.handed_gone)

    def reaches(self, prepared: Checkpoint) -> bool:
        return all(
            self.committed.get((tag, producer), 0) >= clock
            for tag, producer, clock, _, _ in prepared.shown.rows()
        )

    def hand_out(self, delta: Checkpoint) -> None:
        self._note(delta)
        self.handed_gone |= {row[:3] for row in delta.rolled_back.rows()}


@dataclass(slots=True)
class Slice:
    """Some of the tags, and reports that are on their way."""

    tags: list[int]
    sequences: Sequences = field(default_factory=Sequences)
    reports: deque[SliceProgress] = field(default_factory=deque)


class Reading:
    """The slices and queues of a session that goes on from a checkpoint."""

    def __init__(self, world: World, rng: Random, base: Checkpoint) -> None:
        self.world = world
        self.rng = rng
        self.slices = [Slice([]) for _ in range(rng.randint(1, 3))]
        starts = resume_offsets(base)
        self.next: dict[int, int] = {}
        self.queued: dict[int, list[Row]] = {}
        for tag in world.tags():
            mine = rng.choice(self.slices)
            mine.tags.append(tag)
            self.next[tag] = starts.get(tag, 0)
            self.queued[tag] = []
            of_tag = base.shown.take(base.shown.tag == tag)
            mine.sequences.start(tag, of_tag.producer, of_tag.clock)

    def read(self, published: int, rows_max: int) -> None:
        """One of the slices reads some rows of some of its tags."""
        mine = self.rng.choice(self.slices)
        found: list[tuple[int, Row]] = []
        for tag in mine.tags:
            if self.rng.random() < 0.6:
                there = self._unread(tag, published)
                found += [(tag, row) for row in there[: self.rng.randint(0, rows_max)]]
        if self.rng.random() < 0.5:
            found.sort(key=lambda each: (each[1].clock, each[0]))
            found = self._in_order(found)
        if found:
            mine.reports.append(self._sequenced(mine, found))

    def read_all(self, published: int) -> None:
        for mine in self.slices:
            found = [(tag, row) for tag in mine.tags for row in self._unread(tag, published)]
            if found:
                mine.reports.append(self._sequenced(mine, found))

    def report(self) -> SliceProgress | None:
        """What one of the slices reports next, if any does."""
        ready = [each for each in self.slices if each.reports]
        return self.rng.choice(ready).reports.popleft() if ready else None

    def visible(self, given: Visible) -> set[Seen]:
        """The rows in the queues that become visible."""
        windows = {(tag, p): (low, high) for tag, p, low, high in given.windows.rows()}
        ranges = given.rolled_back.rows()
        found = set()
        for tag, rows in self.queued.items():
            for row in rows:
                low, high = windows.get((tag, row.producer), (0, 0))
                gone = any(
                    (tag, row.producer) == (t, p) and begin <= row.offset < end
                    for t, p, begin, end, _ in ranges
                )
                if low < row.clock <= high and not gone:
                    assert (tag, row) not in found
                    found.add((tag, row))
        return found

    def _unread(self, tag: int, published: int) -> list[Row]:
        journal, begin = journal_of(tag), self.next[tag]
        return [
            row
            for row in self.world.log[:published]
            if row.journal == journal and row.offset >= begin
        ]

    def _in_order(self, found: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
        """Tags interleaved as they stand, and each tag's rows in order of offset."""
        of_tag: dict[int, list[Row]] = {}
        for tag, row in sorted(found, key=lambda each: each[1].offset):
            of_tag.setdefault(tag, []).append(row)
        return [(tag, of_tag[tag].pop(0)) for tag, _ in found]

    def _sequenced(self, mine: Slice, found: list[tuple[int, Row]]) -> SliceProgress:
        done = mine.sequences.take(
            stamped([(tag, row.offset, row.producer, row.clock, row.flag) for tag, row in found])
        )
        for (tag, row), keep in zip(found, done.keep.tolist(), strict=True):
            self.next[tag] = row.offset + 1
            if keep:
                self.queued[tag].append(row)
        points: list[tuple[int, ...]] = []
        hints: list[tuple[int, ...]] = []
        hinted = []
        for place, begin in zip(done.commits.tolist(), done.begins.tolist(), strict=True):
            tag, row = found[place]
            named = self._named(tag, row)
            points.append((tag, row.producer, row.clock, begin))
            hints += [(tag, row.producer, row.clock, journal) for journal in named]
            hinted.append(bool(named))
        sequences, given = mine.sequences, Points.of(points)
        opens = Opens(*sequences.numbering.parts(done.pairs), sequences.open_begins(done.pairs))
        return SliceProgress(
            points=collapse(given, run_starts(given, np.array(hinted, np.bool_))),
            hints=Hints.of(hints),
            opens=opens,
            rolled_back=RolledBack.concat([done.rolled_back]),
            reads=Reads.of([(tag, self.next[tag]) for tag in dict.fromkeys(t for t, _ in found)]),
        )

    def _named(self, tag: int, row: Row) -> list[int]:
        """The journals that an ACK waits for in its cohort: none that nobody there reads."""
        if row.flag is not Flag.ACK:
            return []
        cohort = self.world.cohort_of(tag)
        named = [j for j in row.hints if self.world.tags_of(j, cohort)]
        if len(self.world.tags_of(row.journal, cohort)) > 1:
            named.append(row.journal)
        return named
