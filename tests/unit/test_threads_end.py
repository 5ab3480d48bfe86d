"""Threads of what is closed are gone: Python's own and those of libraries, however often.

Libraries keep some for the whole process (Arrow's pools, gRPC's event engine): so many are there
after one session, and not many more after many.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.reads.kit import LONG_S, a_read
from tests.unit.transport.agent_kit import client, make_host
from tests.unit.transport.owner_kit import client_of, place_at

import millrace as mr
from millrace.config import Config
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.reads.api import ReadSession
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.spark.source.stream_session import BatchLimit, StreamSession, StreamStart
from millrace.spark.source.stream_workspace import StreamWorkspace
from millrace.transport.agent.agent_endpoint import Endpoint
from millrace.transport.agent.agent_process import Agent, run
from millrace.transport.agent.host_folder import Hosting
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.members.flight_members import in_process
from millrace.transport.owner.journal_owner import Owner
from millrace.wakeup import WakeUp, WorkerThread
from millrace.workspace import runtime_of

SCHEMA = pa.schema([("doc", pa.string())])
ROWS = pa.record_batch([pa.array([f'{{"user": {number}}}' for number in range(9)])], schema=SCHEMA)
POOLED_MAX = 6
"""By how many threads the pools of libraries may grow after the first session."""
Round = Callable[[int], None]


def own() -> Counter[str]:
    """Python's threads by name, also those that it takes Flight's for; without those that ended."""
    return Counter(
        thread.name
        for thread in threading.enumerate()
        if not (isinstance(thread, WorkerThread) and thread.ended.is_set())
    )


def native() -> Counter[str]:
    """All threads of the process, by name."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found[Path(f"/proc/self/task/{number}/comm").read_text().strip()] += 1
    return found


def used(session: ReadSession) -> None:
    with session:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None
        read = [session.read(member, checkpoint).num_rows for member in range(session.members)]
        assert sum(read) == 9
        session.commit(checkpoint)


@contextmanager
def workspace(folder: Path) -> Iterator[mr.Workspace]:
    with mr.open(str(folder)) as ws:
        ws.journals.create("t/a", SCHEMA)
        ws.journals.append("t/a", ROWS)
        yield ws


def by_user(number: int) -> mr.CoordinatedRead:
    """A key inside JSON documents, which DuckDB takes out."""
    return a_read(f"k{number}", key="/user")


@contextmanager
def sessions(folder: Path) -> Iterator[Round]:
    with workspace(folder) as ws:
        yield lambda number: used(ws.reads(by_user(number), members=3))


@contextmanager
def restarting_sessions(folder: Path) -> Iterator[Round]:
    with workspace(folder) as ws:
        yield lambda number: used(ws.reads(by_user(number), members=2, restart=True))


@contextmanager
def sessions_over_flight(folder: Path) -> Iterator[Round]:
    config = Config()
    with workspace(folder) as ws:
        make = in_process(runtime_of(ws).joined_broker(), config)
        place = SessionWorkspace(
            runtime_of(ws).joined_broker(), str(folder / "queues"), config, make
        )
        opening = SessionOptions(members=3, holder="test")
        yield lambda number: used(ReadSession(place, a_read(f"k{number}", key="doc"), opening))


@contextmanager
def streams(folder: Path) -> Iterator[Round]:
    with workspace(folder) as ws:
        runtime = runtime_of(ws)
        place = StreamWorkspace(
            runtime.store,
            runtime.token,
            "127.0.0.1",
            runtime.joined_broker(),
            ws.config,
        )

        def one(number: int) -> None:
            start = StreamStart(done=0, begun=0)
            stream = StreamSession(place, by_user(number), SCHEMA, members=2, start=start)
            assert stream.advance(0, BatchLimit(rows=100)) == 1
            stream.close()

        yield one


@contextmanager
def followers(folder: Path) -> Iterator[Round]:
    owner = Owner.open(place_at(folder))
    try:
        owner.broker.create("t/a", SCHEMA)
        owner.broker.append("t/a", ROWS)

        def one(_number: int) -> None:
            with contextlib.closing(client_of(owner)) as client:
                found = [each.rows().num_rows for each in client.follow("t", to_offset="end")]
                assert found == [9]

        yield one
    finally:
        owner.close()


@contextmanager
def followers_in_the_process(folder: Path) -> Iterator[Round]:
    with workspace(folder) as ws:

        def one(_number: int) -> None:
            assert [each.rows().num_rows for each in ws.journals.follow("t", to_offset="end")] == [
                9
            ]

        yield one


@contextmanager
def brokers(folder: Path) -> Iterator[Round]:
    def one(number: int) -> None:
        with contextlib.closing(EmbeddedBroker.open(str(folder), Config())) as broker:
            broker.create(f"t/{number}", SCHEMA)
            broker.append(f"t/{number}", ROWS)

    yield one


@contextmanager
def owners(folder: Path) -> Iterator[Round]:
    def one(number: int) -> None:
        owner = Owner.open(place_at(folder))
        with contextlib.closing(client_of(owner)) as client:
            client.create(f"t/{number}", SCHEMA)
        owner.close()

    yield one


@contextmanager
def workspaces(folder: Path) -> Iterator[Round]:
    def one(number: int) -> None:
        with workspace(folder / str(number)) as ws:
            used(ws.reads(by_user(number), members=2))

    folder.mkdir(exist_ok=True)
    yield one


@contextmanager
def agents(folder: Path) -> Iterator[Round]:
    host = make_host(folder)

    def one(_number: int) -> None:
        stop = WakeUp()
        place = Agent(
            folder=host.store.root,
            hosting=Hosting.one(host.store.root),
            host="127.0.0.1",
            port=0,
            config=Config(),
            lease_ms=None,
        )

        def ask(said: Endpoint) -> None:
            with contextlib.closing(client(said.address)) as asking, KeepAlive(asking) as keeping:
                keeping.add(host.folder)
                assert asking.renew(host.folder)
            stop.stop()

        run(place, stop, started=ask)

    yield one


KINDS = [
    agents,
    sessions,
    restarting_sessions,
    sessions_over_flight,
    streams,
    followers,
    followers_in_the_process,
    brokers,
    owners,
    workspaces,
]


def settled(most: int) -> Counter[str]:
    """Native threads, once they are this few: one that has ended takes a moment to be gone."""
    until = time.monotonic() + LONG_S
    while (found := native()).total() > most and time.monotonic() < until:
        time.sleep(0.01)
    return found


def own_settled() -> Counter[str]:
    """Threads of ours. That of a connection ends when its server hears of the client's close."""
    until = time.monotonic() + LONG_S
    while "millrace-relay" in (found := own()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def check(kind: Callable[[Path], object], rounds: int, folder: Path) -> tuple[int, int]:
    """How many native threads there were after the first and after the last."""
    before = own()
    with kind(folder / "place") as one:  # type: ignore[attr-defined]
        opened = own()
        one(0)
        assert own_settled() <= opened
        first = native()
        for number in range(1, rounds):
            one(number)
        assert own_settled() <= opened
        most = first.total() + POOLED_MAX
        last = settled(most)
        assert last.total() <= most, last - first
    assert own_settled() <= before
    return first.total(), last.total()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_ten_that_are_closed_leave_as_many_threads_as_one(
    kind: Callable[[Path], object], tmp_path: Path
) -> None:
    check(kind, 10, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_seventy_that_are_closed_leave_as_many_threads_as_one(
    kind: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = check(kind, 70, tmp_path)
    with capsys.disabled():
        print(f"\n{kind.__name__}: {first} native threads after 1, {last} after 70")  # noqa: T201
