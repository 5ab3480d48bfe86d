"""Rows from slices to queues: over Flight, within a process, and as bytes through a bare socket.

    .venv/bin/python benchmarks/reads_flight.py [--rows 2000000] [--rounds 3]

Rows of 100 B and 1 KB, in messages of 1 MiB and of what slices send. "flight" is the stream of one
member's slice to the queue of another in a process of its own, with the window that slices keep to;
"flight, dropped" the same where the queue stores nothing; "in process" hands the same messages to a
queue directly. The peer, "socket", moves the same bytes through a loopback socket to a process that
reads and drops them: it compares with "flight, dropped". One JSON line each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa

from millrace.config import MIB, Config
from millrace.reads.member import Member
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder, QueueLimits
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, Reply, RowsAccepted
from millrace.reads.queue.segment_files import SegmentFiles
from millrace.reads.slice.outbox import Outbox
from millrace.transport.members.member_client import MemberClient
from millrace.transport.members.member_links import MemberLink
from millrace.transport.members.member_messages import FROM_QUEUE, TO_QUEUE
from millrace.transport.members.member_server import SessionId
from millrace.transport.members.served_member import MemberSeat, ServedMember
from millrace.wakeup import WakeUp

CONFIG = Config()
READ = CoordinatedRead("bench", [Binding(name="all", prefix="t")])
SESSION = SessionId(read="bench", epoch=1, token="a-token-for-benchmarks")  # noqa: S106


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    benchmark: str
    way: str
    row_bytes: int
    message_bytes: int
    rows: int
    rows_per_s: float
    mb_per_s: float
    of_socket: float
    rows_per_cpu_s: float
    """By the processors' time of both ends together, which a busy machine does not change."""
    cpu_of_socket: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What one round takes, over rounds the middle one."""

    wall_s: float
    cpu_s: float


def staged(rows: int, row_bytes: int) -> pa.RecordBatch:
    """Rows of this size, system columns included."""
    text = row_bytes - 4 * 8 - 4
    values = np.random.default_rng(1).integers(97, 123, rows * text, np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * text
    column = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.zeros(rows, np.int64)),
            pa.array(np.full(rows, 7, np.int64)),
            pa.array(np.arange(rows, dtype=np.uint64)),
            pa.array(np.arange(rows, dtype=np.int64)),
            column,
        ],
        ["_mr_tag", "_mr_producer", "_mr_clock", "_mr_offset", "v"],
    )


class NoJournals:
    """There is nothing to follow."""

    def moved(self, _since: int, *, timeout_s: float, stop: WakeUp) -> None:
        stop.sleep(timeout_s)


def serve(where: Connection, folder: str, *, is_dropped: bool) -> None:
    """A member in a process of its own."""
    if is_dropped:

        def drop(self: Member, stream: int, message: QueueRows | Flush) -> None:
            number = message.number if isinstance(message, QueueRows) else message.cycle
            reply: Reply = (
                RowsAccepted(number) if isinstance(message, QueueRows) else Flushed(number)
            )
            self._reply(stream, reply)

        Member.on_rows = drop  # type: ignore[method-assign]
    seat = MemberSeat(number=1, members=2, read=READ, session=SESSION, config=CONFIG, folder=folder)
    served = ServedMember(seat, NoJournals())  # type: ignore[arg-type]
    where.send(served.address)
    _answer(where)
    served.close()


def take(where: Connection) -> None:
    """Read and drop what comes through a socket, and answer at the end of each round."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where.send(listener.getsockname()[1])
        near, _ = listener.accept()
        threading.Thread(target=_answer, args=(where,), daemon=True).start()
        space = bytearray(1 * MIB)
        while True:
            size = int.from_bytes(near.recv(8, socket.MSG_WAITALL), "little")
            if not size:
                return
            while size:
                size -= near.recv_into(space, min(size, len(space)))
            near.send(b"k")


