"""Laws of the order in which rows go: a merge of tags by their heads, as far as these are there."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples

from millrace.reads.model.governor import Governor

Name = tuple[int, int]
"""A row: its tag, and its place there."""


@dataclass(slots=True)
class Source:
    """A tag and what can be read of it."""

    tag: int
    priority: int
    delay: int
    clocks: list[int]
    read: int = 0
    last_key: int = 0
    has_more: bool = True
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Key and place of rows that were read and wait."""

    def due(self, place: int) -> int:
        return self.clocks[place] + self.delay

    def holds(self, now: int) -> bool:
        return self.has_more and not (self.delay and self.last_key > now)


class Run:
    """A governor, and beside it the same in dicts and loops."""

    def __init__(self, rng: Random, sources: list[Source]) -> None:
        self.rng = rng
        self.sources = sources
        self.governor = Governor()
        self.chunks: dict[int, list[Name]] = {}
        for each in sources:
            self.governor.start(each.tag, each.priority, is_delayed=each.delay > 0)

    def fetch(self, tags: list[int], rows_max: int) -> None:
        """Read some rows of tags, in chunks of one priority each."""
        chosen = [each for each in self.sources if each.tag in tags]
        for priority in {each.priority for each in chosen}:
            names: list[Name] = []
            for each in [each for each in chosen if each.priority == priority]:
                end = min(len(each.clocks), each.read + self.rng.randint(1, rows_max))
                names += [(each.tag, place) for place in range(each.read, end)]
                for place in range(each.read, end):
                    each.last_key = max(each.last_key, each.due(place))
                    each.waiting.append((each.last_key, place))
                each.read, each.has_more = end, end < len(each.clocks)
                left = np.array([len(each.clocks) - end], np.float64)
                self.governor.set_left(priority, np.array([each.tag]), left)
            self.add(priority, names)

    def add(self, priority: int, names: list[Name]) -> None:
        number = len(self.chunks)
        self.chunks[number] = names
        by_tag = {each.tag: each for each in self.sources}
        due = [by_tag[tag].due(place) for tag, place in names]
        tags = np.array([tag for tag, _ in names], np.int64)
        self.governor.add(priority, number, tags, np.array(due, np.uint64))

    def goes(self, now: int) -> list[Name]:
        """What goes now, by both."""
        places = self.governor.next_rows(now).in_order()
        found = zip(places.chunk.tolist(), places.row.tolist(), strict=True)
        names = [self.chunks[chunk][place] for chunk, place in found]
        assert names == self.plain(now)
        waiting = {
            name for each in self.sources for name in [(each.tag, p) for _, p in each.waiting]
        }
        chunks = {number for number, names in self.chunks.items() if waiting & set(names)}
        assert self.governor.chunks() == chunks
        return names

    def plain(self, now: int) -> list[Name]:
        for priority in sorted({each.priority for each in self.sources}, reverse=True):
            mine = [each for each in self.sources if each.priority == priority]
            holding = [(each.last_key, rank) for rank, each in enumerate(mine) if each.holds(now)]
            horizon = min(holding, default=(2**64, 0))
            going = []
            for rank, each in enumerate(mine):
                free = [
                    (key, rank, each.tag, place)
                    for key, place in each.waiting
                    if (key, rank) <= horizon and (not each.delay or key <= now)
                ]
                each.waiting = each.waiting[len(free) :]
                going += free
            if going:
                return [(tag, place) for _, _, tag, place in sorted(going)]
            if holding:
                return []
        return []

    def wanted(self, count: int, now: int) -> list[int]:
        candidates = self.governor.candidates(count, now)
        found: list[int] = [] if candidates is None else candidates.tags.tolist()
        first = max((each.priority for each in self.sources if each.holds(now)), default=0)
        order = sorted(
            (-each.priority, each.last_key, place, each.tag)
            for place, each in enumerate(self.sources)
            if each.holds(now) and each.priority == first
        )
        assert found == [tag for *_, tag in order][:count]
        return found


def merged(sources: list[Source]) -> list[Name]:
    """A merge by heads: of all tags of the highest priority, the lowest clock plus delay next."""
    out = []
    for priority in sorted({each.priority for each in sources}, reverse=True):
        mine = [each for each in sources if each.priority == priority]
        heads = [(each.due(0), rank, 0) for rank, each in enumerate(mine) if each.clocks]
        heapq.heapify(heads)
        while heads:
            _, rank, place = heapq.heappop(heads)
            out.append((mine[rank].tag, place))
            if place + 1 < len(mine[rank].clocks):
                heapq.heappush(heads, (mine[rank].due(place + 1), rank, place + 1))
    return out


def make_sources(rng: Random, delays: list[int]) -> list[Source]:
    sources = []
    for tag in rng.sample(range(100), rng.randint(1, 6)):
        clock, clocks = 0, []
        for _ in range(rng.randint(0, 25)):
            clock += rng.randint(-3 if rng.random() < 0.5 else 0, 6)
            clocks.append(max(clock, 1))
        sources.append(Source(tag, rng.randint(0, 2), rng.choice(delays), clocks))
    return sources


def whole_order(seed: int) -> None:
    rng = Random(seed)  # noqa: S311
    sources = make_sources(rng, delays=[0, 4])
    run, out, far = Run(rng, sources), [], 2**62
    for _ in range(1_000):
        found = run.goes(far)
        out += found
        wanted = run.wanted(rng.randint(1, 6), far)
        if not found and not wanted:
            break
        if not found or rng.random() < 0.3:
            run.fetch(wanted, rows_max=rng.choice([1, 5, 30]))

    assert out == merged(sources)


def in_time(seed: int) -> None:
    rng = Random(seed)  # noqa: S311
    sources = make_sources(rng, delays=[0, 7, 30])
    run, now = Run(rng, sources), 0
    out: list[tuple[int, Name]] = []
    for _ in range(1_500):
        found = run.goes(now)
        out += [(now, name) for name in found]
        wanted = run.wanted(rng.randint(1, 6), now)
        if wanted and (not found or rng.random() < 0.3):
            run.fetch(wanted, rows_max=rng.choice([1, 5, 30]))
        elif not found:
            # Nothing to read and nothing goes: whatever waits, waits for its own delay.
            left = [(each, each.waiting[0][0]) for each in sources if each.waiting]
            assert all(each.delay and key > now for each, key in left)
            due = run.governor.next_due()
            assert due == min((key for _, key in left), default=None)
            if due is None:
                break
            now = rng.choice([due, now + rng.randint(1, 5)])

    by_tag = {each.tag: each for each in sources}
    for when, (tag, place) in out:
        assert not by_tag[tag].delay or by_tag[tag].due(place) <= when
    for each in sources:
        assert [p for _, (tag, p) in out if tag == each.tag] == list(range(len(each.clocks)))


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 2**32))
def test_rows_that_are_there_go_in_the_order_of_a_merge_whatever_the_cuts(seed: int) -> None:
    whole_order(seed)


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 2**32))
def test_delayed_rows_go_in_time_and_block_nobody(seed: int) -> None:
    in_time(seed)


@pytest.mark.slow
@settings(max_examples=examples(2_000), deadline=None)
@given(st.integers(0, 2**32))
def test_order_and_delays_over_many_seeds(seed: int) -> None:
    whole_order(seed)
    in_time(seed)
