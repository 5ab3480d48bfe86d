"""Fetching partitions from an agent against a bare socket, both on loopback, in one run.

    .venv/bin/python benchmarks/flight_fetch.py [--chunk-bytes N]

The agent is a process of its own, as a task starts it. The peer is a process that maps the file it
is asked for and sends it with `sendall`; the bytes are received into a buffer that holds all of the
case's partitions and was made beforehand, while Millrace gives every fetch memory of its own.

"checked" is what readers call: Millrace compares each partition with its XXH3-64, and the peer
computes the same. "bytes alone" leaves that out on both sides. "checked, peer not" has Millrace
check and the peer not. "bytes alone, peer mapped before" has the peer send from files that it
mapped and touched before the run, which no server of many files could. Runs alternate and times are
the best of several; a ratio of 0.7 is the goal. Both sides need a core each: on a busy machine the
figures say little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from millrace.config import KIB, MIB, Config
from millrace.execute.task_folders import FOLDER_VARIABLE, Folders
from millrace.ids import AttemptId, FolderId
from millrace.keys import RoundRobinPartitioner
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.shuffle.writer import begin_attempt, write_map_output
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.transport.agent import agent_endpoint
from millrace.transport.agent.agent_messages import ByteRange, Ticket, WhichAttempt
from millrace.transport.agent.landing import InMemory
from millrace.transport.agent.remote_outputs import Agents

RUNS = 9
PEER = """
import socket, struct, sys, pyarrow as pa
def mapped(path):
    return memoryview(pa.memory_map(path).read_buffer())
