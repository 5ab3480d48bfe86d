"""Laws of what coordinated reads show, over random worlds, arrivals, cuts and restarts.

Each committed row is shown exactly once, none that was not; a transaction is whole within a cohort
or not shown; a prepared checkpoint is replayed exactly; and every checkpoint is what a plain
frontier, written from the rules, says.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.property.reads_session_kit import Pair, PlainFrontier, Reading, Seen
from tests.property.reads_world_kit import World, make_world

from millrace.journal.core.row_format import Flag
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber, merge, without_done
from millrace.reads.model.clock_windows import between
from millrace.reads.model.frontier import Frontier
from millrace.reads.model.number_tables import NONE


class Run:
    """Sessions that follow one another over a world that is still being written."""

    def __init__(self, seed: int, rows: int) -> None:
        self.rng = Random(seed)  # noqa: S311
        self.world = make_world(self.rng, rows)
        self.published = 0
        self.base = merge()
        self.prepared: list[tuple[Checkpoint, set[Seen]]] = []
        """Handed out and not committed, each with its rows."""
        self.numbers = 0
        self.seen: list[set[Seen]] = []
        self.open()

    def open(self) -> None:
        """A session starts where the last commit left off; what was prepared it hands out first.

        Of what was prepared, the last may have been dropped: nobody had begun to process it.
        """
        if self.rng.random() < 0.3:
            self.prepared = self.prepared[: self.rng.randint(0, len(self.prepared))]
        self.reading = Reading(self.world, self.rng, self.base)
        self.frontier = Frontier(self.world.cohorts, self.base)
        self.plain = PlainFrontier(self.world, self.base)
        self.handed = 0
        """How many of the prepared ones this session has handed out."""

    def publish(self) -> None:
        self.published = min(len(self.world.log), self.published + self.rng.randint(1, 15))

    def report(self) -> bool:
        progress = self.reading.report()
        if progress is None:
            return False
        self.plain.apply(progress)
        self.frontier.apply(progress, self.world.catalog(), 0)
        return True

    def checkpoint(self) -> bool:
        """Hand out the next checkpoint, if there is one."""
        if self.handed < len(self.prepared):
            return self.replay()
        expected, has_news = self.plain.next_shown(), self.plain.has_news()
        reads = dict(self.plain.read)
        self.numbers += self.rng.randint(1, 2)
        delta = self.frontier.next_delta(CheckpointNumber(self.numbers))
        assert (delta is not None) == has_news
        if delta is None:
            return False
        self.plain.hand_out(delta)
        before = self.whole()
        whole = merge(before, delta)
        assert said(whole) == {p: v for p, v in expected.items() if v != (0, NONE)}
        assert {tag: offset for tag, offset, _ in whole.reads.rows()} == reads
        rows = self.visible(before, whole)
        self.check_rows(rows)
        self.prepared.append((delta, rows))
        self.handed += 1
        return True

    def replay(self) -> bool:
        """Hand out the next of the prepared ones, once all that it shows is committed again."""
        delta, rows = self.prepared[self.handed]
        reached = self.frontier.reaches(delta)
        assert reached == self.plain.reaches(delta)
        if reached:
            self.frontier.hand_out(delta)
            self.plain.hand_out(delta)
            before = self.whole()
            self.handed += 1
            assert self.visible(before, self.whole()) == rows
        return reached

    def whole(self) -> Checkpoint:
        """All that was handed out, as one."""
        whole = self.base
        for delta, _ in self.prepared[: self.handed]:
            whole = merge(without_done(whole), delta)
        return whole

    def visible(self, before: Checkpoint, now: Checkpoint) -> set[Seen]:
        then = said(before)
        assert all(clock >= then.get(pair, (0, 0))[0] for pair, (clock, _) in said(now).items())
        return self.reading.visible(between(before, now))

    def check_rows(self, rows: set[Seen]) -> None:
        """All of them are committed, and their transactions whole."""
        for tag, row in rows:
            cohort = self.world.cohort_of(tag)
            clock = committed_at(self.world, self.published, tag, row)
            if row.flag is Flag.CONTINUE:
                whole = transaction_rows(self.world, cohort, row.producer, clock)
                assert whole <= rows, (cohort, row.producer, clock)

    def commit(self) -> None:
        """Everything up to one of those handed out is processed."""
        done = self.rng.randint(0, self.handed)
        self.base = merge(self.base, *(delta for delta, _ in self.prepared[:done]))
        if self.rng.random() < 0.5:
            self.base = without_done(self.base)
        self.seen += [rows for _, rows in self.prepared[:done]]
        self.prepared = self.prepared[done:]
        self.handed -= done

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.15:
            self.publish()
        elif chance < 0.4:
            self.reading.read(self.published, rows_max=self.rng.choice([2, 10]))
        elif chance < 0.65:
            self.report()
        elif chance < 0.8:
            self.checkpoint()
        elif chance < 0.95:
            self.commit()
        else:
            self.open()

    def finish(self) -> None:
        """Everything is written, read and reported."""
        self.published = len(self.world.log)
        self.reading.read_all(self.published)
        while self.report():
            pass
        while self.checkpoint():
            pass
        assert self.handed == len(self.prepared)
        self.seen += [rows for _, rows in self.prepared]


def said(given: Checkpoint) -> dict[Pair, tuple[int, int]]:
    rows = given.shown.rows()
    return {(t, p): (clock, begin) for t, p, clock, begin, _ in rows if (clock, begin) != (0, NONE)}


def committed_at(world: World, published: int, tag: int, row: object) -> int:
    """The clock that committed a row; it must have been."""
    journal = tag & (2**40 - 1)
    clocks = [each.clock for each in world.committed(published)[journal] if each.row == row]
    assert len(clocks) == 1, row
    return clocks[0]


def transaction_rows(world: World, cohort: int, producer: int, clock: int) -> set[Seen]:
    return {
        (tag, each.row)
        for journal, rows in world.committed().items()
        for each in rows
        if (each.row.producer, each.clock) == (producer, clock)
        for tag in world.tags_of(journal, cohort)
    }


def shown_in_the_end(world: World) -> set[Seen]:
    """All committed rows, but for those of a producer from its first incomplete transaction on."""
    bounds: dict[tuple[int, int], int] = {}
    for (producer, clock), (named, there) in world.transactions().items():
        for cohort in set(world.cohorts):
            wanted = {journal for journal in named if world.tags_of(journal, cohort)}
            if not wanted <= there and wanted & there:
                where = cohort, producer
                bounds[where] = min(bounds.get(where, clock), clock)
    return {
        (tag, each.row)
        for tag in world.tags()
        for each in world.committed().get(tag & (2**40 - 1), [])
        if each.clock < bounds.get((world.cohort_of(tag), each.row.producer), 2**64)
    }


def run(seed: int, rows: int, steps: int) -> None:
    story = Run(seed, rows)
    for _ in range(steps):
        story.step()
    story.finish()

    shown = [row for rows_shown in story.seen for row in rows_shown]
    assert len(shown) == len(set(shown))
    assert set(shown) == shown_in_the_end(story.world)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_each_committed_row_is_shown_once_and_transactions_whole(seed: int) -> None:
    run(seed, rows=40, steps=120)


@pytest.mark.slow
@settings(max_examples=examples(2_000), deadline=None)
@given(st.integers(0, 2**32))
def test_each_committed_row_is_shown_once_in_longer_stories(seed: int) -> None:
    run(seed, rows=80, steps=300)
