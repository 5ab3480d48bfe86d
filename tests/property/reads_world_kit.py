"""A small world to read: producers, journals and their rows, and what must come out of them.

Everything here is plain Python, a row at a time, so that one can see that it is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.core.sequencing import ERRORS, RowEffect, Sequence, advance, outcome
from millrace.reads.model.coordinated_read import CohortNumber
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.tags import tag_of


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a journal; an ACK names the other journals of its transaction."""

    journal: int
    offset: int
    producer: int
    clock: int
    flag: Flag
    hints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """A row that counts, and the clock of the transaction that it came with."""

    row: Row
    clock: int


@dataclass(slots=True)
class World:
    """Journals 1 to n; which of them each binding reads, and the cohort of each binding."""

    cohorts: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    log: list[Row] = field(default_factory=list)
    """All rows of all journals in the order in which they were written."""

    def tags(self) -> list[int]:
        return [tag_of(number, j) for number, ids in enumerate(self.reads) for j in ids]

    def cohort_of(self, tag: int) -> int:
        return self.cohorts[tag >> 40]

    def tags_of(self, journal: int, cohort: int) -> list[int]:
        """The tags under which a cohort reads a journal."""
        return [
            tag_of(number, journal)
            for number, ids in enumerate(self.reads)
            if journal in ids and self.cohorts[number] == cohort
        ]

    def catalog(self) -> JournalCatalog:
        return JournalCatalog(
            tuple(CohortNumber(each) for each in self.cohorts),
            tuple(np.array(ids, np.int64) for ids in self.reads),
            JournalId(99),
        )

    def committed(self, upto: int | None = None) -> dict[int, list[Committed]]:
        """By journal, the rows that count in the first rows of the log."""
        states: dict[tuple[int, int], Sequence] = {}
        pending: dict[tuple[int, int], list[Row]] = {}
        found: dict[int, list[Committed]] = {}
        for row in self.log[:upto]:
            where = row.journal, row.producer
            state = states.get(where, Sequence())
            done = outcome(row.flag, Clock(row.clock), state)
            assert done not in ERRORS, row
            states[where] = advance(state, done, Clock(row.clock), Offset(row.offset))
            counts = found.setdefault(row.journal, [])
            if done is RowEffect.COMMITS_ITSELF:
                counts.append(Committed(row, row.clock))
            elif done in (RowEffect.BEGINS, RowEffect.EXTENDS):
                pending.setdefault(where, []).append(row)
            elif done is RowEffect.COMMITS:
                counts += [Committed(each, row.clock) for each in pending.pop(where)]
            elif done is RowEffect.ROLLS_BACK:
                pending.pop(where)
        return found

    def transactions(
        self, upto: int | None = None
    ) -> dict[tuple[int, int], tuple[set[int], set[int]]]:
        """By producer and clock: the journals that an ACK names, and those that have their own."""
        last: dict[tuple[int, int], int] = {}
        found: dict[tuple[int, int], tuple[set[int], set[int]]] = {}
        for row in self.log[:upto]:
            where = row.journal, row.producer
            if row.flag is Flag.ACK and row.clock > last.get(where, 0):
                named, there = found.setdefault((row.producer, row.clock), (set(), set()))
                named |= {row.journal, *row.hints}
                there.add(row.journal)
            if row.flag is not Flag.CONTINUE:
                last[where] = max(last.get(where, 0), row.clock)
        return found


class Producer:
    """Writes rows that commit themselves, and transactions over several journals."""

    def __init__(self, rng: Random, number: int, journals: list[int]) -> None:
        self._rng = rng
        self._number = number
        self._journals = journals
        self._clock = 0
        self._committed = dict.fromkeys(journals, 0)
        self._plan: list[tuple[str, int, tuple[int, ...]]] = []
        self._ack_clock = 0
        self._written: list[tuple[int, int, Flag, tuple[int, ...]]] = []

    def next_row(self) -> tuple[int, int, Flag, tuple[int, ...]]:
        """Journal, clock, flag and hints of its next row."""
        if not self._plan:
            self._plan = self._planned()
        what, journal, hints = self._plan.pop(0)
        row = self._made(what, journal, hints)
        self._written.append(row)
        return row

    def _planned(self) -> list[tuple[str, int, tuple[int, ...]]]:
        rng = self._rng
        if rng.random() < 0.3:
            return [("outside", rng.choice(self._journals), ())]
        if self._written and rng.random() < 0.15:
            return [("again", 0, ())]
        chosen = rng.sample(self._journals, rng.randint(1, min(3, len(self._journals))))
        rows = [("row", rng.choice(chosen), ()) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.2:
            ends = [("undo", journal, ()) for journal in chosen]
            return [*rows, *ends, ("reset" if rng.random() < 0.5 else "outside", chosen[0], ())]
        named = [("ack", j, tuple(other for other in chosen if other != j)) for j in chosen]
        return [*rows, ("prepare", *named[0][1:]), *named[1:]]

    def _made(
        self, what: str, journal: int, hints: tuple[int, ...]
    ) -> tuple[int, int, Flag, tuple[int, ...]]:
        rng = self._rng
        if what == "again":
            return self._written[-1]
        if what == "undo":
            return journal, rng.choice([0, self._committed[journal]]), Flag.ACK, ()
        if what == "reset":  # It gives out again the clocks of what was undone.
            self._clock = max(self._committed.values())
        if what == "prepare":
            self._clock += rng.randint(0, 2)
            self._ack_clock = self._clock
        if what in ("prepare", "ack"):
            self._committed[journal] = self._ack_clock
            return journal, self._ack_clock, Flag.ACK, hints
        self._clock += rng.randint(1, 3)
        if what == "row":
            return journal, self._clock, Flag.CONTINUE, ()
        self._committed[journal] = self._clock
        return journal, self._clock, Flag.OUTSIDE, ()


def make_world(rng: Random, rows: int) -> World:
    """Random bindings over random journals, and what a few producers write into them."""
    journals = list(range(1, rng.randint(3, 6)))
    bindings = rng.randint(1, 4)
    cohorts = tuple(rng.randrange(min(3, bindings)) for _ in range(bindings))
    reads = [tuple(j for j in journals if rng.random() < 0.7) for _ in range(bindings)]
    world = World(cohorts, tuple(reads))
    producers = [Producer(rng, number, journals) for number in range(1, 4)]
    following = dict.fromkeys(journals, 0)
    for _ in range(rows):
        number = rng.randrange(3)
        journal, clock, flag, hints = producers[number].next_row()
        offset = following[journal]
        following[journal] = offset + rng.randint(1, 2)
        world.log.append(Row(journal, offset, number + 1, clock, flag, hints))
    return world