class Sender:
    """One slice that sends all it has, as its window lets it."""

    def __init__(self, address: str) -> None:
        self._client = MemberClient(1, address, session=SESSION, config=CONFIG)
        self._outbox = Outbox(CONFIG.reads_window_bytes_max)
        self._changed = threading.Condition()
        self._is_flushed = False
        self._cycle = 0
        self._link: MemberLink = self._client.open(
            0, says=TO_QUEUE, hears=FROM_QUEUE, lost=print, handle=self._on_reply
        )

    def send(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._is_flushed = False
        self._cycle += 1
        for batch in batches:
            self._outbox.rows(batch)
        self._outbox.flush(self._cycle)
        with self._changed:
            while not self._is_flushed:
                for message in self._outbox.ready():
                    self._link.send(message)
                self._changed.wait()

    def close(self) -> None:
        self._link.close()
        self._client.close()

    def _on_reply(self, reply: object) -> None:
        with self._changed:
            if isinstance(reply, RowsAccepted):
                self._outbox.on_taken(reply.number)
            self._is_flushed = isinstance(reply, Flushed)
            self._changed.notify_all()


def timed(work: Callable[[], None], rounds: int, there_s: Callable[[], float]) -> Spent:
    """`there_s` tells the processors' time of the other end, if there is one."""
    work()
    wall, cpu = [], []
    for _ in range(rounds):
        begin, used = time.perf_counter(), time.process_time() + there_s()
        work()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() + there_s() - used)
    return Spent(statistics.median(wall), statistics.median(cpu))


def over_flight(batches: Sequence[pa.RecordBatch], rounds: int, *, is_dropped: bool) -> Spent:
    folder = tempfile.mkdtemp(prefix="reads-flight-")
    here, there = multiprocessing.Pipe()
    options = {"is_dropped": is_dropped}
    process = multiprocessing.Process(target=serve, args=(there, folder), kwargs=options)
    process.start()
    sender = Sender(here.recv())
    try:
        return timed(lambda: sender.send(batches), rounds, lambda: _asked(here))
    finally:
        sender.close()
        here.send(None)
        process.join()
        shutil.rmtree(folder, ignore_errors=True)


def within_a_process(batches: Sequence[pa.RecordBatch], rounds: int) -> Spent:
    folder = Path(tempfile.mkdtemp(prefix="reads-flight-"))
    queue = Queue(SegmentFiles(str(folder)), QueueLimits.of(CONFIG), 1, [BindingOrder()])
    numbers = iter(range(1, 1 << 40))

    def work() -> None:
        for batch in batches:
            queue.handle(0, QueueRows(next(numbers), batch))
        queue.handle(0, Flush(1))

    try:
        return timed(work, rounds, lambda: 0.0)
    finally:
        queue.close()
        shutil.rmtree(folder, ignore_errors=True)


def through_a_socket(batches: Sequence[pa.RecordBatch], rounds: int) -> Spent:
    bodies = [batch.serialize() for batch in batches]
    size = sum(body.size for body in bodies)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=take, args=(there,))
    process.start()
    with socket.create_connection(("127.0.0.1", here.recv())) as far:

        def work() -> None:
            far.sendall(size.to_bytes(8, "little"))
            for body in bodies:
                far.sendall(body)
            assert far.recv(1) == b"k"

        found = timed(work, rounds, lambda: _asked(here))
        far.sendall(bytes(8))
        here.send(None)
        process.join()
    return found


def _asked(other: Connection) -> float:
    other.send("?")
    return float(other.recv())


def _answer(other: Connection) -> None:
    """Tell the processors' time of this process whenever asked."""
    while other.recv() is not None:
        other.send(time.process_time())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of 100 B; a tenth of 1 KB")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    for row_bytes, rows in ((100, given.rows), (1000, given.rows // 10)):
        whole = staged(rows, row_bytes)
        for message_bytes in (1 * MIB, CONFIG.reads_message_bytes_target):
            count = message_bytes // row_bytes
            batches = [whole.slice(begin, count) for begin in range(0, rows, count)]
            peer = through_a_socket(batches, given.rounds)
            ways = {
                "socket": peer,
                "in process": within_a_process(batches, given.rounds),
                "flight, dropped": over_flight(batches, given.rounds, is_dropped=True),
                "flight": over_flight(batches, given.rounds, is_dropped=False),
            }
            for way, spent in ways.items():
                result = Result(
                    benchmark="reads_flight",
                    way=way,
                    row_bytes=row_bytes,
                    message_bytes=message_bytes,
                    rows=rows,
                    rows_per_s=round(rows / spent.wall_s),
                    mb_per_s=round(rows * row_bytes / spent.wall_s / 1e6, 1),
                    of_socket=round(peer.wall_s / spent.wall_s, 3),
                    rows_per_cpu_s=round(rows / spent.cpu_s),
                    cpu_of_socket=round(peer.cpu_s / spent.cpu_s, 3),
                )
                print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
