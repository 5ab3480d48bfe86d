"""Followers of journals in one process: what they see, what is read for them, what ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.journal.journal_kit import SCHEMA as JOURNAL_SCHEMA
from tests.unit.journal.journal_kit import stamped
from tests.unit.reads.live.live_kit import (
    QUICK,
    SCHEMA,
    CountingBroker,
    drain,
    follower,
    numbers,
    rows,
)

from millrace.errors import JournalUnknown, OffsetOutOfRange, Retriable, UnsupportedType, UserError
from millrace.journal.core.row_format import Flag
from millrace.journal.core.values import Fetched
from millrace.keys.key_ranges import WHOLE, tile, unsigned
from millrace.keys.spark_hash import hash32
from millrace.reads.live.follow_requests import FollowEnded, FollowStarted, follow_request
from millrace.reads.live.follower import messages
from millrace.reads.live.live_reads import LiveClosed, LiveReads


@pytest.fixture
def broker() -> Iterator[CountingBroker]:
    made = CountingBroker()
    made.create("a/1", SCHEMA)
    yield made
    made.close()


@pytest.fixture
def live(broker: CountingBroker) -> LiveReads:
    return LiveReads(broker, QUICK)


# Sharing.


def test_ten_followers_cost_one_read_of_each_append(
    broker: CountingBroker, live: LiveReads
) -> None:
    followers = [follower(live, "a/1", keys="k", key_range=each) for each in tile(10)]
    seen: list[int] = []
    for each in followers:
        assert drain(each) == []
    before = broker.reads["a/1"]
    for begin in range(0, 50, 10):
        broker.append("a/1", rows(*range(begin, begin + 10)))
        for each in followers:
            seen += drain(each)

    assert sorted(seen) == list(range(50))
    assert broker.reads["a/1"] - before == 5
    assert list(live.rings().values()) == [10]


def test_who_has_other_key_columns_or_another_version_reads_in_another_ring(
    live: LiveReads,
) -> None:
    half = tile(2)[0]
    same = [follower(live, "a/1", keys="k", key_range=half) for _ in range(2)]
    follower(live, "a/1", keys=["x"], key_range=half)
    follower(live, "a/1", keys="k", key_range=half, version="2")
    whole = [follower(live, "a/1", keys="x"), follower(live, "a/1")]
    follower(live, "a/1", to_offset=0)

    assert sorted(live.rings().values()) == [1, 1, 1, 2, 2]
    for each in [*same, *whole]:
        each.close()
    assert sorted(live.rings().values()) == [1, 1, 1]


def test_followers_in_threads_beside_a_writer_see_every_row_once(
    broker: CountingBroker, live: LiveReads
) -> None:
    count, last = 6, 400
    started = threading.Barrier(count + 1)

    def watch(number: int) -> list[int]:
        mine = follower(live, "a", keys="x", key_range=tile(count)[number])
        started.wait(60)
        found: list[int] = []
        while mine._positions()["a/1"] < last:
            found += numbers(mine.next(0.05))
        mine.close()
        return found

    def write() -> None:
        started.wait(60)
        for begin in range(0, last, 8):
            broker.append("a/1", rows(*range(begin, begin + 8)))

    with ThreadPoolExecutor(count + 1) as pool:
        writing = pool.submit(write)
        parts = list(pool.map(watch, range(count)))
        writing.result()

    assert sorted(x for part in parts for x in part) == list(range(last))
    for part in parts:
        assert part == sorted(part)
    assert live.rings() == {}


def test_a_late_follower_catches_up_and_then_shares(
    broker: CountingBroker, live: LiveReads
) -> None:
    first = follower(live, "a/1")
    broker.append("a/1", rows(*range(5)))
    assert drain(first) == list(range(5))
    second = follower(live, "a/1", from_offset=2)
    broker.append("a/1", rows(5, 6))
    assert drain(second) == [2, 3, 4, 5, 6]
    before = broker.reads["a/1"]
    broker.append("a/1", rows(7))

    assert (numbers(first.next(10)), drain(first)) == ([5, 6], [7])
    assert drain(second) == [7]
    assert broker.reads["a/1"] == before + 1


# Slow ones, and those that leave.


def test_a_slow_follower_is_dropped_after_two_minutes_and_frees_what_it_held(
    broker: CountingBroker,
) -> None:
    now = 0
    live = LiveReads(broker, QUICK, now_ms=lambda: now)
    slow, quick = follower(live, "a/1"), follower(live, "a/1")
    broker.append("a/1", rows(1, 2, 3))
    assert drain(quick) == [1, 2, 3]
    now = 119_999
    assert live.tick() == 0
    now = 120_000
    assert live.tick() == 1
    (running,) = live._rings.values()
    assert [len(channel) for channel in running.channels.values()] == [0, 0]

    with pytest.raises(Retriable, match=r"journal 'a/1' was dropped\n  keys .* 3 rows for 120 s"):
        slow.next(0)
    broker.append("a/1", rows(4))
    now = 10_000_000
    assert live.tick() == 0
    assert numbers(quick.next(10)) == [4]
    slow.close()
    quick.close()
    assert live.rings() == {}


def test_others_go_on_without_one_that_has_no_room(broker: CountingBroker) -> None:
    small = QUICK.with_options(
        live_read_rows_max=2, live_channel_rows_max=4, live_hold_ms_max=5, live_backoff_ms=1
    )
    live = LiveReads(broker, small)
    slow, quick = follower(live, "a/1"), follower(live, "a/1")
    broker.append("a/1", rows(*range(100)))

    assert drain(quick) == list(range(100))
    (running,) = live._rings.values()
    held = [sum(size.rows for _, size in channel) for channel in running.channels.values()]
    assert held == [4, 0]
    assert drain(slow) == list(range(100))


def test_what_waits_for_a_follower_of_many_journals_is_bounded_over_all_of_them(
    broker: CountingBroker,
) -> None:
    small = QUICK.with_options(
        live_channel_bytes_max=3000, live_read_bytes_max=1000, live_hold_ms_max=1
    )
    live = LiveReads(broker, small)
    slow, quick = follower(live, "a"), follower(live, "a")
    for number in range(2, 22):
        broker.create(f"a/{number}", SCHEMA)
    for number in range(1, 22):
        broker.append(f"a/{number}", rows(*range(100)))
    found: list[int] = []
    while len(found) < 2100:
        found += numbers(quick.next(10))

    waiting = slow._channel.bytes()
    assert 0 < waiting <= 3000 + 1000
    assert sorted(found) == sorted(list(range(100)) * 21)
    found = []
    while len(found) < 2100:
        found += numbers(slow.next(10))
    assert sorted(found) == sorted(list(range(100)) * 21)
    assert slow._channel.bytes() == 0


def test_rows_taken_from_one_journal_are_progress_in_all(broker: CountingBroker) -> None:
    now = 0
    live = LiveReads(broker, QUICK, now_ms=lambda: now)
    broker.create("a/2", SCHEMA)
    slow, quick = follower(live, "a"), follower(live, "a")
    for name in ("a/1", "a/2"):
        broker.append(name, rows(1))
    drain(quick)
    now = 119_000
    assert numbers(slow.next(0)) == [1]
    now = 238_000
    assert live.tick() == 0
    now = 239_000
    assert live.tick() == 1


def test_a_journal_that_nobody_follows_any_more_is_not_read(
    broker: CountingBroker, live: LiveReads
) -> None:
    some = [follower(live, "a") for _ in range(3)]
    broker.append("a/1", rows(1))
    for each in some:
        assert drain(each) == [1]
        each.close()
        each.close()
    before = broker.reads["a/1"]
    broker.append("a/1", rows(2))
    live.tick()

    assert live.rings() == {}
    assert broker.reads["a/1"] == before


def test_an_interrupted_reader_leaves_the_read_to_the_others(
    broker: CountingBroker, live: LiveReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = follower(live, "a/1"), follower(live, "a/1")
    broker.append("a/1", rows(1))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broker, "read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            first.next(0)
    assert numbers(second.next(10)) == [1]
    assert numbers(first.next(10)) == [1]


def test_an_ending_owner_ends_those_who_wait(broker: CountingBroker, live: LiveReads) -> None:
    waiting = follower(live, "a/1")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(waiting.next, 600)
        live.close()
        broker.close()
        with pytest.raises(LiveClosed):
            answer.result(60)
    with pytest.raises(LiveClosed):
        follower(live, "a/1")


# What is followed.


def test_only_committed_rows_are_shown_and_in_order(
    broker: CountingBroker, live: LiveReads
) -> None:
    broker.create("t", JOURNAL_SCHEMA)
    mine, half = follower(live, "t"), follower(live, "t", keys="x", key_range=tile(2)[0])
    broker.append_stamped("t", stamped((1, 7, 16, Flag.CONTINUE)))
    broker.append_stamped("t", stamped((2, 8, 16, Flag.OUTSIDE)))
    assert drain(mine) == []
    broker.append_stamped("t", stamped((0, 7, 16, Flag.ACK)))
    broker.append_stamped("t", stamped((3, 7, 32, Flag.CONTINUE), (0, 7, 0, Flag.ACK)))
    broker.append_stamped("t", stamped((4, 7, 48, Flag.OUTSIDE)))

    assert drain(mine) == [1, 2, 4]
    assert set(drain(half)) < {1, 2, 4}


def test_journals_that_are_made_later_are_followed_from_their_start(
    broker: CountingBroker, live: LiveReads
) -> None:
    broker.append("a/1", rows(1))
    mine = follower(live, "a", from_offset="end")
    other = follower(live, "later")
    broker.create("a/2", SCHEMA)
    broker.create("a-not", SCHEMA)
    broker.append("a/2", rows(2, 3))
    broker.append("a-not", rows(4))
    broker.create("later", SCHEMA)
    broker.append("later", rows(5))

    found = mine.next(10)
    assert found is not None
    assert (found.journal, numbers(found)) == ("a/2", [2, 3])
    assert numbers(other.next(10)) == [5]
    assert drain(mine) == []


def test_a_replay_reads_its_range_and_ends(broker: CountingBroker, live: LiveReads) -> None:
    broker.append("a/1", rows(*range(10)))
    told = list(messages(live, follow_request("a/1", from_offset=2, to_offset=6)))
    to_end = list(messages(live, follow_request("a", to_offset="end", key={"k": "k1"})))

    assert told[0] == FollowStarted(at={"a/1": 2}, ends={"a/1": 6})
    assert [numbers(each) for each in told if isinstance(each, Fetched)] == [[2, 3, 4, 5]]
    assert told[-1] == to_end[-1] == FollowEnded()
    assert [numbers(each) for each in to_end if isinstance(each, Fetched)] == [[1, 4, 7]]
    assert live.rings() == {}


def test_a_replay_waits_for_an_end_that_is_yet_to_come(
    broker: CountingBroker, live: LiveReads
) -> None:
    mine = follower(live, "a/1", to_offset=3)
    broker.append("a/1", rows(0, 1))
    assert drain(mine) == [0, 1]
    assert not mine.is_done
    broker.append("a/1", rows(2, 3))

    assert numbers(mine.next(10)) == [2]
    assert mine.next(10) is None
    assert mine.is_done


# Keys.


def test_other_keys_with_the_same_hash_are_left_out(
    broker: CountingBroker, live: LiveReads
) -> None:
    drawn = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 400_000)
    many = pa.table({"x": drawn})
    places = unsigned(hash32(many, "x"))
    _, first, counts = np.unique(places, return_index=True, return_counts=True)
    one = int(first[counts > 1][0])
    twins = drawn[places == places[one]].tolist()
    assert len(twins) >= 2
    broker.append("a/1", rows(*twins, 5))

    assert drain(follower(live, "a/1", key={"x": twins[1]})) == [twins[1]]


def test_a_key_may_be_null_or_a_text_that_stands_for_a_value(
    broker: CountingBroker, live: LiveReads
) -> None:
    values = pa.record_batch([pa.array(["a", None, "a"]), pa.array([1, 2, None])], schema=SCHEMA)
    broker.append("a/1", values)

    assert drain(follower(live, "a/1", key={"k": None})) == [2]
    assert drain(follower(live, "a/1", key={"x": "1"})) == [1]
    assert drain(follower(live, "a/1", key={"x": 1, "k": "a"})) == [1]
    assert drain(follower(live, "a/1", key={"x": None, "k": "a"})) == [None]
    assert drain(follower(live, "a/1", key={"x": 7})) == []


def test_the_same_key_is_found_whatever_type_each_journal_gives_it(
    broker: CountingBroker, live: LiveReads
) -> None:
    kinds = [pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.decimal128(20, 2), pa.binary()]
    for number, kind in enumerate(kinds):
        schema = pa.schema([("k", kind), ("x", pa.int64())])
        broker.create(f"kinds/{number}", schema)
        keys = pa.array(["5", "6"]).cast(kind)
        batch = pa.record_batch([keys, pa.array([number, -1])], schema=schema)
        broker.append(f"kinds/{number}", batch)

    assert sorted(drain(follower(live, "kinds", key={"k": "5"}))) == list(range(6))


def test_journals_that_cannot_hold_the_key_are_not_read(
    broker: CountingBroker, live: LiveReads
) -> None:
    typed = pa.schema([("day", pa.date32()), ("x", pa.int64())])
    for number, label in enumerate(["2024-05-01", "2024-05-02", "someday", None]):
        name = f"days/{number}"
        broker.create(name, typed, {} if label is None else {"day": label})
        days = pa.array(["2024-05-01" if label in (None, "someday") else label]).cast(pa.date32())
        broker.append(name, pa.record_batch([days, pa.array([number])], schema=typed))
    broker.create("days/later", typed, {"day": "2024-05-03"})

    mine = follower(live, "days", key={"day": "2024-05-01"})
    assert sorted(drain(mine)) == [0, 2, 3]
    assert set(broker.reads) == {"days/0", "days/2", "days/3"}
    pieces = [follower(live, "days", keys="day", key_range=each) for each in tile(8)]
    assert sorted(x for each in pieces for x in drain(each)) == [0, 1, 2, 3]


# What cannot be followed.


@pytest.mark.parametrize(
    ("which", "kind", "words"),
    [
        ({"key": {"z": 1}}, UserError, "no key column 'z'"),
        ({"key": {"x": "one"}}, UserError, "key x='one' is no value of journal 'a/1'"),
        ({"key": {}}, UserError, "empty key"),
        ({"key": {"x": object()}}, UserError, "has no Arrow type"),
        ({"key": {"x": 1}, "keys": "x"}, UserError, "a key and a range"),
        ({"priority": {"a": 2**40}}, UserError, "priority 1099511627776 of 'a' is none"),
        ({"read_delay": "soon"}, UserError, "read_delay is not a time"),
        ({"from_offset": 4}, OffsetOutOfRange, "offset 4 of journal 'a/1' is not there yet"),
        ({"from_offset": 0}, OffsetOutOfRange, "offset 0 of journal 'a/1' was truncated"),
        ({"from_offset": "middle"}, UserError, "from_offset is 'middle'"),
    ],
)
def test_what_cannot_be_followed_is_refused_at_once(
    broker: CountingBroker, live: LiveReads, which: dict[str, object], kind: type, words: str
) -> None:
    broker.append("a/1", rows(0, 1, 2))
    broker.truncate_before("a/1", 1)
    with pytest.raises(kind, match=words):
        follower(live, "a/1", **which)
    assert live.rings() == {}


def test_an_offset_is_for_one_journal(broker: CountingBroker, live: LiveReads) -> None:
    broker.create("a/2", SCHEMA)
    broker.append("a/2", rows(1, 2))
    with pytest.raises(UserError, match="'a', which is no journal\n  found below it: a/1, a/2"):
        follower(live, "a", from_offset=0)
    one = follower(live, "a/1", from_offset=0)
    broker.create("a/1/below", SCHEMA)
    broker.append("a/1/below", rows(9))
    broker.append("a/1", rows(3))
    found: list[int] = []
    while not found:
        found += numbers(one.next(0.02))
    assert (found, drain(one)) == ([3], [])
    assert drain(follower(live, "a/1", to_offset=1)) == [3]
    assert sorted(drain(follower(live, "a", from_offset={"a/2": 1}))) == [2, 3, 9]
    with pytest.raises(JournalUnknown, match="no journal 'b'"):
        follower(live, "b", to_offset=1)


def test_a_key_of_a_type_that_cannot_be_hashed_is_refused(
    broker: CountingBroker, live: LiveReads
) -> None:
    broker.create("odd", pa.schema([("k", pa.list_(pa.int64()))]))
    with pytest.raises(UnsupportedType, match="column 'k' cannot be a key"):
        follower(live, "odd", key={"k": "1"})
    assert follower(live, "odd", key_range=WHOLE).next(0) is None


# Journals that go.


def test_a_journal_deleted_below_its_followers_is_an_error_that_says_so(
    broker: CountingBroker, live: LiveReads
) -> None:
    broker.append("a/1", rows(1, 2))
    mine, other = follower(live, "a"), follower(live, "a/1")
    assert drain(mine) == [1, 2]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(mine.next, 600)
        broker.delete("a/1")
        with pytest.raises(JournalUnknown, match="'a/1' was deleted while .*\n.* offset: 2"):
            answer.result(60)
    with pytest.raises(JournalUnknown, match="'a/1' was deleted while it was followed"):
        drain(other)


def test_a_journal_made_again_is_another_one(broker: CountingBroker, live: LiveReads) -> None:
    broker.append("a/1", rows(1, 2))
    mine = follower(live, "a/1", from_offset=1)
    broker.delete("a/1")
    broker.create("a/1", SCHEMA)
    broker.append("a/1", rows(10, 11, 12))

    with pytest.raises(JournalUnknown, match="was deleted while it was followed"):
        drain(mine)
    assert drain(follower(live, "a/1")) == [10, 11, 12]


def test_truncation_below_a_follower_is_an_error_that_says_so(
    broker: CountingBroker, live: LiveReads
) -> None:
    broker.append("a/1", rows(*range(10)))
    behind, ahead = follower(live, "a/1"), follower(live, "a/1", from_offset=5)
    broker.truncate_before("a/1", 5)

    with pytest.raises(OffsetOutOfRange, match="offset 0 of journal 'a/1' was truncated"):
        behind.next(0)
    assert drain(ahead) == [5, 6, 7, 8, 9]
