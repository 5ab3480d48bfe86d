"""Followers with priorities, read delays, and ranges of clocks instead of keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.reads.live.live_kit import (
    QUICK,
    SCHEMA,
    CountingBroker,
    drain,
    follower,
    numbers,
    rows,
)

from millrace.journal.core.clocks import Clock, unix_ns_of
from millrace.journal.core.row_format import CLOCK
from millrace.keys.key_ranges import tile
from millrace.keys.rotated_clock import rotated_clock
from millrace.reads.live.live_reads import LiveReads

MS_NS = 1_000_000


@pytest.fixture
def broker() -> Iterator[CountingBroker]:
    made = CountingBroker()
    for name in ("a/low", "a/high", "a/high/not"):
        made.create(name, SCHEMA)
    yield made
    made.close()


class Time:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def written_ns(broker: CountingBroker, name: str, offset: int) -> int:
    clock = broker.read(name, offset, rows_max=1).stored()[CLOCK][0].as_py()
    return unix_ns_of(Clock(clock))


# Priority.
def test_rows_of_a_higher_priority_come_first_also_those_that_come_later(
    broker: CountingBroker,
) -> None:
    now = 0
    config = QUICK.with_options(live_read_rows_max=2)
    live = LiveReads(broker, config, now_ms=lambda: now)
    for name in ("a/low", "a/high/not", "a/high"):
        broker.append(name, rows(*range(4)))
    mine = follower(live, "a", priority={"a/high": 2, "a/high/not": -1})
    found = []
    for _ in range(3):
        fetched = mine.next(1)
        assert fetched is not None
        found.append((fetched.journal, numbers(fetched)))
    broker.append("a/high", rows(4, 5))
    now += 100  # Looked for now and then only.
    while (fetched := mine.next(0)) is not None:
        found.append((fetched.journal, numbers(fetched)))

    assert found == [
        ("a/high", [0, 1]),
        ("a/high", [2, 3]),
        ("a/low", [0, 1]),
        ("a/high", [4, 5]),
        ("a/low", [2, 3]),
        ("a/high/not", [0, 1]),
        ("a/high/not", [2, 3]),
    ]


# Read delay.
def test_rows_come_when_their_delay_is_over_and_others_do_not_wait_for_them(
    broker: CountingBroker,
) -> None:
    time = Time()
    live = LiveReads(broker, QUICK, unix_ns=time)
    broker.append("a/low", rows(0, 1))
    broker.append("a/high", rows(7))
    time.ns = written_ns(broker, "a/low", 0) - MS_NS
    mine = follower(live, "a", read_delay={"a/low": "1m"})
    assert drain(mine) == [7]

    time.ns += 60_000 * MS_NS
    assert drain(mine) == [], "one millisecond is missing"
    assert mine._positions()["a/low"] == 0, "a restart would lose the rows"
    time.ns += 2 * MS_NS
    found = drain(mine)
    time.ns += 1000 * MS_NS
    assert found + drain(mine) == [0, 1]


def test_a_row_under_its_delay_holds_the_later_rows_of_its_journal(broker: CountingBroker) -> None:
    time = Time()
    live = LiveReads(broker, QUICK, unix_ns=time)
    for number in range(5):
        broker.append("a/low", rows(number))
    due = [written_ns(broker, "a/low", offset) + 60_000 * MS_NS for offset in range(5)]
    mine = follower(live, "a/low", read_delay="1m")
    beside = follower(live, "a/low", read_delay="1m")
    seen: list[int] = []
    for number, moment in enumerate(due):
        time.ns = moment
        seen += drain(mine)
        assert set(range(number + 1)) <= set(seen)
        assert all(due[each] <= moment for each in seen)
    assert seen == list(range(5))
    assert drain(beside) == seen
    assert list(live.rings().values()) == [2], "followers with one delay share reads"


def test_a_follower_under_a_long_delay_is_not_taken_for_a_stalled_one(
    broker: CountingBroker,
) -> None:
    time, now = Time(), 0
    live = LiveReads(broker, QUICK, now_ms=lambda: now, unix_ns=time)
    broker.append("a/low", rows(*range(3)))
    time.ns = written_ns(broker, "a/low", 0)
    both = [follower(live, "a/low", read_delay="1h") for _ in range(2)]
    for _ in range(5):
        now += 60_000
        assert [drain(each) for each in both] == [[], []]
        assert live.tick() == 0
    time.ns += 2 * 3_600_000 * MS_NS
    assert [drain(each) for each in both] == [[0, 1, 2]] * 2


# Ranges without key columns.
def test_followers_without_key_columns_share_rows_by_their_clocks(broker: CountingBroker) -> None:
    live = LiveReads(broker, QUICK)
    for number in range(64):
        broker.append("a/low", rows(number))
    ranges = tile(4)
    followers = [follower(live, "a/low", key_range=key_range) for key_range in ranges]
    whole = follower(live, "a/low")
    parts = [drain(each) for each in followers]

    assert sorted(x for part in parts for x in part) == list(range(64))
    stored = broker.read("a/low", 0).stored()
    places = rotated_clock(stored[CLOCK].to_numpy())
    for part, key_range in zip(parts, ranges, strict=True):
        assert part == [x for x in range(64) if key_range.contains(int(places[x]))]
    assert drain(whole) == list(range(64))
    assert list(live.rings().values()) == [5], "they share the ring of those that want all rows"
