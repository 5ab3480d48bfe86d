"""Transactions that writers in other processes make themselves, as the owner decides.

A writer initialises a transactional id of its own, which no other process ever uses, and enlists.
The owner records that in a transaction of its own, and only then grants anything to it. So the next
owner, which has fenced this one and reads that record, fences the writer before it decides.

Invariant: a grant ends when its outcome is known: its writer says so, or the owner has fenced the
writer, and has read whether the number of the grant was saved.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.errors import BrokerStopped, MillraceError, UserError
from millrace.journal.core import adopt_decisions, publish_decisions
from millrace.journal.core.book import AnnouncedContent, Book, FileContent, ProducerState, RowBlock
from millrace.journal.core.call_arguments import check_journal_count
from millrace.journal.core.row_format import Flag, ProducerId
from millrace.journal.core.values import Commit, Publish
from millrace.journal.core.write_grants import (
    GrantAnswer,
    GrantedBlock,
    GrantRequest,
    WriteGrant,
)
from millrace.journal.kafka.book_records import (
    Record,
    StateTopicContent,
    writer_counter,
    writer_of,
)
from millrace.journal.kafka.granting_commit import NOT_ENLISTED, GrantingGroupCommit
from millrace.journal.kafka.located_topics import LocatingBroker
from millrace.journal.kafka.offset_points import KafkaOffset, OffsetPoint
from millrace.journal.kafka.plain_topics_broker import refuse_plain
from millrace.journal.producer import random_producer
from millrace.limits import KIB
from millrace.wakeup import WakeUp, WorkerThread

_ID: Final = re.compile(r"[0-9a-f]{16,32}")
_LOOK_S: Final = 1.0
"""How often the owner looks for grants whose writers take too long."""
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _EnlistedWriter:
    """A writer that may be granted transactions."""

    place: int
    """Which of the producers of the book is its own."""
    producer: ProducerId
    used_at: float


class GrantingBroker(LocatingBroker):
    """The half of the Kafka broker that lets others write."""

    _granting: GrantingGroupCommit
    _epoch: int

    def _begin_granting(self) -> None:
        self._writers: dict[str, _EnlistedWriter] = {}
        self._enlisting = threading.Lock()
        self._stop_looking = WakeUp()
        self._looking = WorkerThread(self._look_for_overdue, "millrace-grants")

    def enlist(self, writer: str) -> bool:
        """See `Broker.enlist`."""
        if not _ID.fullmatch(writer):
            raise UserError(f"{writer[:40]!r} names no writer\n  to fix: use the same version")
        with self._enlisting:
            if writer in self._writers:
                return True
            place = self._free_place()
            if place is None:
                return False
            counter = writer_counter(self._epoch, writer)

            def decide(book: Book) -> ProducerId:
                book.counters.put(counter, 0)
                return _producer_at(book, place)

            producer = self._group_commit.run(decide)
            self._writers[writer] = _EnlistedWriter(place, producer, time.monotonic())
            if self._looking.ident is None:
                self._looking.start()
        _log.debug("writer %s is enlisted", writer)
        return True

    def grant(self, writer: str, wanted: GrantRequest) -> GrantAnswer:
        """See `Broker.grant`."""
        enlisted = self._writers.get(writer)
        if enlisted is None:
            return NOT_ENLISTED
        enlisted.used_at = time.monotonic()
        self._check_announced(wanted)
        self._anchor_commits(wanted.commits)
        size_ms = sum(part.bytes for part in wanted.parts) // KIB
        until = time.monotonic() + (self._config.kafka_grant_ms_max + size_ms) / 1000
        counter = writer_counter(self._epoch, writer)

        def decide(book: Book) -> WriteGrant:
            return self._decided(book, wanted, enlisted.producer, counter)

        return self._granting.grant(writer, wanted.number, decide, until)

    def settle(
        self, writer: str, number: int, *, is_committed: bool, kafka_offsets: Mapping[int, int]
    ) -> None:
        """See `Broker.settle`."""
        grant = self._granting.settle(writer, number, is_committed=is_committed)
        if self._granting.is_lost:
            self._read_again()
        if grant is not None and is_committed:
            for block_number, kafka_offset in kafka_offsets.items():
                if 0 <= block_number < len(grant.draft.blocks):
                    block = grant.draft.blocks[block_number]
                    point = OffsetPoint(block.first, KafkaOffset(kafka_offset))
                    self._fetching.learn(block.journal.id, point)

    def outcome(self, writer: str, number: int) -> bool | None:
        """See `Broker.outcome`."""
        self._granting.resolve(writer, number, lambda: self._find_out(writer, number))
        if self._granting.is_lost:
            self._read_again()
        self._writers.pop(writer, None)
        with self._group_commit.settled:
            last = _last_number(self._book, writer)
        return None if last is None else last >= number

    def retire(self, writer: str) -> None:
        """See `Broker.retire`."""
        with self._enlisting:
            if writer in self._writers and not self._granting.is_granted(writer):
                del self._writers[writer]
                counter = writer_counter(self._epoch, writer)
                self._group_commit.run(lambda book: book.counters.put(counter, None))

    # Inside.
    @abstractmethod
    def _anchor_commits(self, commits: Sequence[Commit]) -> None:
        """Remember the clocks of topics of others at which groups stop."""

    @abstractmethod
    def _records(self, draft: Book, removed: Sequence[str]) -> Iterable[Record]:
        """The records of a draft."""

    @abstractmethod
    def _groups(self, draft: Book) -> dict[str, dict[str, KafkaOffset]]:
        """The Kafka offsets of groups that a draft moved."""

    @abstractmethod
    def _check_epoch(self, kept: StateTopicContent) -> None:
        """Refuse if another owner has taken over."""

    def _stop_granting(self) -> None:
        self._stop_looking.stop()

    def _forget_writers(self) -> None:
        """All of them are fenced."""
        self._writers.clear()

    def _free_place(self) -> int | None:
        """A producer of the book that no writer has, if need be that of an idle writer."""
        taken = {enlisted.place for enlisted in self._writers.values()}
        free = (place for place in range(self._config.kafka_writers_max) if place not in taken)
        place = next(free, None)
        if place is not None:
            return place
        oldest = min(self._writers, key=lambda writer: self._writers[writer].used_at)
        idle_ms = 1000 * (time.monotonic() - self._writers[oldest].used_at)
        if idle_ms < self._config.kafka_writer_idle_ms_max or self._granting.is_granted(oldest):
            return None
        gone = self._writers.pop(oldest)
        self._cluster.fence([oldest])
        return gone.place

    def _check_announced(self, request: GrantRequest) -> None:
        most = self._config.journal_transaction_journals_max
        check_journal_count(len({part.journal for part in request.parts}), most)
        run = request.stamped
        is_odd = [part.part for part in request.parts] != list(range(len(request.parts)))
        if run is not None:
            is_odd |= len(request.parts) != 1 or bool(request.commits) or run.flag is Flag.ACK
        if is_odd or not request.parts:
            raise UserError(
                "an announcement of rows that makes no sense\n"
                "  to fix: run the same version of Millrace everywhere"
            )
        for part in request.parts:
            refuse_plain(self._book.journal(part.journal), "written here")
            self._check_size(part.bytes)

    def _decided(
        self, book: Book, request: GrantRequest, producer: ProducerId, counter: str
    ) -> WriteGrant:
        published = appended = None
        if request.stamped is not None:
            (part,) = request.parts
            self._latest_calls.check(request.call)
            appended = adopt_decisions.announce_stamped(book, part, request.stamped, request.lease)
        else:
            asked = Publish(
                commits=request.commits,
                lease=request.lease,
                producer=request.producer or producer,
                sequence=request.sequence,
            )
            published = publish_decisions.publish(
                book,
                asked,
                request.parts,
                now_ns=self._times.wall_ns(),
                range_bytes=self._config.journal_range_bytes_target,
            )
        is_done = not book.is_changed()
        if not is_done:
            book.counters.put(counter, request.number)
        return WriteGrant(
            blocks=tuple(map(self._granted_block, book.blocks)),
            records=tuple((made.key, made.value) for made in self._records(book, ())),
            groups={group: dict(topics) for group, topics in self._groups(book).items()},
            published=published,
            appended=appended,
            is_done=is_done,
        )

    def _granted_block(self, block: RowBlock) -> GrantedBlock:
        spot, content = self._cluster.topics.own_spot(block.journal), block.content
        if isinstance(content, AnnouncedContent):
            return GrantedBlock(
                topic=spot.topic,
                rows_before=block.rows_before,
                part=content.part,
                stamp=content.stamp,
                is_framed=spot.is_framed,
            )
        assert not isinstance(content, FileContent), "files are not announced"
        return GrantedBlock(topic=spot.topic, rows_before=block.rows_before, rows=content)

    def _find_out(self, writer: str, number: int) -> bool:
        """Whether a transaction of a writer was committed; the writer can begin no other."""
        overdue = {grant.writer for grant in self._granting.overdue(time.monotonic())}
        self._cluster.fence(sorted({writer, *overdue}))
        kept = self._cluster.read_state(beyond=self._cluster.writer.probe())
        self._check_epoch(kept)
        last = _last_number(kept.book, writer)
        _log.info("writer %s was fenced; its transaction %s: %s", writer, number, last)
        return last is not None and last >= number

    def _read_again(self) -> None:
        """Bring the book up to date now: what a writer has committed may be missing in it."""
        self._group_commit.run(lambda _book: None)

    def _look_for_overdue(self) -> None:
        """End grants whose writers are gone, or take too long."""
        while self._stop_looking.sleep(_LOOK_S):
            try:
                for grant in self._granting.overdue(time.monotonic()):
                    self.outcome(grant.writer, grant.number)
                if self._granting.is_lost:
                    self._read_again()
            except BrokerStopped:
                return
            except MillraceError as error:
                _log.warning("a transaction of a writer is not settled yet: %s", error)


def _producer_at(book: Book, place: int) -> ProducerId:
    """A producer of the book for writers: they must not share one, nor may there be too many."""
    name = f"kafka_writer_producer/{place}"
    known = book.count(name)
    if known:
        return ProducerId(known)
    fresh = random_producer()
    book.counters.put(name, fresh)
    book.producers.put(fresh, ProducerState())
    return fresh


def _last_number(book: Book, writer: str) -> int | None:
    """The number of the last transaction that a writer committed; None if nothing is known."""
    for counter, number in book.counters.all():
        known = writer_of(counter)
        if known is not None and known[1] == writer:
            return number
    return None


def forget_old_writers(book: Book, counters: Iterable[str], epoch: int) -> None:
    """Drop the writers of owners before the last one: nobody asks for their outcomes any more."""
    for counter in counters:
        known = writer_of(counter)
        if known is not None and known[0] < epoch - 1:
            book.counters.put(counter, None)
