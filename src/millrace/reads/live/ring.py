"""Shares reads among the readers of one journal. Pure.

Each subscriber has its own position, `next`: all rows of its range below that offset are in its
channel, or were delivered. Subscribers at the same position share one read, made by the first of
them that wants rows. A read ends at the position of the next subscriber above it. So a subscriber
that is behind reads the rows that it missed, arrives at exactly that position, and shares reads
from then on.

A reader pauses until the other subscribers at its position have room in their channels, for
`hold_ms_max` in all. Then it continues without those that are full; they catch up by themselves
once they take rows again. A subscriber that has rows and takes none for `stall_ms_max` is dropped.

Invariant: each subscriber gets the committed rows of its range from its first offset on, in offset
order, each once, for every order of joins, leaves, reads and appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NewType, Self

from millrace.config import Config
from millrace.errors import MillraceError, Retriable
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.keys.key_ranges import KeyRange
from millrace.reads.live.waiting_rows import Channel, RowsSize, SubscriberId

LIVE_DUE_ROWS_MAX: Final = 4_096
"""Most rows of a read that begins with a row that waited for its delay."""

ReadNumber = NewType("ReadNumber", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingKey:
    """What the readers that share reads have in common.

    Key columns are part of it: rows are hashed once for all. Replays that end by themselves are
    kept apart, so that they never hold back followers.
    """

    journal: str
    id: JournalId
    """A journal that was deleted and made again is another one."""
    keys: tuple[str, ...] = ()
    replay: bool = False
    version: str = ""
    """Of the program that reads; "" if it gave none."""
    delay_ms: int = 0
    """How long rows wait after they were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLimits:
    """See `Config` for what each means."""

    read_rows_max: int
    read_bytes_max: int
    due_rows_max: int
    """Of a read that begins with a row which has just become due: most others are not due yet."""
    channel_rows_max: int
    channel_bytes_max: int
    backoff_ms: int
    hold_ms_max: int
    stall_ms_max: int

    @classmethod
    def of(cls, config: Config) -> Self:
        """The limits that a config names."""
        return cls(
            read_rows_max=config.live_read_rows_max,
            read_bytes_max=config.live_read_bytes_max,
            due_rows_max=min(config.live_read_rows_max, LIVE_DUE_ROWS_MAX),
            channel_rows_max=config.live_channel_rows_max,
            channel_bytes_max=config.live_channel_bytes_max,
            backoff_ms=config.live_backoff_ms,
            hold_ms_max=config.live_hold_ms_max,
            stall_ms_max=config.live_stall_ms_max,
        )


@dataclass(slots=True, kw_only=True)
class Subscriber:
    """One reader."""

    id: SubscriberId
    range: KeyRange
    next: Offset
    end: Offset | None
    """Where a replay ends."""
    channel: Channel
    rows: int = 0
    """Of this ring, in its channel."""
    bytes: int = 0
    held_ms: int = 0
    """How long it has held others back since they were last all at the journal's end."""
    held_since_ms: int | None = None
    failed: FollowerGone | None = None
    """Why no more rows are read for it; it gets the rows in its channel first."""

    def is_done(self) -> bool:
        """Whether there is nothing more to read for it."""
        return self.end is not None and self.next >= self.end

    def wants_more(self) -> bool:
        """Whether reads include it."""
        return self.failed is None and not self.is_done()

    def held_back_ms(self, now_ms: int) -> int:
        """How long it has held others back, until now."""
        return self.held_ms + (0 if self.held_since_ms is None else now_ms - self.held_since_ms)


# What a subscriber that wants rows is to do.
@dataclass(frozen=True, slots=True)
class TakeRows:
    """Rows are in its channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Read committed rows from `begin` on, none at or above `bound`, for all these members."""

    number: ReadNumber
    begin: Offset
    bound: Offset | None
    rows_max: int
    members: Mapping[SubscriberId, KeyRange]


@dataclass(frozen=True, slots=True)
class AwaitReader:
    """Another subscriber reads for it just now."""


@dataclass(frozen=True, slots=True)
class HoldBack:
    """Wait so long, or until rows are taken: a subscriber at this position has a full channel."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Nothing to read; wait for committed rows at or above this offset, or for this clock.

    A clock is given if the row at the offset waits for its delay.
    """

    offset: Offset
    due: Clock | None = None


@dataclass(frozen=True, slots=True)
class ReplayDone:
    """A replay reached its end."""


