"""Fetches over connections that break."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.proxy import CuttingProxy
from tests.unit.transport.agent_kit import TOKEN, Host, Serve, Serving

from millrace.config import Config
from millrace.errors import AgentUnreachable, Corrupt
from millrace.ids import AttemptId, FolderId
from millrace.shuffle import reader
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.transport.agent.agent_messages import ByteRange, Ticket, WhichAttempt
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.landing import InFile, InMemory, Landing
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.flight.connection_pool import Pool

ATTEMPT = AttemptId.of(100, 2, 7, 1)
VALUES = list(range(100_000))
Proxy = Callable[[str, list[int | None]], CuttingProxy]


def agents_at(address: str, config: Config, waits: list[float] | None = None) -> Agents:
    waited = [] if waits is None else waits
    return Agents(token=TOKEN, config=config, address_of=lambda _: address, sleep=waited.append)


def chunks_of(serving: Serving, host: Host, meta: PartitionMeta) -> Generator[pa.Buffer]:
    """One stream, as a single call."""
    which = WhichAttempt(ATTEMPT.task, ATTEMPT.attempt)
    ticket = Ticket((ByteRange(which, meta.reduce_partition),), 10_000)
    calls = serving.agents.calls
    return calls.chunks(serving.address, host.folder, ticket, bytes_left=meta.bytes)


@pytest.mark.parametrize("memory", [1, 64 * 1024 * 1024])
def test_a_connection_cut_in_the_middle_is_taken_up_again_and_the_bytes_are_right(
    host: Host, serve: Serve, proxy: Proxy, memory: int
) -> None:
    index = host.write(ATTEMPT, VALUES, partitions=1)
    between = proxy(serve(host).address, [300_000, None])
    config = Config(fetch_chunk_bytes=10_000, fetch_memory_bytes_max=memory)
    agents = agents_at(between.address, config)

    data = agents.fetch(host.folder, ATTEMPT, index.partitions[0])

    assert data.equals(reader.map_partition(host.store, ATTEMPT, index.partitions[0]))
    assert between.connections == 2
    agents.close()


def test_a_connection_that_is_always_cut_is_an_error_after_the_named_number_of_tries(
    host: Host, serve: Serve, proxy: Proxy
) -> None:
    index = host.write(ATTEMPT, VALUES, partitions=1)
    between = proxy(serve(host).address, [50_000])
    waits: list[float] = []
    config = Config(fetch_chunk_bytes=10_000, fetch_retries_max=3, fetch_backoff_ms=100)
    agents = agents_at(between.address, config, waits)

    with pytest.raises(AgentUnreachable) as raised:
        agents.fetch(host.folder, ATTEMPT, index.partitions[0])

    text = str(raised.value)
    assert between.connections == 4
    assert waits == [0.1, 0.2, 0.4]
    assert between.address in text
    assert host.folder in text
    assert "after 4 tries" in text
    assert re.search(r"got: \d+0000 bytes", text)  # Whole chunks.
    agents.close()


def test_an_agent_that_came_back_elsewhere_is_found_there(host: Host, serve: Serve) -> None:
    index = host.write(ATTEMPT, VALUES, partitions=1)
    old, new = serve(host), serve(host)
    old.server.shutdown()
    addresses = iter([old.address, new.address])
    agents = Agents(
        token=TOKEN, config=Config(), address_of=lambda _: next(addresses), sleep=lambda _: None
    )

    assert agents.fetch(host.folder, ATTEMPT, index.partitions[0]).size
    agents.close()


def test_a_folder_without_a_known_agent_is_an_error_that_names_it(host: Host) -> None:
    agents = Agents(token=TOKEN, config=Config(), address_of=lambda _: None, sleep=lambda _: None)

    with pytest.raises(AgentUnreachable, match=host.folder):
        agents.ping(host.folder)


def test_streams_given_up_by_clients_make_room_for_others(host: Host, serve: Serve) -> None:
    index = host.write(ATTEMPT, VALUES, partitions=1)
    serving = serve(host, Config(agent_streams_max=1, fetch_chunk_bytes=10_000))
    meta = index.partitions[0]

    for _ in range(3):
        chunks = chunks_of(serving, host, meta)
        next(chunks)
        chunks.close()

    assert serving.agents.fetch(host.folder, ATTEMPT, meta).size == meta.bytes


def test_many_threads_fetch_through_one_client(host: Host, serve: Serve) -> None:
    index = host.write(ATTEMPT, VALUES, partitions=8)
    agents = serve(host, Config(agent_streams_max=2)).agents
    got: list[bool] = []

    def fetch(partition: int) -> None:
        meta = index.partitions[partition]
        data = agents.fetch(host.folder, ATTEMPT, meta)
        got.append(data.equals(reader.map_partition(host.store, ATTEMPT, meta)))

    threads = [threading.Thread(target=fetch, args=(n % 8,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert got == [True] * 16


def test_the_pool_keeps_a_connection_and_closes_the_one_longest_unused() -> None:
    pool = Pool(connections_max=2)

    def use(address: str) -> int:
        with pool.connection(address) as client:
            return id(client)

    a, b, c = (f"grpc://127.0.0.1:{port}" for port in (1, 2, 3))
    first, second = use(a), use(b)
    assert use(a) == first
    use(c)  # b was unused for longest.
    assert len(pool) == 2
    assert use(a) == first
    assert second not in {first, use(a)}
    pool.close()


def test_a_connection_in_use_is_not_closed_under_its_user(host: Host, serve: Serve) -> None:
    index = host.write(ATTEMPT, VALUES, partitions=1)
    serving = serve(host, Config(connections_max=1, fetch_chunk_bytes=10_000))
    meta = index.partitions[0]
    calls = serving.agents.calls
    target = InMemory(meta.bytes)
    chunks = chunks_of(serving, host, meta)
    target.take(next(chunks))

    with calls.flight.pool.connection("grpc://127.0.0.1:1"):
        pass
    calls.flight.pool.close()
    for chunk in chunks:
        target.take(chunk)

    assert target.finish().equals(reader.map_partition(host.store, ATTEMPT, meta))


@pytest.mark.parametrize("kind", [InMemory, InFile])
def test_bytes_land_in_order_and_never_more_than_asked_for(
    kind: Callable[[int], Landing],
) -> None:
    target = kind(5)
    target.take(pa.py_buffer(b"abc"))
    assert target.got == 3
    with pytest.raises(Corrupt, match="at least 6 bytes of a partition that has 5"):
        target.take(pa.py_buffer(b"def"))
    target.take(pa.py_buffer(b"de"))

    assert target.finish().to_pybytes() == b"abcde"


def test_a_landing_file_has_no_name(tmp_path: Path) -> None:
    target = InFile(3, str(tmp_path))
    target.take(pa.py_buffer(b"abc"))

    assert list(tmp_path.iterdir()) == []
    assert target.finish().to_pybytes() == b"abc"


def test_keep_alive_renews_the_agents_that_answer(
    host: Host, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = serve(host, Config(agent_lease_ms=30))
    renewed = threading.Event()
    renew = serving.agents.renew
    seen: list[tuple[FolderId, bool]] = []

    def watch(folder: FolderId) -> bool:
        seen.append((folder, renew(folder)))
        if len(seen) >= 4:
            renewed.set()
        return seen[-1][1]

    monkeypatch.setattr(serving.agents, "renew", watch)
    gone = FolderId("00" * 16)
    with KeepAlive(serving.agents) as keep_alive:
        keep_alive.add(gone)
        keep_alive.add(host.folder)
        assert renewed.wait(10)

    assert set(seen) == {(gone, False), (host.folder, True)}


def test_a_fetch_that_is_tried_again_says_so_in_the_log(
    host: Host, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    serving = serve(host)
    serving.server.shutdown()
    with (
        caplog.at_level("INFO", logger="millrace.transport"),
        pytest.raises(AgentUnreachable),
    ):
        serving.agents.ping(host.folder)
    assert "asking for ping in folder" in caplog.text
    assert "(try 1)" in caplog.text
