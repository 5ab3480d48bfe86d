"""The rings of an owner: reads journals as the rings decide, and keeps rows for subscribers.

A subscriber that wants rows and has none in its channel reads for all subscribers at its position.
So there are no threads here, and a journal without followers is not read.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from millrace.config import Config
from millrace.errors import JournalUnknown, MillraceError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.clocks import clock_at
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.values import Fetched
from millrace.keys.key_ranges import KeyRange
from millrace.reads.live.range_rows import cut, due_rows, share
from millrace.reads.live.ring import (
    AtEnd,
    AwaitReader,
    FollowerGone,
    HoldBack,
    ReadRows,
    ReplayDone,
    Ring,
    RingKey,
    RingLimits,
    TakeRows,
)
from millrace.reads.live.waiting_rows import Channel, RowsSize, SubscriberId


class LiveClosed(Exception):
    """The owner is ending; the client can call the next owner."""


@dataclass(slots=True)
class _Running:
    """A ring, the rows in its channels, and the lock of both."""

    ring: Ring
    changed: threading.Condition = field(default_factory=threading.Condition)
    channels: dict[SubscriberId, deque[tuple[Fetched, RowsSize]]] = field(default_factory=dict)


def steady_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class LiveReads:
    """Every ring of one owner. May be used by many threads."""

    def __init__(
        self,
        broker: Broker,
        config: Config,
        *,
        now_ms: Callable[[], int] = steady_ms,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.broker = broker
        self.config = config
        self.now_ms = now_ms
        self.unix_ns = unix_ns
        self.closed = threading.Event()
        """Set when no more rows are handed out."""
        self.limits = RingLimits.of(config)
        self._rings: dict[RingKey, _Running] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def subscribe(
        self,
        key: RingKey,
        range: KeyRange,  # noqa: A002 - as everywhere
        begin: Offset,
        end: Offset | None = None,
        channel: Channel | None = None,
    ) -> Subscription:
        """Join a ring, made if there is none; `channel`: of a follower of many journals."""
        subscriber_id = SubscriberId(next(self._ids))
        with self._lock:
            running = self._rings.setdefault(key, _Running(Ring(key, self.limits)))
            with running.changed:
                own_channel = channel or Channel(self.now_ms())
                running.ring.on_join(subscriber_id, range, begin, end=end, channel=own_channel)
                running.channels[subscriber_id] = deque()
        return Subscription(self, running, subscriber_id, begin)

    def leave(self, running: _Running, subscriber_id: SubscriberId) -> None:
        """Free the rows kept for a subscriber; remove the ring if it was the last one."""
        with self._lock, running.changed:
            running.ring.on_leave(subscriber_id)
            running.channels.pop(subscriber_id, None)
            if running.ring.is_empty() and self._rings.get(running.ring.key) is running:
                del self._rings[running.ring.key]
            running.changed.notify_all()

    def tick(self) -> int:
        """Drop subscribers that take no rows; return how many. To be called now and then."""
        with self._lock:
            rings = list(self._rings.values())
        count = 0
        for running in rings:
            with running.changed:
                dropped = running.ring.on_tick(self.now_ms())
                for subscriber_id in dropped:
                    running.channels[subscriber_id].clear()
                if dropped:
                    running.changed.notify_all()
            count += len(dropped)
        return count

    def close(self) -> None:
        """Hand out no more rows."""
        self.closed.set()
        with self._lock:
            rings = list(self._rings.values())
        for running in rings:
            with running.changed:
                running.changed.notify_all()

    def check(self) -> None:
        """Refuse when the owner is ending."""
        if self.closed.is_set():
            raise LiveClosed

    def needed_from(self, journal: str) -> int | None:
        """The lowest offset that an open reader of a journal may still ask for."""
        with self._lock:
            rings = [ring for key, ring in self._rings.items() if key.journal == journal]
        lowest: list[int] = []
        for running in rings:
            with running.changed:
                lowest += [int(each.next) for each in running.ring.subscribers.values()]
        return min(lowest, default=None)

    def rings(self) -> dict[RingKey, int]:
        """The rings, and the number of subscribers of each."""
        with self._lock:
            return {key: len(running.channels) for key, running in self._rings.items()}


class Subscription:
    """One reader's part in a ring. For one thread at a time."""

    def __init__(
        self, live: LiveReads, running: _Running, subscriber_id: SubscriberId, begin: Offset
    ) -> None:
        """Use `LiveReads.subscribe`."""
        self.at = begin
        """Everything below was handed out, or is none of its rows."""
        self.journal = running.ring.key.journal
        self._live = live
        self._running = running
        self._subscriber_id = subscriber_id

    def poll(self) -> Fetched | AtEnd | ReplayDone:
        """The next rows; or that there are none for now, or no more."""
        running, wait_s = self._running, self._live.config.live_beat_ms / 1000
        while True:
            with running.changed:
                self._live.check()
                step = running.ring.on_ready(self._subscriber_id, self._live.now_ms())
                match step:
                    case TakeRows():
                        return self._take()
                    case FollowerGone():
                        raise step.error()
                    case AtEnd():
                        self.at = step.offset
                        return step
                    case ReplayDone():
                        self.at = running.ring.subscribers[self._subscriber_id].next
                        return step
                    case HoldBack():
                        running.changed.wait(step.wait_ms / 1000)
                        continue
                    case AwaitReader():
                        running.changed.wait(wait_s)
                        continue
                    case ReadRows():
                        pass
                    case _:
                        assert_never(step)
            self._carry_out(step)

    def on_more(self, waited_for: Offset) -> None:
        """The journal has rows at or above the offset that this subscription waits for."""
        with self._running.changed:
            self._running.ring.on_more(waited_for)

    def close(self) -> None:
        """Leave the ring. A second call does nothing."""
        self._live.leave(self._running, self._subscriber_id)

    def _take(self) -> Fetched:
        fetched, size = self._running.channels[self._subscriber_id].popleft()
        if self._running.ring.on_taken(self._subscriber_id, size, self._live.now_ms()):
            self._running.changed.notify_all()
        self.at = fetched.next_offset
        return fetched

    def _carry_out(self, read: ReadRows) -> None:
        """Read for all members, outside the lock: others go on meanwhile."""
        running = self._running
        try:
            fault("live.read.before")
            fetched = self._fetch(read)
            batches, next_offset = cut(fetched, read.bound)
            due = None
            if running.ring.key.delay_ms:
                delay = clock_at(running.ring.key.delay_ms * 1_000_000)
                now = clock_at(self._live.unix_ns())
                batches, next_offset, due = due_rows(batches, next_offset, delay=delay, now=now)
            shares = share(batches, running.ring.key.keys, read.members)
            sizes = {subscriber_id: rows.size for subscriber_id, rows in shares.items()}
        except Exception as error:  # noqa: BLE001 - goes to everybody it was read for
            kind = type(error) if isinstance(error, MillraceError) else MillraceError
            text = str(error) if isinstance(error, MillraceError) else f"a read failed: {error!r}"
            with running.changed:
                running.ring.on_failed(read.number, kind, text)
                running.changed.notify_all()
            return
        except BaseException:
            with running.changed:
                running.ring.on_cancelled(read.number)
                running.changed.notify_all()
            raise
        with running.changed:
            given = running.ring.on_read(
                read.number,
                next_offset,
                fetched.end_offset,
                sizes,
                now_ms=self._live.now_ms(),
                due=due,
            )
            for subscriber_id in given:
                subscriber_rows = replace(
                    fetched, batches=shares[subscriber_id].batches, next_offset=next_offset
                )
                running.channels[subscriber_id].append((subscriber_rows, sizes[subscriber_id]))
            running.changed.notify_all()

    def _fetch(self, read: ReadRows) -> Fetched:
        limits, broker, key = self._live.limits, self._live.broker, self._running.ring.key
        rows_max = read.rows_max
        if read.bound is not None:
            rows_max = max(1, min(rows_max, read.bound - read.begin))
        try:
            fetched = broker.read(
                key.journal, read.begin, rows_max=rows_max, bytes_max=limits.read_bytes_max
            )
            if fetched.id == key.id:
                return fetched
        except JournalUnknown:
            pass
        raise deleted(key.journal, read.begin)


def deleted(name: str, at: int) -> JournalUnknown:
    """The error for a journal that was deleted while a reader follows it."""
    return JournalUnknown(
        f"journal {name!r} was deleted while it was followed\n  read up to offset: {at}\n"
        "  to fix: follow the journals that are left, or the new one of this name from its start"
    )