@dataclass(frozen=True, slots=True)
class FollowerGone:
    """It was dropped, or a read for it failed; there is nothing more for it."""

    kind: type[MillraceError]
    text: str

    def error(self) -> MillraceError:
        """What to raise."""
        return self.kind(self.text)


Step = TakeRows | ReadRows | AwaitReader | HoldBack | AtEnd | ReplayDone | FollowerGone


@dataclass(slots=True)
class Ring:
    """The readers of one journal."""

    key: RingKey
    limits: RingLimits
    subscribers: dict[SubscriberId, Subscriber] = field(default_factory=dict)
    reading: dict[ReadNumber, ReadRows] = field(default_factory=dict)
    """Reads on their way."""
    gone: dict[SubscriberId, FollowerGone] = field(default_factory=dict)
    end: Offset | None = None
    """Where committed rows ended when last seen, or those that were due; None: to be found out by
    reading."""
    due: Clock | None = None
    """When the row at `end` is due, if it waits for its delay."""
    reads: int = 0
    """How many reads there were."""

    def on_join(
        self,
        subscriber_id: SubscriberId,
        range: KeyRange,  # noqa: A002 - as everywhere
        begin: Offset,
        *,
        end: Offset | None = None,
        channel: Channel,
    ) -> None:
        """A subscriber joins, for the rows of a range from `begin` on, up to `end` if given."""
        assert subscriber_id not in self.subscribers, subscriber_id
        self.subscribers[subscriber_id] = Subscriber(
            id=subscriber_id, range=range, next=begin, end=end, channel=channel
        )

    def on_leave(self, subscriber_id: SubscriberId) -> None:
        """A subscriber leaves."""
        self._forget(subscriber_id)
        self.gone.pop(subscriber_id, None)

    def is_empty(self) -> bool:
        """Whether no subscriber is left."""
        return not self.subscribers and not self.gone

    def on_ready(self, subscriber_id: SubscriberId, now_ms: int) -> Step:
        """A subscriber is ready for rows; returns its next step."""
        if subscriber_id in self.gone:
            return self.gone[subscriber_id]
        asker = self.subscribers[subscriber_id]
        if asker.rows:
            return TakeRows()
        if asker.failed is not None:
            return asker.failed
        if asker.is_done():
            return ReplayDone()
        busy = {member for read in self.reading.values() for member in read.members}
        if subscriber_id in busy:
            return AwaitReader()
        if self.end is not None and asker.next >= self.end:
            return AtEnd(asker.next, self.due if asker.next == self.end else None)
        here = [
            other
            for other in self.subscribers.values()
            if other.next == asker.next and other.id not in busy and other.wants_more()
        ]
        # The asker takes its rows at once, and needs no room for them.
        full = {other.id for other in here if other is not asker and not self._has_room(other)}
        waits = [self._hold(self.subscribers[other], now_ms) for other in full]
        if any(waits):
            return HoldBack(max(waits))
        return self._read([other for other in here if other.id not in full], asker.next)

    def on_read(
        self,
        number: ReadNumber,
        next_offset: Offset,
        end_offset: Offset,
        shares: Mapping[SubscriberId, RowsSize],
        *,
        now_ms: int,
        due: Clock | None = None,
    ) -> list[SubscriberId]:
        """Rows up to `next_offset` were read; return whose channels get their share.

        `due`: the row at `next_offset` is due at this clock, and was not read.
        """
        read = self.reading.pop(number)
        assert read.begin <= next_offset, (read, next_offset)
        assert read.bound is None or next_offset <= read.bound, (read, next_offset)
        if due is not None:
            self.end = end_offset = next_offset
        else:
            self.end = end_offset if self.end is None else max(self.end, end_offset)
        self.due = due
        given = []
        for member in self._present(read.members):
            assert member.next == read.begin, (member, read)
            member.next = next_offset
            if next_offset >= end_offset:
                member.held_ms = 0
            share = shares.get(member.id)
            if share is not None and share.rows:
                member.rows += share.rows
                member.bytes += share.bytes
                member.channel.put(member.id, member.bytes, now_ms)
                given.append(member.id)
        return given

    def on_failed(self, number: ReadNumber, kind: type[MillraceError], text: str) -> None:
        """A read failed: its subscribers get the error, after the rows in their channels."""
        for member in self._present(self.reading.pop(number).members):
            member.failed = FollowerGone(kind, text)

    def on_cancelled(self, number: ReadNumber) -> None:
        """The reader gave up: another subscriber will read."""
        del self.reading[number]

    def on_taken(self, subscriber_id: SubscriberId, size: RowsSize, now_ms: int) -> bool:
        """A subscriber took rows; returns whether others may have waited for that."""
        subscriber = self.subscribers[subscriber_id]
        subscriber.rows -= size.rows
        subscriber.bytes -= size.bytes
        assert subscriber.rows >= 0 and subscriber.bytes >= 0, subscriber  # noqa: PT018 - one invariant
        was_holding = subscriber.held_since_ms is not None
        subscriber.held_ms, subscriber.held_since_ms = subscriber.held_back_ms(now_ms), None
        subscriber.channel.take(subscriber_id, subscriber.bytes, now_ms)
        return was_holding

    def on_more(self, waited_for: Offset) -> None:
        """There are committed rows at or above an offset that a subscriber waited for."""
        if self.end is not None and self.end <= waited_for:
            self.end = None  # `due` stays: the next read is a small one.

    def on_tick(self, now_ms: int) -> list[SubscriberId]:
        """Drop subscribers that have rows and took none for too long; return them."""
        stalled = [
            member
            for member in self.subscribers.values()
            if member.rows and now_ms - member.channel.moved_ms >= self.limits.stall_ms_max
        ]
        for member in stalled:
            self._forget(member.id)
            self.gone[member.id] = FollowerGone(Retriable, self._stalled(member, now_ms))
        return [member.id for member in stalled]

    def check(self) -> None:
        """Assert what must hold after every step."""
        seen: set[SubscriberId] = set()
        for read in self.reading.values():
            assert not seen & set(read.members), f"two reads for one: {self}"
            seen |= set(read.members)
            for member in self._present(read.members):
                assert member.next == read.begin, f"moved while it was read for: {self}"
        for member in self.subscribers.values():
            assert member.id not in self.gone, f"gone and there: {self}"
            assert (member.rows > 0) == (member.bytes > 0), f"rows without bytes: {member}"
            assert member.channel.waiting.get(member.id, 0) == member.bytes, f"miscounted: {member}"

    def _read(self, members: list[Subscriber], begin: Offset) -> ReadRows:
        above = [member.next for member in self.subscribers.values() if member.next > begin]
        ends = [member.end for member in members if member.end is not None]
        self.reads += 1
        read = ReadRows(
            number=ReadNumber(self.reads),
            begin=begin,
            bound=min([*above, *ends], default=None),
            rows_max=self.limits.read_rows_max if self.due is None else self.limits.due_rows_max,
            members={member.id: member.range for member in members},
        )
        self.reading[read.number] = read
        return read

    def _has_room(self, subscriber: Subscriber) -> bool:
        """A whole read fits, so that no channel holds more than its limit, or than one read."""
        limits, waiting = self.limits, subscriber.channel.bytes()
        rows_fit = subscriber.rows + limits.read_rows_max <= limits.channel_rows_max
        bytes_fit = waiting + limits.read_bytes_max <= limits.channel_bytes_max
        return (not subscriber.rows or rows_fit) and (not waiting or bytes_fit)

    def _hold(self, full: Subscriber, now_ms: int) -> int:
        """How long to wait for one with a full channel; 0 if others waited long enough for it."""
        if full.held_since_ms is None:
            full.held_since_ms = now_ms
        waited_ms = now_ms - full.held_since_ms
        left_ms = self.limits.hold_ms_max - full.held_back_ms(now_ms)
        # As long again as was waited already: the waits double.
        return max(0, min(max(self.limits.backoff_ms, waited_ms), left_ms))

    def _forget(self, subscriber_id: SubscriberId) -> None:
        subscriber = self.subscribers.pop(subscriber_id, None)
        if subscriber is not None:
            subscriber.channel.leave(subscriber_id)

    def _present(self, members: Iterable[SubscriberId]) -> list[Subscriber]:
        return [self.subscribers[id_] for id_ in members if id_ in self.subscribers]

    def _stalled(self, subscriber: Subscriber, now_ms: int) -> str:
        waited_s = (now_ms - subscriber.channel.moved_ms) / 1000
        return (
            f"a live reader of journal {self.key.journal!r} was dropped\n"
            f"  keys {subscriber.range}: it took none of its {subscriber.rows} rows for "
            f"{waited_s:.0f} s\n"
            f"  limit: {self.limits.stall_ms_max / 1000:.0f} s (live_stall_ms_max)\n"
            "  to fix: read on from the last offset you have, and take rows as they come"
        )
