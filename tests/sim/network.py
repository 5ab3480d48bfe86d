"""A session of the real machines over streams that deliver when the simulation says so.

Each stream keeps its order; streams are delayed against one another. Nothing here runs by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from tests.sim.plan import WorldPlan
from tests.sim.writers import SimBroker

from millrace.config import Config
from millrace.journal.core.values import Lease
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.routing import Routing
from millrace.reads.model.session_messages import Reported, ToSession, ToSlice
from millrace.reads.model.slice_progress import SliceProgress
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder, QueueLimits
from millrace.reads.queue.queue_messages import Flush, QueueRows, Replies, Reply
from millrace.reads.session.checkpoint_store import CheckpointStore
from millrace.reads.session.session_actor import SessionActor
from millrace.reads.session.session_state import Resumed, SessionState
from millrace.reads.slice.slice_actor import JournalsMoved, Replied, SliceActor
from millrace.reads.slice.slice_state import SliceLimits, SliceState
from millrace.testing.fake_queue_disk import FakeQueueDisk

Step = Callable[[], None]
_LIMITS = QueueLimits.of(Config())
FOR_EVER_MS = 2**62
DISK_SLACK_BYTES = 12_000
"""What a queue may take above its limit: a message, and what surrounds blocks that it flushes."""


class WatchedState(SessionState):
    """Tells what reports the session has taken in."""

    def __init__(self, read: CoordinatedRead, members: int, resumed: Resumed) -> None:
        super().__init__(read, members, resumed)
        self.read_to: dict[int, int] = {}
        self.points: dict[tuple[int, int], set[int]] = {}

    def on_reported(self, progress: SliceProgress, now_ms: int) -> None:
        super().on_reported(progress, now_ms)
        for tag, offset in progress.reads.rows():
            self.read_to[tag] = max(offset, self.read_to.get(tag, 0))
        for tag, producer, clock, _ in progress.points.rows():
            self.points.setdefault((tag, producer), set()).add(clock)


@dataclass(frozen=True, slots=True)
class _Links:
    session: SimSession
    number: int

    def to_queue(self, queue: int, message: QueueRows | Flush) -> None:
        self.session.streams[f"slice {self.number} to queue {queue}"].append(message)

    def to_session(self, message: ToSession) -> None:
        self.session.streams[f"slice {self.number} to session"].append(message)


class SimSession:
    """One session: its members, its streams, and what can happen next in it."""

    def __init__(
        self,
        *,
        plan: WorldPlan,
        read: CoordinatedRead,
        members: int,
        broker: SimBroker,
        lease: Lease,
        now_ns: Callable[[], int],
        last_commit: int | None = None,
        read_through: int | None = None,
    ) -> None:
        self.members = members
        self.coordinated_read = read
        self._broker = broker
        self._now_ns = now_ns
        self._plan = plan
        self.lease = lease
        self.store = CheckpointStore(broker, read.name, lease)
        self.resumed = self.store.load(last_commit=last_commit, read_through=read_through)
        self.state = WatchedState(read, members, self.resumed)
        self.streams: dict[str, deque[Any]] = {}
        self._takers: dict[str, Callable[[Any], None]] = {}
        self.disks = [FakeQueueDisk(can_punch=plan.can_punch) for _ in range(members)]
        self.queues = [self._queue(disk) for disk in self.disks]
        self._is_off = [False] * members
        self._may_exceed = [False] * members
        self._awake = [True] * members
        self.slices = [self._slice(number) for number in range(members)]
        self._moved = [0] * members
        self._is_wanted = False
        for number in range(members):
            self._stream(f"slice {number} to session", partial(self._to_session, number))
            self._stream(f"session to slice {number}", self.slices[number].tell)
            self._stream(f"session to queue {number}", partial(self._control, number))
            for queue in range(members):
                to = partial(self._to_queue, queue, number)
                self._stream(f"slice {number} to queue {queue}", to)
                back = partial(self._to_slice, number, queue)
                self._stream(f"queue {queue} to slice {number}", back)
        self.actor = SessionActor(self.state, self, self.store, broker)
        self._version = self.actor.list_journals(self._now_ms())
        self.actor.begin()

    # What the session asks of its members.
    def send(self, slice_: int, message: ToSlice) -> None:
        self.streams[f"session to slice {slice_}"].append(message)

    def read(self, member: int, visible: Visible) -> Iterator[pa.RecordBatch]:
        return self.queues[member].batches(visible)

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        for number in range(self.members):
            self.streams[f"session to queue {number}"].append((shown, rolled_back))

    def set_disk_limit(self, *, is_on: bool) -> None:
        for number in range(self.members):
            self.streams[f"session to queue {number}"].append(is_on)

    # What can happen.
    def steps(self) -> list[tuple[str, Step]]:
        """Everything that can happen next."""
        out: list[tuple[str, Step]] = [
            (name, partial(self._deliver, name)) for name, stream in self.streams.items() if stream
        ]
        now = self._now_ns()
        for number, slice_ in enumerate(self.slices):
            if not self._awake[number]:
                due = slice_.due_ns()
                if due is None or due > now:
                    continue
            out.append((f"turn {number}", partial(self._turn, number)))
        out += [
            (f"follow {number}", partial(self._follow, number))
            for number in range(self.members)
            if self._broker.has_moved(self._moved[number])
        ]
        return out + self._look()

    def is_pushed_back(self) -> bool:
        """Whether a queue holds something back."""
        return any(queue.is_full() for queue in self.queues)

    def _look(self) -> list[tuple[str, Step]]:
        is_due = self._broker.version() != self._version or self.actor.needs_journals
        out: list[tuple[str, Step]] = [("look", self.look)] if is_due else []
        return [*out, ("relieve", self._relieve)] if self._is_wanted else out

    def want(self) -> None:
        """Somebody waits for a checkpoint."""
        self._is_wanted = True

    def _relieve(self) -> None:
        self._is_wanted = False
        self.actor.tick(self._now_ms(), hint_wait_ms=FOR_EVER_MS, is_wanted=True)

    def look(self) -> None:
        self._version = self.actor.list_journals(self._now_ms(), self._version)

    def renew(self) -> None:
        self.lease = self._broker.renew(self.lease)
        self.store.renewed(self.lease)

    def next_due_ns(self) -> int | None:
        due = [each.due_ns() for each in self.slices]
        return min((each for each in due if each is not None), default=None)

    def close(self) -> None:
        for queue in self.queues:
            queue.close()

    # Inside.
    def _stream(self, name: str, take: Callable[[Any], None]) -> None:
        self.streams[name] = deque()
        self._takers[name] = take

    def _deliver(self, name: str) -> None:
        self._takers[name](self.streams[name].popleft())

    def _turn(self, number: int) -> None:
        self._awake[number] = False
        if self.slices[number].turn(self._now_ns()):
            self._awake[number] = True

    def _follow(self, number: int) -> None:
        moved = self._broker.moved(self._moved[number], timeout_s=0)
        self._moved[number] = moved.version
        if moved.journals is None or moved.journals:
            self.slices[number].tell(JournalsMoved(moved.journals))

    def _to_session(self, slice_: int, message: ToSession) -> None:
        if isinstance(message, Reported):
            message = Reported(SliceProgress.from_bytes(message.progress.to_bytes()))
        self.actor.on_message(slice_, message, self._now_ms())

    def _to_queue(self, queue: int, stream: int, message: QueueRows | Flush) -> None:
        before = self.queues[queue].used_bytes()
        self._reply(queue, self.queues[queue].handle(stream, message))
        self._check_disk(queue, before, message)

    def _to_slice(self, slice_: int, queue: int, reply: Reply) -> None:
        self.slices[slice_].tell(Replied(queue, reply))

    def _control(self, queue: int, message: bool | tuple[ShownClock, RolledBack]) -> None:  # noqa: FBT001
        if isinstance(message, bool):
            assert message == self._is_off[queue], "a limit is switched to what it is"
            self._is_off[queue] = not message
            self._may_exceed[queue] |= not message
            self._reply(queue, self.queues[queue].set_disk_limit(is_on=message))
        else:
            self._reply(queue, self.queues[queue].release(*message))

    def _reply(self, queue: int, replies: Replies) -> None:
        for stream, reply in replies:
            self.streams[f"queue {queue} to slice {stream}"].append(reply)

    def _check_disk(self, queue: int, before: int, message: QueueRows | Flush) -> None:
        used, limit = self.queues[queue].used_bytes(), self._plan.disk_bytes
        self._may_exceed[queue] &= self._is_off[queue] or used > limit
        if self._is_off[queue]:
            return
        if isinstance(message, QueueRows) and before >= limit:
            assert used <= before, f"queue {queue} took rows above its limit: {before} to {used}"
        if not self._may_exceed[queue]:
            most = limit + DISK_SLACK_BYTES
            assert used <= most, f"queue {queue} takes {used} bytes, its limit is {limit}"

    def _queue(self, disk: FakeQueueDisk) -> Queue:
        plan = self._plan
        limits = replace(
            _LIMITS,
            disk_bytes_max=plan.disk_bytes,
            segment_bytes_target=plan.segment_bytes,
            block_bytes_target=plan.block_bytes,
            block_rows_target=plan.block_rows,
            batch_rows_target=plan.block_rows,
        )
        orders = [
            BindingOrder(each.priority, each.delay) for each in self.coordinated_read.bindings
        ]
        return Queue(disk, limits, streams=self.members, bindings=orders)

    def _slice(self, number: int) -> SliceActor:
        plan = self._plan
        limits = SliceLimits(
            buffer_bytes_max=plan.buffer_bytes,
            fetch_bytes_max=plan.fetch_bytes,
            fetch_bytes_min=min(plan.fetch_bytes, 100),
            fetch_journals_max=plan.fetch_journals,
            window_bytes_max=plan.window_bytes,
            message_bytes_target=plan.message_bytes,
        )
        routing = Routing(self.coordinated_read, self.members)
        state = SliceState(self.coordinated_read, self.members, routing, limits)
        return SliceActor(state, self._broker, _Links(self, number), partial(self._wake, number))

    def _wake(self, number: int) -> None:
        self._awake[number] = True

    def _now_ms(self) -> int:
        return self._now_ns() // 1_000_000
