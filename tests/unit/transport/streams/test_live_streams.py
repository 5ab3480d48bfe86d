"""Followers in other processes: streams from the owner, cut off, taken over, given up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.proxy import CuttingProxy
from tests.unit.transport.owner_kit import (
    QUICK,
    SCHEMA,
    TOKEN,
    WORKSPACE,
    client_of,
    column,
    place_at,
)

import millrace as mr
from millrace.errors import JournalUnknown, OwnerUnreachable, Retriable, UserError
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.values import Fetched
from millrace.keys.key_ranges import tile
from millrace.reads.live.follow_requests import (
    AskAgain,
    FollowEnded,
    FollowerBeat,
    FollowRequest,
    FollowStarted,
    follow_request,
)
from millrace.reads.live.follower import Following
from millrace.transport.flight.arrow_envelope import encode
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.transport.streams.follow_client import follow
from millrace.transport.streams.follow_messages import (
    decode_message,
    decode_request,
    encode_error,
    encode_message,
    encode_request,
)

LIVE = QUICK.with_options(live_beat_ms=20, live_watch_ms=20)
OWN = """
import sys, threading
import millrace as mr
ws = mr.open(sys.argv[1], create=True)
ws.journals.list()
print("owned", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner.open(place_at(tmp_path / "mill", LIVE))
    made.broker.create("a", SCHEMA)
    yield made
    made.close()


@pytest.fixture
def client(owner: Owner) -> Iterator[JoinedBroker]:
    made = client_of(owner, LIVE)
    yield made
    made.close()


def values(found: Fetched) -> list[int]:
    got: list[int] = found.rows()["x"].to_pylist()
    return got


def wait_until(is_so: Callable[[], bool]) -> None:
    """For what another thread will surely do."""
    for _ in range(6000):
        if is_so():
            return
        threading.Event().wait(0.01)
    pytest.fail("it never came to be")


# What comes over a stream.


def test_a_follower_elsewhere_sees_what_one_here_sees(owner: Owner, client: JoinedBroker) -> None:
    owner.broker.create("b/1", SCHEMA, {"x": "5"})
    owner.broker.append("a", column(*range(100)))
    parts = [
        list(client.follow("a", keys="x", key_range=each, to_offset="end")) for each in tile(3)
    ]

    assert sorted(x for part in parts for each in part for x in values(each)) == list(range(100))
    assert [values(each) for each in client.follow("a", key={"x": 7}, to_offset="end")] == [[7]]
    assert [values(each) for each in client.follow("a", from_offset=3, to_offset=5)] == [[3, 4]]
    (whole,) = client.follow("a", to_offset="end")
    assert (whole.journal, whole.next_offset, whole.end_offset) == ("a", 100, 100)
    assert whole.stored().schema.names[0] == "_mr_offset"
    assert list(client.follow("b", key={"x": 1}, to_offset="end")) == []
    assert owner.server.live.rings() == {}


def test_rows_come_as_they_are_committed(owner: Owner, client: JoinedBroker) -> None:
    found = client.follow("a")
    for number in range(3):
        owner.broker.append("a", column(number))
        assert values(next(found)) == [number]
    owner.broker.create("a/later", SCHEMA)
    owner.broker.append("a/later", column(9))
    later = next(found)
    assert (later.journal, values(later)) == ("a/later", [9])
    found.close()  # type: ignore[attr-defined]


def test_a_follower_ends_when_no_row_comes_for_a_while(client: JoinedBroker, owner: Owner) -> None:
    owner.broker.append("a", column(1))
    assert [values(each) for each in client.follow("a", timeout_s=0.1)] == [[1]]


def test_followers_elsewhere_and_here_share_a_ring(owner: Owner, client: JoinedBroker) -> None:
    streams = [client.follow("a") for _ in range(3)]
    owner.broker.append("a", column(1))
    assert [values(next(each)) for each in streams] == [[1]] * 3

    assert list(owner.server.live.rings().values()) == [3]


def test_errors_arrive_as_what_they_are(owner: Owner, client: JoinedBroker) -> None:
    with pytest.raises(JournalUnknown, match="no journal 'none'"):
        next(client.follow("none", to_offset="end"))
    with pytest.raises(UserError, match="no key column 'y'"):
        next(client.follow("a", key={"y": 1}))
    found = client.follow("a")
    owner.broker.append("a", column(1))
    assert values(next(found)) == [1]
    owner.broker.delete("a")
    with pytest.raises(JournalUnknown, match="'a' was deleted while it was followed"):
        next(found)
    wait_until(lambda: owner.server.live.rings() == {})


# Those that go away.


def test_a_follower_that_goes_away_is_forgotten(owner: Owner, client: JoinedBroker) -> None:
    owner.broker.append("a", column(1))
    found = client.follow("a")
    next(found)
    assert list(owner.server.live.rings().values()) == [1]
    found.close()  # type: ignore[attr-defined]

    wait_until(lambda: owner.server.live.rings() == {})


def test_a_follower_whose_process_was_killed_is_forgotten(owner: Owner) -> None:
    owner.broker.append("a", column(1))
    script = (
        "import sys, threading\n"
        "from millrace.transport.owner.election import join_journals\n"
        "from millrace.transport.owner.owner_endpoint import JournalAddress\n"
        "where = JournalAddress(address=sys.argv[1], token=sys.argv[2], workspace_id=sys.argv[3])\n"
        "for found in join_journals(where).follow('a'):\n"
        "    print('got', flush=True)\n"
    )
    arguments = [owner.endpoint.address, TOKEN, WORKSPACE]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "got\n"
        assert list(owner.server.live.rings().values()) == [1]
        process.kill()

    wait_until(lambda: owner.server.live.rings() == {})


def test_no_more_than_so_many_streams_are_served_at_once(tmp_path: Path) -> None:
    one = LIVE.with_options(live_streams_max=1)
    owner = Owner.open(place_at(tmp_path / "mill", one))
    owner.broker.create("a", SCHEMA)
    owner.broker.append("a", column(1))
    client = client_of(owner, one)
    first = client.follow("a")
    next(first)
    with pytest.raises(Retriable, match="serves 1 followers already"):
        next(client.follow("a"))
    first.close()  # type: ignore[attr-defined]
    wait_until(lambda: owner.server.live.rings() == {})
    assert values(next(client.follow("a"))) == [1]
    client.close()
    owner.close()


# Cuts and takeovers.


def test_a_stream_that_lasted_long_enough_is_followed_by_the_next(tmp_path: Path) -> None:
    short = LIVE.with_options(live_stream_ms_max=1, live_beat_ms=1)
    owner = Owner.open(place_at(tmp_path / "mill", short))
    owner.broker.create("a", SCHEMA)
    client = client_of(owner, short)
    found = client.follow("a", to_offset=40)
    got = []
    for number in range(40):
        owner.broker.append("a", column(number))
        got += values(next(found))

    assert got == list(range(40))
    assert list(found) == []
    client.close()
    owner.close()


def test_a_stream_cut_at_any_byte_doubles_and_loses_nothing(
    owner: Owner, proxy: Callable[[str, list[int | None]], CuttingProxy]
) -> None:
    for begin in range(0, 60, 5):
        owner.broker.append("a", column(*range(begin, begin + 5)))
    small = LIVE.with_options(owner_retries_max=60)
    between = proxy(owner.endpoint.address, [*range(50, 5000, 180), None])
    where = JournalAddress(address=between.address, token=TOKEN, workspace_id=WORKSPACE)
    client = join_journals(where, small, sleep=lambda _: None)
    got = [x for found in client.follow("a", to_offset="end") for x in values(found)]

    assert got == list(range(60))
    client.close()


def test_an_owner_that_keeps_breaking_off_is_given_up_on(
    owner: Owner, proxy: Callable[[str, list[int | None]], CuttingProxy]
) -> None:
    owner.broker.append("a", column(1))
    impatient = LIVE.with_options(owner_retries_max=2)
    between = proxy(owner.endpoint.address, [700] * 100)
    where = JournalAddress(address=between.address, token=TOKEN, workspace_id=WORKSPACE)
    client = join_journals(where, impatient, sleep=lambda _: None)
    with pytest.raises(OwnerUnreachable, match="does not answer|breaks off"):
        list(client.follow("a"))
    client.close()


def test_who_follows_goes_on_with_the_next_owner_when_one_ends(tmp_path: Path) -> None:
    first, second, third = (mr.open(tmp_path, create=True, config=LIVE) for _ in range(3))
    first.journals.create("a", SCHEMA)
    first.journals.append("a", column(1))
    streams = [first.journals.follow("a"), second.journals.follow("a"), third.journals.follow("a")]
    assert [values(next(each)) for each in streams] == [[1]] * 3
    streams.pop(0).close()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(next, each) for each in streams]
        first.close()
        assert third.journals.end_offset("a") == 1  # of whoever is the next owner
        third.journals.append("a", column(2))

        assert [values(each.result(60)) for each in answers] == [[2]] * 2
    for ws in (second, third):
        ws.close()


