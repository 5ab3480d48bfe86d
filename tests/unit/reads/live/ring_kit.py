"""A journal and a ring of its readers as a plain model, one step at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from millrace.journal.core.journal_names import JournalId, Offset
from millrace.keys.key_ranges import KeyRange
from millrace.reads.live.ring import (
    AtEnd,
    FollowerGone,
    ReadRows,
    ReplayDone,
    Ring,
    RingKey,
    RingLimits,
    Step,
    TakeRows,
)
from millrace.reads.live.waiting_rows import Channel, RowsSize, SubscriberId

KEY = RingKey(journal="j", id=JournalId(1), keys=("k",))
LIMITS = RingLimits(
    due_rows_max=10,
    read_rows_max=4,
    read_bytes_max=40,
    channel_rows_max=8,
    channel_bytes_max=80,
    backoff_ms=1,
    hold_ms_max=10,
    stall_ms_max=100,
)
Row = tuple[int, int]
"""Offset and key."""


@dataclass(kw_only=True)
class Reader:
    """What a subscriber wanted and got."""

    id: SubscriberId
    range: KeyRange
    begin: int
    end: int | None
    got: list[Row] = field(default_factory=list)
    at: int = 0
    """Everything below was handed out."""


@dataclass
class Story:
    """Rows, readers, reads on their way and what waits in channels."""

    limits: RingLimits = LIMITS
    ring: Ring = field(init=False)
    rows: list[Row] = field(default_factory=list)
    end: int = 0
    now_ms: int = 0
    readers: dict[SubscriberId, Reader] = field(default_factory=dict)
    channels: dict[SubscriberId, deque[tuple[list[Row], int]]] = field(default_factory=dict)
    reading: dict[int, tuple[ReadRows, int]] = field(default_factory=dict)
    """Reads on their way, and where committed rows ended when they began."""
    joined: int = 0

    def __post_init__(self) -> None:
        self.ring = Ring(KEY, self.limits)

    def append(self, *keys: int, gap: int = 0) -> None:
        """Rows with these keys, and behind them offsets that no row has."""
        for key in keys:
            self.rows.append((self.end, key))
            self.end += 1
        self.end += gap

    def join(self, range_: KeyRange, begin: int = 0, end: int | None = None) -> SubscriberId:
        self.joined += 1
        who = SubscriberId(self.joined)
        bound = None if end is None else Offset(end)
        channel = Channel(self.now_ms)
        self.ring.on_join(who, range_, Offset(begin), end=bound, channel=channel)
        self.readers[who] = Reader(id=who, range=range_, begin=begin, end=end, at=begin)
        self.channels[who] = deque()
        self.ring.check()
        return who

    def leave(self, who: SubscriberId) -> None:
        self.ring.on_leave(who)
        del self.readers[who], self.channels[who]
        self.ring.check()

    def want(self, who: SubscriberId) -> Step:
        """One step of a reader, as a shell does it; a read stays on its way."""
        step = self.ring.on_ready(who, self.now_ms)
        match step:
            case TakeRows():
                rows, at = self.channels[who].popleft()
                self.ring.on_taken(who, size(rows), self.now_ms)
                self.readers[who].got += rows
                self.readers[who].at = at
            case ReadRows():
                self.reading[step.number] = (step, self.end)
            case AtEnd(offset):
                self.readers[who].at = offset
                if self.end > offset:
                    self.ring.on_more(offset)
            case ReplayDone():
                self.readers[who].at = self.ring.subscribers[who].next
            case _:
                pass
        self.ring.check()
        return step

    def finish(self, number: int) -> None:
        """A read that was on its way comes back."""
        read, end = self.reading.pop(number)
        most = self.limits.read_rows_max
        if read.bound is not None:
            most = min(most, read.bound - read.begin)
        there = [row for row in self.rows if read.begin <= row[0] < end]
        found = there[:most]
        after = found[-1][0] + 1 if len(found) < len(there) else max(end, read.begin)
        if read.bound is not None and after > read.bound:
            found, after = [row for row in found if row[0] < read.bound], read.bound
        shares = {
            who: [row for row in found if range_.contains(row[1])]
            for who, range_ in read.members.items()
        }
        given = self.ring.on_read(
            read.number,
            Offset(after),
            Offset(end),
            {who: size(rows) for who, rows in shares.items()},
            now_ms=self.now_ms,
        )
        for who in given:
            self.channels[who].append((shares[who], after))
        self.ring.check()

    def drive(self, who: SubscriberId) -> None:
        """The same, with a read that comes back at once."""
        step = self.want(who)
        if isinstance(step, ReadRows):
            self.finish(step.number)

    def cancel(self, number: int) -> None:
        self.ring.on_cancelled(self.reading.pop(number)[0].number)
        self.ring.check()

    def tick(self) -> list[SubscriberId]:
        dropped = self.ring.on_tick(self.now_ms)
        self.ring.check()
        return dropped

    def run(self, who: SubscriberId) -> Step:
        """Let one reader take all there is for now."""
        while True:
            step = self.want(who)
            match step:
                case ReadRows():
                    self.finish(step.number)
                case AtEnd(offset) if self.end > offset:
                    continue
                case AtEnd() | ReplayDone() | FollowerGone():
                    return step
                case _:
                    self.now_ms += 1

    def expected(self, who: SubscriberId, upto: int) -> list[Row]:
        mine = self.readers[who]
        return [
            row for row in self.rows if mine.begin <= row[0] < upto and mine.range.contains(row[1])
        ]


def size(rows: list[Row]) -> RowsSize:
    return RowsSize(len(rows), 10 * len(rows))
