"""A member of a session: one slice and one queue, and the threads that drive them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.journal.contract import Broker
from millrace.reads.checkpoint import RolledBack, Shown
from millrace.reads.messages import ToSlice
from millrace.reads.queue.files import SegmentFiles
from millrace.reads.queue.limits import BindingOrder, QueueLimits
from millrace.reads.queue.messages import Flush, Replies, Reply, Rows
from millrace.reads.queue.queue import Queue
from millrace.reads.routing import Extract, Routing
from millrace.reads.slice.actor import Links, Moved, Replied, SliceActor
from millrace.reads.slice.state import SliceLimits, SliceState
from millrace.reads.task import Task
from millrace.reads.window import Visible

_LOOK_S: Final = 5.0
"""How long a member waits for journals to move before it asks again."""


class Member:
    """One of the members of a session, in this process.

    `reply` sends an answer of this member's queue to the slice of a stream; `failed` is told the
    first error of either, once.
    """

    def __init__(
        self,
        *,
        number: int,
        members: int,
        task: Task,
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
        self._wake = threading.Event()
        self._stop = threading.Event()
        orders = [BindingOrder(each.priority, each.delay) for each in task.bindings]
        share = config.reads_disk_bytes_max // members
        limits = replace(QueueLimits.of(config), disk_bytes_max=share)
        self._queue = Queue(SegmentFiles(folder), limits, streams=members, bindings=orders)
        state = SliceState(task, members, Routing(task, members, extract), SliceLimits.of(config))
        self._slice = SliceActor(state, broker, links, self._wake.set)
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), name=f"{name}-{number}", daemon=True)
            for run, name in ((self._run_slice, "slice"), (self._follow, "follow"))
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def tell(self, message: ToSlice) -> None:
        """The session says something."""
        self._slice.tell(message)

    def on_reply(self, queue: int, reply: Reply) -> None:
        """A queue answered the slice."""
        self._slice.tell(Replied(queue, reply))

    def on_rows(self, stream: int, message: Rows | Flush) -> None:
        """A slice sends to the queue."""
        self._answer(self._queue.handle(stream, message))

    def read(self, visible: Visible) -> Iterator[pa.RecordBatch]:
        """The visible rows of the queue, in order."""
        return self._queue.batches(visible)

    def release(self, shown: Shown, rolled_back: RolledBack) -> None:
        """Free what is shown."""
        self._answer(self._queue.release(shown, rolled_back))

    def set_limit_off(self, *, off: bool) -> None:
        """Take whatever comes, or keep to the disk limit again."""
        self._answer(self._queue.set_limit_off(off=off))

    def used_bytes(self) -> int:
        """What the queue takes on disk."""
        return self._queue.used_bytes()

    def close(self) -> None:
        """Stop, and drop the queue's files."""
        self._stop.set()
        self._wake.set()
        runs = self._threads[0]  # The other sees it when it next hears from the journals.
        if runs.ident is not None and runs is not threading.current_thread():
            runs.join()
        self._queue.close()

    def _answer(self, replies: Replies) -> None:
        for stream, reply in replies:
            self._reply(stream, reply)

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - it ends the session, which tells it
            if not self._stop.is_set():
                self._failed(error)

    def _run_slice(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            if not self._slice.turn(time.time_ns()):
                self._wake.wait(self._patience_s())

    def _patience_s(self) -> float | None:
        due = self._slice.due_ns()
        return None if due is None else max(0.0, (due - time.time_ns()) / 1e9)

    def _follow(self) -> None:
        version = 0
        while not self._stop.is_set():
            moved = self._broker.moved(version, timeout_s=_LOOK_S)
            version = moved.version
            if moved.journals is None or moved.journals:
                self._slice.tell(Moved(moved.journals))
