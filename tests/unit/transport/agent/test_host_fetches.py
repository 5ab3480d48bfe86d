"""Many hosts are asked at once: none holds up the others, and memory stays bounded."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.transport.agent_kit import TOKEN, Serve, make_host

from millrace.config import Config
from millrace.errors import AgentUnreachable
from millrace.ids import AttemptId, FolderId, ReducePartition
from millrace.metrics.process_metrics import FETCH_QUEUE_BYTES, FETCH_QUEUE_PARTITIONS
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.transport.agent.host_fetches import Delivery, HostFetches, PartitionRequest
from millrace.transport.agent.host_queues import HostQueues
from millrace.transport.agent.remote_outputs import Agents

A, B, C = (FolderId(letter * 32) for letter in "abc")
WAIT_S = 60


def request(folder: FolderId, number: int, size: int = 10) -> PartitionRequest:
    meta = PartitionMeta(
        reduce_partition=ReducePartition(number),
        file="data.ipc",
        offset=0,
        bytes=size,
        rows=1,
        batches=1,
        checksum="",
    )
    return folder, AttemptId.of(1, 0, number, 1), meta


def content(wanted: PartitionRequest) -> pa.Buffer:
    return pa.py_buffer(f"{wanted[0]}{wanted[2].reduce_partition}".encode())


class Hosts:
    """Hosts that answer at once, wait for a sign, or are dead; notes the calls."""

    def __init__(self, *, slow: Sequence[FolderId] = (), dead: Sequence[FolderId] = ()) -> None:
        self.slow, self.dead = slow, dead
        self.sign = threading.Event()
        self.queued: list[int] = []
        self.calls: list[tuple[FolderId, int]] = []
        self.in_memory = self.in_memory_max = 0
        self.at_once = self.at_once_max = 0
        self.lock = threading.Lock()

    def fetch(
        self, folder: FolderId, group: Sequence[PartitionRequest], delivery: Delivery
    ) -> None:
        with self.lock:
            self.calls.append((folder, len(group)))
            self.at_once += 1
            self.at_once_max = max(self.at_once, self.at_once_max)
            self.in_memory += sum(meta.bytes for _, _, meta in group)
            self.in_memory_max = max(self.in_memory, self.in_memory_max)
        try:
            if folder in self.dead:
                raise AgentUnreachable(f"{folder} is silent")
            if folder in self.slow:
                assert self.sign.wait(WAIT_S)
            for position, wanted in enumerate(group):
                delivery.check()
                delivery.deliver(position, content(wanted))
        finally:
            with self.lock:
                self.at_once -= 1

    def read(
        self, requests: Sequence[PartitionRequest], *, at_once: int = 8, bytes_max: int = 10_000
    ) -> HostFetches:
        return HostFetches(
            requests, self.fetch, lambda _: None, self.queued.append, hosts_at_once=at_once,
            bytes_max=bytes_max, ranges_max=1024,
        )  # fmt: skip


@given(
    hosts=st.lists(st.sampled_from([A, B, C]), max_size=40),
    sizes=st.lists(st.integers(0, 400), min_size=40, max_size=40),
    at_once=st.integers(1, 4),
    bytes_max=st.integers(1, 1_000),
)
def test_all_ranges_come_in_order_whatever_the_limits(
    hosts: list[FolderId], sizes: list[int], at_once: int, bytes_max: int
) -> None:
    requests = [request(host, n, sizes[n]) for n, host in enumerate(hosts)]
    fakes = Hosts()

    got = list(fakes.read(requests, at_once=at_once, bytes_max=bytes_max).buffers())

    assert got == [content(wanted) for wanted in requests]
    assert fakes.at_once_max <= at_once
    assert sum(count for _, count in fakes.calls) == len(requests)


@given(
    sizes=st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 400)), max_size=60),
    bytes_max=st.integers(1, 1_000),
    steps=st.lists(st.integers(0, 2), max_size=200),
)
def test_no_more_bytes_are_admitted_than_the_limit_but_for_one_large_range(
    sizes: list[tuple[FolderId, int]], bytes_max: int, steps: list[int]
) -> None:
    queues = HostQueues(bytes_max=bytes_max, ranges_max=8)
    offered = iter(sizes)
    admitted: list[tuple[int, int]] = []
    waiting = next(offered, None)
    busy: list[FolderId] = []
    for step in steps:
        if step == 0 and waiting is not None and queues.wants_more():
            number = queues.admit(*waiting)
            if number is not None:
                admitted.append((number, waiting[1]))
                waiting = next(offered, None)
        if step == 1 and (begun := queues.begin()) is not None:
            assert begun[0] not in busy
            assert begun[1] == sorted(begun[1])
            busy.append(begun[0])
        if step == 2 and admitted:
            number, _ = admitted.pop(0)
            queues.on_taken(number)
            if busy:
                queues.on_end(busy.pop(0))
        assert queues.bytes == sum(size for _, size in admitted)
        assert queues.bytes <= bytes_max or len(admitted) == 1
        assert len(admitted) <= 8
        assert admitted or queues.wants_more()


def test_a_slow_host_does_not_hold_up_the_others() -> None:
    hosts = Hosts(slow=[A])
    requests = [request(B, 0), request(A, 1), request(C, 2), request(B, 3)]
    buffers = hosts.read(requests).buffers()

    assert next(buffers) == content(requests[0])
    for _ in range(WAIT_S * 100):
        if {folder for folder, _ in hosts.calls} == {A, B, C}:
            break
        threading.Event().wait(0.01)
    assert sorted(hosts.calls) == [(A, 1), (B, 2), (C, 1)]
    hosts.sign.set()
    assert list(buffers) == [content(wanted) for wanted in requests[1:]]


def test_a_dead_host_is_an_error_in_its_place_and_the_rest_is_there_before() -> None:
    hosts = Hosts(dead=[B])
    requests = [request(A, 0), request(C, 1), request(B, 2), request(A, 3)]
    got: list[pa.Buffer] = []

    with pytest.raises(AgentUnreachable, match=f"{B} is silent"):
        got.extend(hosts.read(requests).buffers())

    assert got == [content(wanted) for wanted in requests[:2]]


def test_reading_ahead_stops_at_the_limit() -> None:
    hosts = Hosts()
    requests = [request((A, B, C)[n % 3], n, 100) for n in range(300)]
    buffers = hosts.read(requests, bytes_max=1_000).buffers()

    next(buffers)
    threading.Event().wait(0.2)

    assert sum(count for _, count in hosts.calls) <= 10
    assert sum(1 for _ in buffers) == 299


def test_a_reader_that_ends_early_ends_the_fetches() -> None:
    hosts = Hosts(slow=[B])
    buffers = hosts.read([request(A, 0), request(B, 1), request(B, 2)]).buffers()
    next(buffers)
    buffers.close()  # type: ignore[attr-defined]
    hosts.sign.set()

    for _ in range(WAIT_S * 100):
        if not any(thread.name == "millrace-fetch" for thread in threading.enumerate()):
            return
        threading.Event().wait(0.01)
    raise AssertionError("a thread goes on")


def test_ranges_of_several_agents_arrive_and_are_counted(tmp_path: Path, serve: Serve) -> None:
    hosts = [make_host(tmp_path / str(n)) for n in range(3)]
    addresses = {host.folder: serve(host).address for host in hosts}
    wanted, values = [], []
    for number in range(12):
        host = hosts[number % 3]
        index = host.write(AttemptId.of(1, 0, number, 1), [number] * 1000, partitions=2)
        wanted += [(host.folder, index.id, meta) for meta in index.partitions if meta.rows]
        values += [number for meta in index.partitions if meta.rows]
    agents = Agents(token=TOKEN, config=Config(), address_of=addresses.get)

    datas = list(agents.fetch_all(wanted))

    rows = [pa.ipc.open_stream(data).read_all()["n"].unique().to_pylist() for data in datas]
    assert rows == [[value] for value in values]
    counts = agents.counts
    assert counts.bytes == sum(meta.bytes for _, _, meta in wanted)
    assert counts.ranges == len(wanted)
    assert counts.calls == 3
    assert counts.hosts == tuple(sorted(addresses))
    agents.close()


def queued_now() -> tuple[float, float]:
    """Bytes and partitions in queues of this process."""
    samples = [*FETCH_QUEUE_BYTES.samples(""), *FETCH_QUEUE_PARTITIONS.samples("")]
    return (samples[0].value, samples[1].value) if samples else (0, 0)


def test_what_was_asked_for_ahead_is_counted_until_it_is_taken_or_its_reader_ends() -> None:
    hosts = Hosts()
    before = queued_now()
    rows = hosts.read([request(A, n, 100) for n in range(4)], bytes_max=250).buffers()
    assert isinstance(rows, Generator)

    next(rows)
    assert queued_now() == (before[0] + 200, before[1] + 2)
    assert max(hosts.queued) == 200
    next(rows)
    rows.close()

    assert queued_now() == before