def test_who_follows_a_killed_owner_takes_over_without_a_gap_or_a_double(tmp_path: Path) -> None:
    with mr.open(tmp_path, create=True, config=LIVE) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", column(*range(10)))
    with subprocess.Popen(
        [sys.executable, "-c", OWN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owned\n"
        ws = mr.open(tmp_path, create=True, config=LIVE)
        found = ws.journals.follow("a", from_offset=4)
        assert values(next(found)) == list(range(4, 10))
        other = mr.open(tmp_path, create=True, config=LIVE)
        other.journals.append("a", column(10, 11))
        assert values(next(found)) == [10, 11]
        other.journals.append("a", column(12))
        os.kill(process.pid, signal.SIGKILL)
    assert other.journals.end_offset("a") == 13  # of whoever is the next owner
    other.journals.append("a", column(13))

    got: list[int] = []
    while len(got) < 2:
        got += values(next(found))
    assert got == [12, 13]
    found.close()  # type: ignore[attr-defined]
    other.close()
    ws.close()


def test_an_owner_that_is_stopped_ends_a_follower_that_waits_for_rows(tmp_path: Path) -> None:
    with mr.open(tmp_path) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", column(1))
    with subprocess.Popen(
        [sys.executable, "-c", OWN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owned\n"
        ws = mr.open(tmp_path, config=LIVE.with_options(gone_after=2, owner_ping_ms_max=500))
        found = ws.journals.follow("a")
        assert values(next(found)) == [1]
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(OwnerUnreachable, match="does not answer"):
            next(found)
        process.kill()
    ws.close()


def test_a_closed_workspace_ends_its_followers(tmp_path: Path) -> None:
    ws = mr.open(tmp_path, create=True, config=LIVE)
    ws.journals.create("a", SCHEMA)
    ws.journals.append("a", column(1))
    found = ws.journals.follow("a")
    next(found)
    ws.close()
    with pytest.raises(mr.errors.MillraceError, match="closed"):
        next(found)


def test_one_elsewhere_that_takes_nothing_hears_of_it_after_what_was_on_its_way(
    owner: Owner, client: JoinedBroker
) -> None:
    live, now = owner.server.live, 0
    live.now_ms = lambda: now
    wide = pa.schema([("v", pa.binary())])
    owner.broker.create("wide", wide)
    batch = pa.record_batch([pa.array([b"x" * 1_000_000] * 8)], schema=wide)
    slow, quick = client.follow("wide"), Following(live, follow_request("wide"))
    owner.broker.append("wide", batch)
    first = next(slow)
    dropped = 0
    while not dropped:
        # The connection takes only so much; then rows wait in the owner.
        owner.broker.append("wide", batch)
        while quick.next(0) is not None:
            pass
        now += 120_000
        dropped = live.tick()
    there = owner.broker.end_offset("wide")

    got = [first]
    with pytest.raises(Retriable, match=r"journal 'wide' was dropped\n  keys .* for \d+ s"):
        got.extend(slow)
    assert sum(found.num_rows for found in got) < there
    quick.close()
    wait_until(lambda: live.rings() == {})


class Played:
    """A caller whose streams are given: messages, and what breaks them off."""

    def __init__(self, *streams: list[object]) -> None:
        self.config = LIVE.with_options(owner_retries_max=2)
        self.streams = list(streams)
        self.asked: list[FollowRequest] = []
        self.waited: list[int] = []

    def follow(self, asked: FollowRequest) -> tuple[object, FollowStarted, Iterator[object]]:
        self.asked.append(asked)
        first, *rest = self.streams.pop(0)
        assert isinstance(first, FollowStarted)

        def told() -> Iterator[object]:
            for each in rest:
                if isinstance(each, Exception):
                    raise each
                yield each

        return object(), first, told()

    def drop(self, link: object) -> None:
        pass

    def back_off(self, cuts: int) -> None:
        self.waited.append(cuts)


CUT = CallCut("broken", may_be_done=False)


def fetched(journal: str, next_offset: int) -> Fetched:
    return Fetched(
        journal=journal,
        id=JournalId(1),
        schema=SCHEMA,
        batches=(),
        next_offset=Offset(next_offset),
        end_offset=Offset(next_offset),
    )


def test_every_stream_begins_where_the_last_one_was() -> None:
    caller = Played(
        [FollowStarted(at={"a": 5, "b": 0}, ends=None), fetched("b", 3), CUT],
        [FollowStarted(at={"a": 5, "b": 3}, ends=None), FollowerBeat({"a": 9}), AskAgain()],
        [FollowStarted(at={"a": 9, "b": 3}, ends=None), fetched("a", 10), FollowEnded()],
    )
    found = [each.next_offset for each in follow(caller, follow_request("", from_offset="end"))]  # type: ignore[arg-type]

    assert found == [3, 10]
    assert [asked.others for asked in caller.asked] == ["end", "start", "start"]
    assert [asked.begins for asked in caller.asked] == [{}, {"a": 5, "b": 3}, {"a": 9, "b": 3}]
    assert caller.waited == [1]


def test_where_a_replay_ends_is_decided_once() -> None:
    caller = Played(
        [FollowStarted(at={"a": 0}, ends={"a": 7}), CUT],
        [FollowStarted(at={"a": 0}, ends={"a": 7}), FollowEnded()],
    )
    assert list(follow(caller, follow_request("a", to_offset="end"))) == []  # type: ignore[arg-type]
    assert [(asked.until_end, asked.ends) for asked in caller.asked] == [
        (True, None),
        (False, {"a": 7}),
    ]


def test_cuts_without_a_row_between_them_are_counted() -> None:
    opened = FollowStarted(at={"a": 4}, ends=None)
    caller = Played([opened, CUT], [opened, fetched("a", 6), CUT], [opened, CUT], [opened, CUT])
    with pytest.raises(OwnerUnreachable, match="found, 3 times: broken\n(.*\n)*  {'a': 4}"):
        list(follow(caller, follow_request("a")))  # type: ignore[arg-type]
    assert caller.waited == [1, 1, 2]


def test_who_comes_back_too_late_is_told_so_even_when_the_stream_is_gone() -> None:
    now = 0.0
    caller = Played([FollowStarted(at={"a": 4}, ends=None), fetched("a", 6), CUT])
    found = follow(caller, follow_request("a"), now=lambda: now)  # type: ignore[arg-type]
    next(found)
    now = 120.0
    with pytest.raises(Retriable, match="'a' was dropped\n.* it took no rows for 120 s"):
        next(found)


# What is no stream.


def test_nobody_follows_without_the_token(owner: Owner) -> None:
    with fl.FlightClient(owner.endpoint.address) as connection:
        ticket = fl.Ticket(encode_request(follow_request("a")))
        for headers in ([], [(b"authorization", b"Bearer wrong")]):
            options = fl.FlightCallOptions(timeout=20, headers=headers)
            with pytest.raises(fl.FlightUnauthenticatedError):
                connection.do_get(ticket, options).read_chunk()


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"x" * 50,
        encode({}),
        encode({"prefix": 5}),
        encode({"prefix": "a", "range": {"begin": 5, "end": 4}}),
        encode({"prefix": "a", "range": {"begin": 0, "end": 2**32}}),
        encode({"prefix": "a", "others": "middle"}),
        encode({"prefix": "a", "begins": {"a": "b"}}),
        encode({"prefix": "a", "key": 3}),
        encode({"prefix": "a", "keys": ["x"], "key": pa.record_batch({"y": [1]})}),
    ],
)
def test_what_is_no_ticket_is_refused(owner: Owner, ticket: bytes) -> None:
    with fl.FlightClient(owner.endpoint.address) as connection:
        headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
        stream = connection.do_get(
            fl.Ticket(ticket), fl.FlightCallOptions(timeout=20, headers=headers)
        )
        with pytest.raises(UserError):
            decode_message(stream.read_chunk().data)


def test_what_is_asked_and_told_comes_back_as_it_was() -> None:
    asked = follow_request(
        "a/b", key={"k": "é", "x": None, "n": 3}, from_offset={"a/b": 4}, version="v1"
    )
    read = decode_request(pa.py_buffer(encode_request(asked)))
    assert read == asked
    assert decode_request(
        pa.py_buffer(encode_request(follow_request("", to_offset="end")))
    ).until_end
    for message in (
        FollowStarted(at={"a": 1}, ends=None),
        FollowStarted(at={}, ends={"a": 2}),
        FollowerBeat({"a": 5}),
        AskAgain(),
        FollowEnded(),
    ):
        assert decode_message(encode_message(message)) == message
    with pytest.raises(JournalUnknown, match="gone"):
        decode_message(encode_error(JournalUnknown("gone")))
