"""One follower in the owner: its subscriptions to all journals under a prefix, as they come and go.

Invariant: rows of each journal are handed out in offset order, from where it was begun, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Final

import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange, UserError
from millrace.journal.core.clocks import clock_at, unix_ns_of
from millrace.journal.core.journal_names import NO_JOURNAL, Offset
from millrace.journal.core.values import Fetched, JournalInfo
from millrace.keys.key_columns import key_names
from millrace.keys.key_ranges import WHOLE, KeyRange
from millrace.reads.live.follow_requests import (
    AskAgain,
    FollowEnded,
    FollowerBeat,
    FollowRequest,
    FollowStarted,
    Message,
)
from millrace.reads.live.journal_turns import JournalTurns
from millrace.reads.live.live_reads import LiveReads, Subscription, deleted
from millrace.reads.live.ring import AtEnd, ReplayDone, RingKey
from millrace.reads.live.waiting_rows import Channel
from millrace.reads.model import labels

_NEVER: Final = -1
"""A version of journals that does not exist."""
_LOOK_ABOVE_MS: Final = 20
"""How often journals of a higher priority are looked at while those of a lower one are read."""
_DUE_S_MIN: Final = 0.02
"""Rows that become due one after the other are read together, this far apart."""


class Following:
    """Hands out the rows that one follower wants. For one thread at a time."""

    def __init__(self, live: LiveReads, request: FollowRequest) -> None:
        """Begin; a request that cannot be followed is refused now."""
        self._live = live
        self._request = request
        self._known: dict[str, JournalInfo] = {}
        self._keys: dict[str, pa.RecordBatch] = {}
        self._by_schema: dict[pa.Schema, tuple[pa.RecordBatch | None, KeyRange]] = {}
        self._reading: dict[str, Subscription] = {}
        self._turns: JournalTurns[Subscription] = JournalTurns()
        self._looked_above_ms = 0
        self._reported: dict[str, int] = {}
        self._channel = Channel(live.now_ms())
        live.check()
        watched = live.broker.watch(_NEVER, prefix=request.prefix)
        self._version, self._looked_ms = watched.version, live.now_ms()
        self._check_alone(watched.journals)
        self._ends = self._resolve_ends(watched.journals)
        try:
            for info in self._chosen(watched.journals):
                self._begin(info, self._first_offset(info))
        except BaseException:
            self.close()
            raise
        self._reported = self._positions()
        self.opened = FollowStarted(at=dict(self._reported), ends=self._ends)

    @property
    def is_done(self) -> bool:
        """Whether all requested rows were handed out."""
        return self._ends is not None and not self._reading

    def next(self, wait_s: float) -> Fetched | None:
        """The next rows of one of the journals; None if none came in time, or there are no more."""
        until = monotonic() + wait_s
        while True:
            self._live.check()
            self._look_for_journals()
            fetched = self._poll()
            if fetched is not None or self.is_done:
                return fetched
            left_s = max(0.0, until - monotonic())
            if not self._wait(left_s) and not left_s:
                return None

    def moved(self) -> Mapping[str, int]:
        """The positions in journals in which it moved since the last call."""
        now = self._positions()
        changed = {name: at for name, at in now.items() if self._reported.get(name) != at}
        self._reported.update(changed)
        return changed

    def close(self) -> None:
        """Free everything that was kept for it."""
        for subscription in self._reading.values():
            subscription.close()
        self._reading.clear()
        self._turns.clear()

    def _positions(self) -> dict[str, int]:
        return {name: subscription.at for name, subscription in self._reading.items()}

    def _poll(self) -> Fetched | None:
        """Rows of the first journal that has some; journals take turns."""
        self._turns.on_time(clock_at(self._live.unix_ns()))
        while (turn := self._turns.next()) is not None:
            priority, subscription = turn
            if self._look_above(priority):
                continue
            step = subscription.poll()
            match step:
                case AtEnd():
                    self._turns.wait(priority, step)
                case ReplayDone():
                    self._turns.remove(priority)
                    subscription.close()
                    del self._reading[subscription.journal]
                case Fetched():
                    self._turns.had_turn(priority)
                    fetched = self._with_key(step)
                    if fetched is not None:
                        return fetched
        return None

    def _look_above(self, priority: int) -> bool:
        """Whether journals of higher priorities that were at their ends have rows by now."""
        waiting, now_ms = self._turns.at_end_above(priority), self._live.now_ms()
        if not waiting or now_ms - self._looked_above_ms < _LOOK_ABOVE_MS:
            return False
        self._looked_above_ms = now_ms
        return self._live.broker.wait_for_rows(waiting, timeout_s=0) and self._on_rows(waiting)

    def _with_key(self, fetched: Fetched) -> Fetched | None:
        key = self._keys.get(fetched.journal)
        if key is None:
            return fetched
        kept = [labels.with_key(batch, key) for batch in fetched.batches]
        batches = tuple(batch for batch in kept if batch.num_rows)
        if not batches:
            return None
        return replace(fetched, batches=batches)

    def _wait(self, left_s: float) -> bool:
        """Wait for rows, for a while; whether there are some."""
        broker, begun, at_end = self._live.broker, monotonic(), self._turns.at_end
        wait_s = min(left_s, self._live.config.live_watch_ms / 1000)
        due = self._turns.next_due()
        if due is not None:
            due_s = (unix_ns_of(due) - self._live.unix_ns()) / 1e9
            wait_s = min(wait_s, max(due_s, _DUE_S_MIN))
        try:
            if at_end and broker.wait_for_rows(at_end, timeout_s=wait_s):
                return self._on_rows(at_end)
        except JournalUnknown:
            self._check_deleted(broker.list(self._request.prefix))
            raise
        # Nothing to wait for, or a broker that is ending and does not wait.
        self._live.closed.wait(max(0.0, wait_s - (monotonic() - begun)))
        return False

    def _on_rows(self, waiting: Mapping[str, Offset]) -> bool:
        """Some of these journals may have rows; whether they have."""
        broker = self._live.broker
        more = [name for name, at in waiting.items() if broker.end_offset(name) > at]
        self._turns.on_rows(more)
        return bool(more)

    def _look_for_journals(self) -> None:
        """Follow new journals, and notice deleted ones."""
        broker, now_ms = self._live.broker, self._live.now_ms()
        if now_ms - self._looked_ms < self._live.config.live_watch_ms:
            return
        self._looked_ms = now_ms
        if broker.watch(_NEVER, prefix=NO_JOURNAL).version == self._version:
            return
        watched = broker.watch(_NEVER, prefix=self._request.prefix)
        self._version = watched.version
        self._check_deleted(watched.journals)
        for info in self._chosen(watched.journals):
            if info.name not in self._known and self._ends is None:
                given = self._request.begins.get(info.name)
                self._begin(info, None if given is None else Offset(given))

    def _check_deleted(self, journals: Sequence[JournalInfo]) -> None:
        ids = {info.name: info.id for info in journals}
        for name, subscription in self._reading.items():
            if ids.get(name) != self._known[name].id:
                raise deleted(name, subscription.at)

    def _chosen(self, journals: Sequence[JournalInfo]) -> list[JournalInfo]:
        if self._request.alone:
            return [info for info in journals if info.name == self._request.prefix]
        if self._ends is not None:
            return [info for info in journals if info.name in self._ends]
        return list(journals)

    def _check_alone(self, journals: Sequence[JournalInfo]) -> None:
        """Refuse an offset that is given for a prefix of several names."""
        name, names = self._request.prefix, [info.name for info in journals]
        if self._request.alone and names and name not in names:
            raise UserError(
                f"an offset was given for {name!r}, which is no journal\n"
                f"  found below it: {', '.join(names[:3])}{', ...' if names[3:] else ''}\n"
                "  to fix: name one journal, or give {journal: offset, ...}"
            )

    def _resolve_ends(self, journals: Sequence[JournalInfo]) -> Mapping[str, int] | None:
        request = self._request
        if request.ends is None and not request.until_end:
            return None
        names = [info.name for info in journals]
        missing = [name for name in request.ends or () if name not in names]
        if missing or not journals:
            name = missing[0] if missing else request.prefix
            raise JournalUnknown(
                f"no journal {name!r}\n  to fix: create it first, or follow it without an end"
            )
        if request.ends is not None:
            return dict(request.ends)
        return {name: self._live.broker.end_offset(name) for name in names}

    def _first_offset(self, info: JournalInfo) -> Offset | None:
        given = self._request.begins.get(info.name)
        if given is not None:
            return Offset(given)
        return self._live.broker.end_offset(info.name) if self._request.others == "end" else None

    def _begin(self, info: JournalInfo, given: Offset | None) -> None:
        """Follow a journal, unless its labels say that it holds no requested row."""
        self._known[info.name] = info
        request, range_, broker = self._request, self._range(info), self._live.broker
        key = self._keys.get(info.name)
        if not labels.can_hold(info, request.keys, range_, key):
            return
        start, end = broker.start_offset(info.name), None
        if self._ends is not None:
            end = Offset(self._ends[info.name])
        begin = start if given is None else given
        last = broker.end_offset(info.name, isolation="raw")
        if not start <= begin <= last:
            raise OffsetOutOfRange(
                f"offset {begin} of journal {info.name!r} "
                f"{'was truncated' if begin < start else 'is not there yet'}\n"
                f"  offsets there: {start} to {last}\n  to fix: follow it from one of these"
            )
        ring = RingKey(
            journal=info.name,
            id=info.id,
            keys=() if range_ == WHOLE else request.keys,
            replay=end is not None,
            version=request.version,
            delay_ms=request.delay_ms_of(info.name),
        )
        subscription = self._live.subscribe(ring, range_, begin, end, self._channel)
        self._reading[info.name] = subscription
        self._turns.add(subscription, request.priority_of(info.name))

    def _range(self, info: JournalInfo) -> KeyRange:
        """The range of requested hashes; a key's hash depends on the types of the columns."""
        known = self._by_schema.get(info.schema)
        if known is None:
            known = self._by_schema[info.schema] = self._key_and_range(info)
        if known[0] is not None:
            self._keys[info.name] = known[0]
        return known[1]

    def _key_and_range(self, info: JournalInfo) -> tuple[pa.RecordBatch | None, KeyRange]:
        if self._request.key is not None:
            key = labels.key_of(info, self._request.key)
            key_hash = labels.place_of(key)
            return key, KeyRange(key_hash, key_hash)
        if self._request.keys:
            key_names(info.schema, self._request.keys)
        return None, self._request.range


def messages(
    live: LiveReads, request: FollowRequest, *, is_cancelled: Callable[[], bool] = lambda: False
) -> Iterator[Message]:
    """The messages for a follower, until one stream ends."""
    beat_s = live.config.live_beat_ms / 1000
    following = Following(live, request)
    try:
        yield following.opened
        beat_at = monotonic()
        until = beat_at + live.config.live_stream_ms_max / 1000
        while not is_cancelled():
            fetched = following.next(beat_s)
            if fetched is not None:
                yield fetched
            if following.is_done:
                yield FollowEnded()
                return
            if monotonic() - beat_at >= beat_s:
                beat_at = monotonic()
                yield FollowerBeat(following.moved())
                if beat_at >= until:
                    yield AskAgain()
                    return
    finally:
        following.close()
