"""Things with threads that are opened, used and closed, often while another thread uses them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pytest
from tests.delays import together
from tests.unit.pipeline.worker import worker_kit
from tests.unit.reads.kit import LONG_S, SCHEMA, a_read, reading
from tests.unit.transport.owner_kit import QUICK, client_of, place_at

import millrace as mr
from millrace.config import Config
from millrace.errors import BrokerStopped, MillraceError, OwnerUnreachable, ReadsFailed
from millrace.ids import FolderId, QueryId
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.calling.call_thread import CallThread
from millrace.pipeline.worker.lease_keeper import Keeper
from millrace.pipeline.worker.read_ahead import ReadAhead
from millrace.reads.api import ReadSession
from millrace.reads.live.follow_requests import follow_request
from millrace.reads.live.follower import messages
from millrace.reads.live.live_reads import LiveClosed, LiveReads
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.reads.thread_members import as_threads
from millrace.shuffle import runs
from millrace.spark.source.stream_session import StreamSession, StreamStart
from millrace.spark.source.stream_workspace import StreamWorkspace
from millrace.storage.local import LocalStore
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.members.flight_members import in_process
from millrace.transport.owner.journal_owner import Owner
from millrace.wakeup import WakeUp
from millrace.workspace import runtime_of

Scenario = Callable[[Path, random.Random], int]
"""Does its work in a folder of its own; how often something was closed."""
TOKEN = "a token of the tests"  # noqa: S105 - of the tests
LIVE = Config().with_options(live_beat_ms=20, live_watch_ms=10)


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(range(count), pa.int64()), pa.array(["x"] * count)], schema=SCHEMA
    )


def fill(broker: Broker, journal: str = "t/a") -> None:
    broker.create(journal, SCHEMA)
    broker.append(journal, rows(20))


def use(session: ReadSession, members: int) -> None:
    """Take a checkpoint, read it and commit it: then slices are at work when it is closed."""
    checkpoint = session.next_checkpoint(LONG_S)
    assert checkpoint is not None
    assert sum(session.read(number, checkpoint).num_rows for number in range(members)) == 20
    session.commit(checkpoint)


def soon(chosen: random.Random) -> None:
    time.sleep(chosen.choice((0.0, 0.001, 0.01)) * chosen.random())


class Closes(Protocol):
    def close(self) -> object: ...


def close_soon(opened: Closes, chosen: random.Random) -> None:
    soon(chosen)
    opened.close()


# Coordinated reads.
def sessions_of_threads(folder: Path, chosen: random.Random) -> int:
    with contextlib.closing(MemoryBroker()) as broker:
        fill(broker)
        for number in range(6):
            members = chosen.randint(1, 3)
            session = reading(broker, folder, a_read(f"k{number}"), members=members)
            if number % 2:
                use(session, members)
            soon(chosen)
            session.close()
    return 6


def a_session_closed_by_another_thread(folder: Path, chosen: random.Random) -> int:
    with contextlib.closing(MemoryBroker()) as broker:
        fill(broker)
        session = reading(broker, folder, a_read(), members=2)
        use(session, 2)

        def wait() -> None:
            with contextlib.suppress(ReadsFailed):
                while True:
                    session.next_checkpoint()

        together(wait, *[partial(close_soon, session, chosen)] * 2)
        assert broker.leases("reads/") == ()
    return 1


def a_restarting_session_closed_by_another_thread(folder: Path, chosen: random.Random) -> int:
    with contextlib.closing(MemoryBroker()) as broker:
        fill(broker)
        config = Config().with_options(reads_restart_wait_ms=1, reads_restart_wait_ms_max=5)
        place = SessionWorkspace(broker, str(folder), config, as_threads(broker, config))
        options = SessionOptions(members=2, holder="test", restart=True)
        session = ReadSession(place, a_read(), options)

        def wait() -> None:
            with pytest.raises(ReadsFailed, match="was closed"):  # noqa: PT012 - at any turn
                while True:
                    session.next_checkpoint()

        def end() -> None:
            soon(chosen)
            if chosen.random() < 0.5:
                broker.fence("reads/tested")  # The session fails, and the next is opened.
                soon(chosen)
            session.close()

        together(wait, end)
        assert broker.leases("reads/") == (), "a session was left open"
    return 1


def sessions_over_flight(folder: Path, chosen: random.Random) -> int:
    with contextlib.closing(MemoryBroker()) as broker:
        fill(broker)
        place = SessionWorkspace(broker, str(folder), Config(), in_process(broker, Config()))
        for number in range(2):
            session = ReadSession(
                place, a_read(f"k{number}"), SessionOptions(members=2, holder="test")
            )
            if number:
                use(session, 2)
            soon(chosen)
            session.close()
    return 2


# Journals.
def live_readers(_folder: Path, chosen: random.Random) -> int:
    with contextlib.closing(MemoryBroker(LIVE)) as broker:
        fill(broker)
        live = LiveReads(broker, LIVE)

        def follow() -> None:
            with contextlib.suppress(LiveClosed):
                for _ in messages(live, follow_request("t")):
                    pass

        def write() -> None:
            for _ in range(5):
                broker.append("t/a", rows(3))
            soon(chosen)
            live.close()

        together(follow, follow, follow, write)
        assert live.rings() == {}
    return 1


def commits_in_groups(folder: Path, chosen: random.Random) -> int:
    broker = EmbeddedBroker.open(str(folder / "journals"), Config())
    fill(broker)
    stop, written = WakeUp(), []

    def write() -> None:
        with contextlib.suppress(BrokerStopped):
            for _ in range(8):
                broker.append("t/a", rows(1))
                written.append(1)

    def watch() -> None:
        version = 0
        with contextlib.suppress(BrokerStopped):
            while not stop.is_stopped:
                version = broker.moved(version, timeout_s=60, stop=stop).version

    def end() -> None:
        together(write, write, write, write)
        if chosen.random() < 0.5:
            broker.close()
        stop.stop()

    together(watch, watch, end)
    broker.close()
    with contextlib.closing(EmbeddedBroker.open(str(folder / "journals"), Config())) as again:
        assert again.end_offset("t/a") == 20 + len(written)
    return 2


def an_owner_and_its_clients(folder: Path, chosen: random.Random) -> int:
    owner = Owner.open(place_at(folder / "w", QUICK.with_options(owner_retries_max=1)))
    config = QUICK.with_options(owner_retries_max=1, owner_interrupt_ms=20)
    clients = [client_of(owner, config) for _ in range(2)]
    fill(clients[0])
    stop = WakeUp()

    def write() -> None:
        with contextlib.suppress(OwnerUnreachable, BrokerStopped):
            for _ in range(5):
                clients[0].append("t/a", rows(1))

    def follow() -> None:
        with contextlib.suppress(OwnerUnreachable, BrokerStopped):
            for _ in clients[1].follow("t", timeout_s=LONG_S):
                pass

    def watch() -> None:
        with contextlib.suppress(OwnerUnreachable, BrokerStopped):
            clients[1].moved(clients[1].moved(0, timeout_s=0).version, timeout_s=600, stop=stop)

    def end() -> None:
        soon(chosen)
        stop.stop()
        owner.close()

    together(write, follow, watch, end)
    for client in clients:
        client.close()
    return 3


def a_workspace(folder: Path, chosen: random.Random) -> int:
    ws = mr.open(str(folder / "w"))
    fill(runtime_of(ws).joined_broker())

    def write() -> None:
        with contextlib.suppress(MillraceError):
            for _ in range(5):
                ws.journals.append("t/a", rows(1))

    session = ws.reads(a_read(), members=2)
    use(session, 2)
    together(write, partial(close_soon, session, chosen))
    together(write, partial(close_soon, ws, chosen))
    ws.close()
    return 2


# Pipelines.
def rows_read_ahead(_folder: Path, chosen: random.Random) -> int:
    config = Config().with_options(job_read_ahead_bytes=64)
    with contextlib.closing(MemoryBroker()) as broker:
        fill(broker)
        for number in range(6):
            ahead = ReadAhead(broker, "t/a", 0, config=config, end=20, piece_rows=1)
            taken = sum(ahead.next() is not None for _ in range(chosen.randint(0, 3) * number))
            assert taken <= 20
            ahead.close()
    return 6


def leases_kept(_folder: Path, chosen: random.Random) -> int:
    config = Config().with_options(job_lease=0.05, job_run_lease=0.05)
    with contextlib.closing(MemoryBroker()) as broker:
        for number in range(6):
            keeper = Keeper(broker, config, "run", 1)
            keeper.hold(broker.acquire(f"unit-{number}", "me"))
            soon(chosen)
            keeper.close()
    return 6


def calls_with_a_limit(_folder: Path, chosen: random.Random) -> int:
    for _ in range(6):
        hands = CallThread()
        assert [hands.call(partial(chosen.randint, 3, 3), LONG_S) for _ in range(3)] == [3, 3, 3]
        hands.close()
    return 6


def runs_that_beat(folder: Path, chosen: random.Random) -> int:
    store, config = LocalStore(str(folder)), Config().with_options(heartbeat_ms=1)
    for number in range(6):
        with runs.beating(store, QueryId(number), config):
            soon(chosen)
    return 6


def workers_of_a_job(folder: Path, chosen: random.Random) -> int:
    """Publishers, readers ahead and keepers of leases, of two workers at once."""
    count = chosen.randint(1, 40)
    step = worker_kit.map_step("f", lambda row: {"x": row["x"] + 1})
    bench = worker_kit.Bench(folder, [worker_kit.hop(step)])
    worker_kit.fill(bench.broker, range(count), partitions=2)
    bench.run(workers=2)
    assert sorted(worker_kit.output(bench.broker, "f")) == list(range(1, count + 1))
    bench.broker.close()
    return 2


def agents_kept_alive(_folder: Path, chosen: random.Random) -> int:
    class Agents:
        config = Config().with_options(agent_lease_ms=3)

        def renew(self, _folder: FolderId) -> None:
            soon(chosen)

    for _ in range(6):
        keep = KeepAlive(Agents())  # type: ignore[arg-type]
        keep.add(FolderId("f"))
        soon(chosen)
        together(partial(keep.add, FolderId("g")), keep.close)
    return 6


def a_stream_closed_while_it_is_asked(folder: Path, chosen: random.Random) -> int:
    with contextlib.closing(MemoryBroker()) as broker:
        fill(broker)
        config = Config().with_options(stream_wait_ms=5)
        store = LocalStore(str(folder))
        place = StreamWorkspace(store, TOKEN, "127.0.0.1", broker, config)  # type: ignore[arg-type]
        stream = StreamSession(
            place, a_read(), SCHEMA, members=2, start=StreamStart(done=0, begun=0)
        )
        stream.take_ahead()

        def ask() -> None:
            with contextlib.suppress(ReadsFailed):
                while True:
                    stream.settled()

        together(ask, partial(close_soon, stream, chosen))
    return 1


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        sessions_of_threads,
        a_session_closed_by_another_thread,
        a_restarting_session_closed_by_another_thread,
        sessions_over_flight,
        live_readers,
        commits_in_groups,
        an_owner_and_its_clients,
        a_workspace,
        rows_read_ahead,
        leases_kept,
        calls_with_a_limit,
        runs_that_beat,
        a_stream_closed_while_it_is_asked,
        workers_of_a_job,
        agents_kept_alive,
    )
}
