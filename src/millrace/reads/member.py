"""A member of a session: one slice and one queue, and the threads that drive them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.routing import Extract, Routing
from millrace.reads.model.session_messages import ToSlice
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder, QueueLimits
from millrace.reads.queue.queue_messages import Flush, QueueRows, Replies, Reply
from millrace.reads.queue.segment_files import SegmentFiles
from millrace.reads.slice.outbox import SentSoFar
from millrace.reads.slice.slice_actor import JournalsMoved, Links, Replied, SliceActor
from millrace.reads.slice.slice_state import SliceLimits, SliceState
from millrace.wakeup import WakeUp, WorkerThread, join


class Member:
    """One of the members of a session, in this process.

    `reply` sends an answer of this member's queue to the slice of a stream; `failed` is called with
    the first error of either, once.
    """

    def __init__(
        self,
        *,
        number: int,
        members: int,
        read: CoordinatedRead,
        broker: Broker,
        folder: str,
        links: Links,
        reply: Callable[[int, Reply], None],
        failed: Callable[[BaseException], None],
        config: Config,
        extract: Extract | None = None,
    ) -> None:
        self.number = number
        self._broker = broker
        self._reply = reply
        self._failed = failed
        self._config = config
        self._wake = WakeUp()
        """For the thread of the slice."""
        self._following = WakeUp()
        """For the thread that waits for journals to move."""
        orders = [BindingOrder(binding.priority, binding.delay) for binding in read.bindings]
        share = config.reads_disk_bytes_max // members
        limits = replace(QueueLimits.of(config), disk_bytes_max=share)
        self._queue = Queue(SegmentFiles(folder), limits, streams=members, bindings=orders)
        state = SliceState(read, members, Routing(read, members, extract), SliceLimits.of(config))
        self._outboxes = state.outboxes
        self._slice = SliceActor(state, broker, links, self._wake.ring)
        self._threads = [
            WorkerThread(partial(self._guard, run), f"{name}-{number}")
            for run, name in ((self._run_slice, "slice"), (self._follow, "follow"))
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def tell(self, message: ToSlice) -> None:
        """Take in a message of the session."""
        self._slice.tell(message)

    def on_reply(self, queue: int, reply: Reply) -> None:
        """A queue answered the slice."""
        self._slice.tell(Replied(queue, reply))

    def on_rows(self, stream: int, message: QueueRows | Flush) -> None:
        """A slice sends to the queue.

        The slice is often another member's: a disk that fails is reported from here, and not by
        the slice, so that the session names the member that has the disk.
        """
        try:
            replies = self._queue.handle(stream, message)
        except Exception as error:  # noqa: BLE001 - it ends the session, which tells it
            self._fail(error)
        else:
            self._answer(replies)

    def read(self, visible: Visible) -> Iterator[pa.RecordBatch]:
        """The visible rows of the queue, in order."""
        return self._queue.batches(visible)

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        """Free the rows that are shown."""
        self._answer(self._queue.release(shown, rolled_back))

    def set_disk_limit(self, *, is_on: bool) -> None:
        """Have the queue keep to its disk limit, or accept rows beyond it."""
        self._answer(self._queue.set_disk_limit(is_on=is_on))

    def used_bytes(self) -> int:
        """The bytes of the queue on disk."""
        return self._queue.used_bytes()

    def sent(self) -> tuple[SentSoFar, ...]:
        """What the slice has sent to each queue."""
        return tuple(outbox.sent() for outbox in self._outboxes)

    def stop(self) -> None:
        """Tell both threads to end."""
        self._wake.stop()
        self._following.stop()

    def close(self) -> None:
        """Stop, and drop the queue's files."""
        self.stop()
        try:
            join(self._threads, self._config.thread_stop_ms_max, "thread_stop_ms_max")
        finally:
            self._queue.close()

    def _answer(self, replies: Replies) -> None:
        for stream, reply in replies:
            self._reply(stream, reply)

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - it ends the session, which tells it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._wake.is_stopped:
            self._failed(error)

    def _run_slice(self) -> None:
        while not self._wake.is_stopped:
            if not self._slice.turn(time.time_ns()):
                self._wake.sleep(self._patience_s())

    def _patience_s(self) -> float:
        most_s = self._config.thread_sleep_ms_max / 1000
        due = self._slice.due_ns()
        return most_s if due is None else min(most_s, (due - time.time_ns()) / 1e9)

    def _follow(self) -> None:
        version, most_s = 0, self._config.thread_sleep_ms_max / 1000
        while not self._following.is_stopped:
            moved = self._broker.moved(version, timeout_s=most_s, stop=self._following)
            version = moved.version
            if moved.journals is None or moved.journals:
                self._slice.tell(JournalsMoved(moved.journals))
