"""What is different about journals that are topics of others: they go as far as others say.

Invariant: nothing is ever written to, or deleted from, a topic of others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import JournalUnknown, UserError
from millrace.journal.book_broker import BookBroker, Times
from millrace.journal.core.book import VERSION, Book, Journal
from millrace.journal.core.call_numbers import CallNumber
from millrace.journal.core.committed_rows import RolledBackRange
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.publish_decisions import Part
from millrace.journal.core.values import (
    Adopt,
    Append,
    Appended,
    Fetched,
    Isolation,
    Lease,
    MovedJournals,
    Position,
    Truncated,
)
from millrace.journal.kafka.kafka_cluster import Cluster
from millrace.journal.kafka.topic_readers import JournalTopic
from millrace.journal.kafka.topics import TOPIC_LABEL, plain_spot
from millrace.wakeup import WakeUp

_LOOK_S: Final = 0.1
_NONE_YET: Final = -1


class PlainTopicsBroker(BookBroker):
    """A broker some of whose journals others write."""

    def __init__(self, cluster: Cluster, config: Config, times: Times) -> None:
        super().__init__(Book(), config, times)
        self._cluster = cluster
        self._plain: tuple[int, tuple[Journal, ...]] = (_NONE_YET, ())
        """The journals that others write, as of a version of all journals."""
        self._seen: dict[JournalId, tuple[Offset, Offset]] = {}
        """The end of each of them that was last reported as a move."""

    # Reading: where they end is for others to say.
    def start_offset(self, name: str) -> Offset:
        """See `Broker.start_offset`."""
        self._look([name])
        return super().start_offset(name)

    def end_offset(self, name: str, *, isolation: Isolation = "committed") -> Offset:
        """See `Broker.end_offset`."""
        self._look([name])
        return super().end_offset(name, isolation=isolation)

    def wait_for_rows(self, after: Mapping[str, int], *, timeout_s: float) -> bool:
        """See `Broker.wait_for_rows`. Plain topics are polled."""
        deadline = time.monotonic() + timeout_s
        is_plain = any(plain_spot(self._book.journal(name).labels) for name in after)
        if not is_plain:
            return super().wait_for_rows(after, timeout_s=timeout_s)
        while True:
            left = deadline - time.monotonic()
            if super().wait_for_rows(after, timeout_s=max(0.0, min(_LOOK_S, left))):
                return True
            if left <= 0:
                return False

    def moved(self, since: int, *, timeout_s: float, stop: WakeUp | None = None) -> MovedJournals:
        """See `Broker.moved`. Plain topics are polled."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._look_for_moves()
            left = deadline - time.monotonic()
            moved = super().moved(since, timeout_s=max(0.0, min(_LOOK_S, left)), stop=stop)
            if moved.journals != () or left <= 0 or (stop is not None and stop.is_stopped):
                return moved

    def truncate_before(self, name: str, offset: int, *, force: bool = False) -> Truncated:
        """See `Broker.truncate_before`."""
        refuse_plain(self._book.journal(name), "truncated here")
        return super().truncate_before(name, offset, force=force)

    def truncate_committed(self, name: str) -> Truncated:
        """See `Broker.truncate_committed`. Plain topics are left to their writers."""
        if plain_spot(self._book.journal(name).labels) is not None:
            return Truncated(removed=0, start_offset=self.start_offset(name))
        return super().truncate_committed(name)

    def _fetch(
        self, name: str, offset: Offset, rows_max: int, bytes_max: int, isolation: Isolation
    ) -> Fetched:
        self._look([name])
        fetched = super()._fetch(name, offset, rows_max, bytes_max, isolation)
        journal = self._book.journal(name)
        if plain_spot(journal.labels) is None or fetched.next_offset >= fetched.end_offset:
            return fetched
        # Offsets at the end that are no rows: a reader that is there has read everything.
        as_seen = replace(journal, end=fetched.end_offset)
        is_more = next(iter(self._ranges(as_seen, fetched.next_offset)), None) is not None
        return fetched if is_more else replace(fetched, next_offset=fetched.end_offset)

    def _position(self, group: str, name: str) -> Position:
        self._look([name])
        return super()._position(group, name)

    def _look(self, names: Iterable[str]) -> None:
        """See how far plain topics go by now."""
        for name in names:
            journal = self._book.journal(name)
            spot = plain_spot(journal.labels)
            if spot is None:
                continue
            readers = self._cluster.readers
            with readers.reader(spot, None) as reader:
                low, high = reader.bounds(spot, readers.deadline())
            with self._group_commit.settled:
                now = self._book.journal(name)
                seen = replace(now, start=Offset(low), end=Offset(high), rows=int(high))
                self._book.journals.put(name, seen)

    def _look_for_moves(self) -> None:
        """Report plain topics that grew, or were cut by their writers."""
        version = self._book.count(VERSION)
        if self._plain[0] != version:
            there = (candidate for _, candidate in self._book.journals.all())
            plain = tuple(candidate for candidate in there if TOPIC_LABEL in candidate.labels)
            self._plain = (version, plain)
        for journal in self._plain[1]:
            with contextlib.suppress(JournalUnknown):
                self._look([journal.name])
                now = self._book.journal(journal.name)
                if now.id == journal.id and self._seen.get(now.id) != (now.start, now.end):
                    self._seen[now.id] = (now.start, now.end)
                    self._moves.note([now.id])

    def _check_plain(self, spot: JournalTopic) -> None:
        partitions = self._cluster.topics.partitions(spot.topic)
        if spot.partition >= partitions:
            raise UserError(
                f"label {TOPIC_LABEL!r} names partition {spot.partition} of topic {spot.topic}\n"
                f"  found: {partitions} partitions\n  to fix: name a topic that is there"
            )

    # Writing: not here.
    def append_stamped(
        self,
        name: str,
        rows: pa.RecordBatch | pa.Table,
        *,
        lease: Lease | None = None,
        call: CallNumber | None = None,
    ) -> Appended:
        """See `Broker.append_stamped`."""
        refuse_plain(self._book.journal(name), "written here")
        return super().append_stamped(name, rows, lease=lease, call=call)

    def _prepare(self, part: Append | Adopt) -> Part:
        refuse_plain(self._book.journal(part.journal), "written here")
        return super()._prepare(part)

    def _rows_between(
        self, journal: Journal, begin: Offset, end: Offset, rolled_back: Sequence[RolledBackRange]
    ) -> int:
        """An estimate for topics of others, whose offsets may have gaps."""
        if plain_spot(journal.labels) is not None:
            return max(0, end - begin)
        return super()._rows_between(journal, begin, end, rolled_back)


def refuse_plain(journal: Journal, doing: str) -> None:
    """Refuse to change a topic of others."""
    if plain_spot(journal.labels) is not None:
        raise UserError(
            f"journal {journal.name!r} is topic {journal.labels[TOPIC_LABEL]}, which others "
            f"write; it cannot be {doing}\n  to fix: create a journal of your own"
        )