before = [mapped(path) for path in sys.argv[1:]]
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while asked := client.recv(8, socket.MSG_WAITALL):
    number, kept = struct.unpack("<II", asked)
    client.sendall(before[number] if kept else mapped(sys.argv[1 + number]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    index: MapTaskIndex
    passes: int

    @property
    def parts(self) -> list[PartitionMeta]:
        return [meta for meta in self.index.partitions if meta.file is not None] * self.passes


def write(store: LocalStore, number: int, partitions: int, size: int) -> MapTaskIndex:
    rows = partitions * size // 16
    rng = np.random.default_rng(number)
    table = pa.table({name: rng.integers(0, 2**62, rows) for name in ("a", "b")})
    attempt = AttemptId.of(1, 0, number, 1)
    begin_attempt(store, attempt)
    return write_map_output(
        store,
        attempt,
        table.to_batches(max_chunksize=256 * 1024),
        schema=table.schema,
        partitioner=RoundRobinPartitioner(partitions),
        config=Config(),
        now_ms=lambda: 1,
    )


class Peer:
    """The bare socket."""

    def __init__(self, store: LocalStore, index: MapTaskIndex) -> None:
        folder = layout.attempt_folder(index.id)
        paths = [store.path(f"{folder}/{meta.file}") for meta in index.partitions if meta.file]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, *paths], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.places = {}
        size = 0
        for meta in index.partitions:
            self.places[meta.reduce_partition] = size
            size += meta.bytes
        self.buffer = memoryview(bytearray(size))

    def fetch(self, parts: list[PartitionMeta], *, checked: bool) -> None:
        for meta in parts:
            self._fetch(meta, checked=checked, kept=False)

    def fetch_kept(self, parts: list[PartitionMeta], *, checked: bool) -> None:
        for meta in parts:
            self._fetch(meta, checked=checked, kept=True)

    def _fetch(self, meta: PartitionMeta, *, checked: bool, kept: bool) -> None:
        self.socket.sendall(struct.pack("<II", meta.reduce_partition, kept))
        start = self.places[meta.reduce_partition]
        place = self.buffer[start : start + meta.bytes]
        got = 0
        while got < meta.bytes:
            got += self.socket.recv_into(place[got:])
        if checked:
            assert xxhash.xxh3_64(place).hexdigest() == meta.checksum

    def close(self) -> None:
        self.socket.close()
        self.process.communicate()


@dataclass(frozen=True, slots=True)
class Ours:
    agents: Agents
    folder: FolderId
    address: str
    attempt: AttemptId

    def fetch(self, parts: list[PartitionMeta], *, checked: bool) -> None:
        if checked:
            for data in self.agents.fetch_all((self.folder, self.attempt, m) for m in parts):
                assert data.size
            return
        which = WhichAttempt(self.attempt.task, self.attempt.attempt)
        ranges = tuple(ByteRange(which, meta.reduce_partition) for meta in parts)
        ticket = Ticket(ranges, self.agents.config.fetch_chunk_bytes)
        left = sum(meta.bytes for meta in parts)
        chunks = self.agents.calls.chunks(self.address, self.folder, ticket, bytes_left=left)
        for meta in parts:
            target = InMemory(meta.bytes)
            while target.got < meta.bytes:
                target.take(next(chunks))
        chunks.close()


def seconds(fetch: Callable[..., None], parts: list[PartitionMeta], *, checked: bool) -> float:
    begin = time.perf_counter()
    fetch(parts, checked=checked)
    return time.perf_counter() - begin


def compare(case: Case, ours: Ours, peer: Peer) -> None:
    ways: dict[str, tuple[Callable[..., None], bool]] = {
        "ours, checked": (ours.fetch, True),
        "peer, checked": (peer.fetch, True),
        "ours": (ours.fetch, False),
        "peer": (peer.fetch, False),
        "peer, kept": (peer.fetch_kept, False),
    }
    best = dict.fromkeys(ways, math.inf)
    for _ in range(RUNS):
        for name, (fetch, checked) in ways.items():
            best[name] = min(best[name], seconds(fetch, case.parts, checked=checked))
    total = sum(meta.bytes for meta in case.parts)
    for what, one, other in (
        ("checked", "ours, checked", "peer, checked"),
        ("bytes alone", "ours", "peer"),
        ("checked, peer not", "ours, checked", "peer"),
        ("bytes alone, peer mapped before", "ours", "peer, kept"),
    ):
        report(f"{case.name}, {what}", total, best[one], best[other])


def report(case: str, size: int, ours: float, peer: float) -> None:
    ratio = peer / ours
    print(f"{case:48} {size / ours / 1e6:8.0f} MB/s {size / peer / 1e6:8.0f} MB/s {ratio:6.2f}")
    line: dict[str, Any] = {"millrace_s": ours, "peer_s": peer, "ratio": ratio}
    print(json.dumps({"benchmark": "flight_fetch", "case": case, **line}))


def end_agent(store: LocalStore) -> None:
    said = agent_endpoint.read(store)
    if said is not None:
        os.kill(said.pid, signal.SIGTERM)
        while store.exists(agent_endpoint.AGENT_FILE):
            time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunk-bytes", type=int, default=Config().fetch_chunk_bytes)
    config = Config(
        fetch_chunk_bytes=parser.parse_args().chunk_bytes, fetch_memory_bytes_max=65 * MIB
    )
    print(f"{'case':48} {'Millrace':>13} {'socket':>13} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as path:
        os.environ[FOLDER_VARIABLE] = path
        token = "of-the-benchmark"  # noqa: S105
        folders = Folders(path=path, workspace_id="0" * 16, token=token, loopback=True)
        folder, address, store = folders.here(config)
        assert folder is not None
        assert address is not None
        assert isinstance(store, LocalStore)
        try:
            cases = [
                Case(name="1 x 64 MiB", index=write(store, 0, 1, 64 * MIB), passes=4),
                Case(name="64 x 1 MiB", index=write(store, 1, 64, 1 * MIB), passes=4),
                Case(name="64 x 64 KiB", index=write(store, 2, 64, 64 * KIB), passes=16),
            ]
            agents = folders.agents(config, lambda _: address)
            for case in cases:
                peer = Peer(store, case.index)
                compare(case, Ours(agents, folder, address, case.index.id), peer)
                peer.close()
        finally:
            end_agent(store)


if __name__ == "__main__":
    main()
