"""The Kafka broker: decides as the other brokers do, and keeps everything in a Kafka cluster.

What is decided on a draft becomes one Kafka transaction: the rows in their journals' topics, and
everything else as records of one compacted topic. At opening that topic is read, and the old
owner's producer is fenced by its transactional id.

Invariant: the book is what the state topic says, as of the last transaction that this broker made.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final, Self

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import BrokerStopped, MillraceError, Retriable
from millrace.faults import fault
from millrace.journal.book_broker import Times
from millrace.journal.book_reader import out_of_range
from millrace.journal.core.book import (
    NEXT_JOURNAL,
    OWN_PRODUCER,
    Book,
    FileContent,
    Journal,
    RowBlock,
)
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_limits import Stored
from millrace.journal.core.values import Commit, JournalInfo, Publish, Published, SegmentFile
from millrace.journal.embedded import folder_lock, folder_takeover
from millrace.journal.kafka import (
    adopted_files,
    book_records,
    kafka_client,
    kafka_messages,
    message_rows,
)
from millrace.journal.kafka.book_records import Record, StateTopicContent
from millrace.journal.kafka.granting_broker import GrantingBroker, forget_old_writers
from millrace.journal.kafka.granting_commit import GrantingGroupCommit
from millrace.journal.kafka.kafka_cluster import Cluster, OwnerProducers
from millrace.journal.kafka.offset_points import KafkaOffset, OffsetPoint, first_guess
from millrace.journal.kafka.topic_reading import Fetching, lost
from millrace.journal.kafka.topic_writer import TopicBatch
from millrace.journal.kafka.topics import has_frames, plain_spot
from millrace.journal.row_files import ADOPTED
from millrace.storage.store import storage_errors

LOCK: Final = "owner.lock"
EPOCH: Final = "owner_epoch"
_log: Final = logging.getLogger(__name__)


class KafkaBroker(GrantingBroker):
    """Journals in a Kafka cluster, driven by this process."""

    def __init__(
        self, root: str, lock: int, cluster: Cluster, config: Config, times: Times
    ) -> None:
        """Use `KafkaBroker.open`."""
        super().__init__(cluster, config, times)
        limit = config.journal_commit_bytes_max
        self._producers = OwnerProducers(cluster)
        self._granting = GrantingGroupCommit(
            self._book, self._save, limit, self._remove_due, self._recover, self._note
        )
        self._group_commit = self._granting
        self._begin_granting()
        self._root = root
        self._lock = lock
        self._fetching = Fetching(cluster.readers, config, self._missing)
        self._is_new = False
        self._removed_files: list[str] = []
        self._due: Book | None = None
        self._epoch = 0
        self._load_book(cluster.take_over())
        if self._is_new:
            cluster.topics.refuse_lost_state()
        self._own_producer()
        self._epoch = self._group_commit.run(self._begin_epoch)
        self._clear()

    @classmethod
    def open(
        cls,
        url: str,
        folder: str,
        config: Config | None = None,
        *,
        times: Times | None = None,
        reading: kafka_client.Settings | None = None,
    ) -> Self:
        """Open a workspace's journals in a cluster; make them if they are missing.

        Args:
            url: `kafka://host:port[,host:port...][/name]`; without a name the workspace keeps one
                of its own in the folder.
            folder: a folder of this host: the name, and files that wait to be adopted.
            config: limits.
            times: where the time comes from.
            reading: settings of Kafka's for readers, on top of those made here.

        Raises `AlreadyOwned` while another process of this host has the folder open. On another
        host, or with another folder, opening takes over: the old owner is fenced.
        """
        address, config = kafka_client.KafkaAddress.parse(url), config or Config()
        root = os.path.abspath(folder)
        with storage_errors(f"opening {root}"):
            folder_takeover.make_folders(os.path.join(root, ADOPTED))
            lock = folder_lock.lock(os.path.join(root, LOCK))
        cluster: Cluster | None = None
        try:
            name = address.name or kafka_client.name_in(root)
            cluster = Cluster.at(address.servers, name, config, reading)
            broker = cls(root, lock, cluster, config, times or Times())
        except BaseException:
            if cluster is not None:
                cluster.close()
            os.close(lock)
            raise
        _log.info("opened the journals %s of %s, epoch %s", name, address.servers, broker.epoch)
        return broker

    @property
    def epoch(self) -> int:
        """How often these journals have been opened: the owner's epoch."""
        return self._epoch

    # Journals.
    def create(
        self, name: str, schema: pa.Schema, labels: Mapping[str, str] | None = None
    ) -> JournalInfo:
        """See `Broker.create`. With the label `kafka.topic`, a plain topic that others write."""
        message_rows.check(schema)
        has_frames(name, labels or {})
        spot = plain_spot(labels or {})
        if spot is not None:
            self._check_plain(spot)
        return super().create(name, schema, labels)

    def create_many(
        self, names: Sequence[str], schema: pa.Schema, labels: Sequence[Mapping[str, str]] = ()
    ) -> tuple[JournalInfo, ...]:
        """See `Broker.create_many`."""
        message_rows.check(schema)
        for some in labels:
            has_frames("", some)
        for spot in filter(None, map(plain_spot, labels)):
            self._check_plain(spot)
        return super().create_many(names, schema, labels)

    def adoption_folder(self) -> str:
        """See `Broker.adoption_folder`."""
        return os.path.join(self._root, ADOPTED)

    def direct_folder(self) -> str | None:
        """See `Broker.direct_folder`: rows are in Kafka, see `direct_cluster`."""
        return None

    def tidy(self) -> None:
        """See `Broker.tidy`: delete topics and files that nothing refers to."""
        self._group_commit.pause(self._clear)
        oldest = self._times.wall_ns() / 1e9 - ms(self._config.unfinished_grace) / 1000
        adopted_files.sweep(
            self.adoption_folder(), oldest, lambda path: bool(self._book.adopted.get(path))
        )

    def close(self) -> None:
        """See `Broker.close`."""
        if self._lock < 0:
            return
        self._stop_granting()
        with contextlib.suppress(BrokerStopped):
            self._group_commit.pause(
                lambda: self._group_commit.stop("the broker was closed\n  to fix: open it")
            )
        self._producers.forget()
        self._cluster.close()
        os.close(self._lock)
        self._lock = -1

    # Storing.
    def _save(self, draft: Book) -> None:
        topics = self._cluster.topics
        topics.make([journal for journal in _made(draft) if plain_spot(journal.labels) is None])
        fault("kafka.create.after_topics")
        batches = [
            TopicBatch(topics.of(block.journal), self._messages(block)) for block in draft.blocks
        ]
        removed = list(self._removed_files)
        # Before the records: it may be one of them.
        writer = self._producers.next(draft, self._epoch)
        try:
            kafka_offsets = writer.publish(
                batches, self._records(draft, removed), self._groups(draft)
            )
        except MillraceError:
            if writer.is_lost:
                self._granting.lose()
            raise
        self._producers.on_committed()
        self._is_new = False
        for number, kafka_offset in kafka_offsets.items():
            block = draft.blocks[number]
            self._fetching.learn(block.journal.id, OffsetPoint(block.first, kafka_offset))
        for path in removed:
            self._book.adopted.own.pop(path, None)
            self._removed_files.remove(path)
        self._due = draft

    def _messages(self, block: RowBlock) -> Iterator[kafka_messages.KafkaMessage]:
        """Made when they are sent: adopted files may be large."""
        content = block.content
        if isinstance(content, FileContent):
            content = adopted_files.read(content, block.journal.schema)
        assert isinstance(content, pa.RecordBatch), block.journal.name
        if has_frames(block.journal.name, block.journal.labels):
            most = self._config.kafka_message_bytes_max
            yield from kafka_messages.outgoing_frames(content, block.rows_before, most)
        else:
            yield from kafka_messages.outgoing(content, block.rows_before)

    def _records(self, draft: Book, removed: Sequence[str]) -> Iterable[Record]:
        if self._is_new:
            yield book_records.format_record()
        ids = [changed.id for changed in filter(None, draft.journals.own.values())]
        known = {changed: self._fetching.points(changed).last() for changed in ids}
        points = {id_: point for id_, point in known.items() if point is not None}
        yield from book_records.changes(draft, points)
        yield from (book_records.forgotten_file(path) for path in removed)
        for journal in self._moved(draft):
            if plain_spot(journal.labels) is not None:
                # A group will read on from its offset: keep the clock there.
                lowest = min((draft.groups.get(journal.id) or {}).values())
                yield book_records.extent(journal, self._fetching.points(journal.id).below(lowest))

    def _groups(self, draft: Book) -> dict[str, dict[str, KafkaOffset]]:
        """Groups that moved, with the Kafka offsets that Kafka's own tools show."""
        assert draft.groups.below is not None
        moved: dict[str, dict[str, KafkaOffset]] = {}
        for journal in self._moved(draft):
            spot = self._cluster.topics.spot(journal)
            before = draft.groups.below.get(journal.id) or {}
            for group, offset in (draft.groups.own[journal.id] or {}).items():
                if before.get(group) == offset or spot.partition:
                    continue
                kafka_offset = KafkaOffset(offset)
                if plain_spot(journal.labels) is None:
                    points = self._fetching.points(journal.id)
                    kafka_offset = first_guess(
                        points, offset, KafkaOffset(0), is_framed=spot.is_framed
                    )
                moved.setdefault(group, {})[spot.topic] = kafka_offset
        return moved

    def _moved(self, draft: Book) -> list[Journal]:
        """The journals in which groups were moved on."""
        if not draft.groups.own:
            return []
        gone = {journal.id for journal in draft.deleted}
        ids = {id_ for id_, groups in draft.groups.own.items() if groups and id_ not in gone}
        return [journal for _, journal in self._book.journals.all() if journal.id in ids]

    def _remove_due(self) -> None:
        """Remove what the last transaction made useless; what fails now is left to `tidy`.

        After the book has taken it over: a reader that misses rows finds there that they are gone.
        """
        due, self._due = self._due, None
        if due is not None:
            with contextlib.suppress(MillraceError):
                self._remove(due)

    def _remove(self, draft: Book) -> None:
        for path in [path for path, taken in draft.adopted.own.items() if taken]:
            if adopted_files.remove(path):
                self._removed_files.append(path)
        for journal in draft.deleted:
            self._fetching.forget(journal.id)
        own = [deleted for deleted in draft.deleted if plain_spot(deleted.labels) is None]
        self._cluster.topics.delete([self._cluster.topics.of(deleted) for deleted in own])
        for journal in draft.truncated:
            self._cut(journal)

    def _cut(self, journal: Journal) -> None:
        spot = self._cluster.topics.own_spot(journal)
        self._cluster.topics.cut(spot, self._fetching.locate(journal, spot, journal.start))
        self._fetching.forget(journal.id, journal.start)

    def _clear(self) -> None:
        """Delete the topics of no journal, and files that were adopted before."""
        topics = self._cluster.topics
        known = [topics.of(journal) for _, journal in self._book.journals.all()]
        last = JournalId(self._book.count(NEXT_JOURNAL))
        with contextlib.suppress(Retriable):
            topics.delete(topics.leftovers(known, last))
        for path, _ in list(self._book.adopted.all()):
            if path not in self._removed_files and adopted_files.remove(path):
                self._removed_files.append(path)

    def _recover(self) -> None:
        """Find out what became of the last transaction, after the cluster had been lost."""
        self._cluster.readers.drop()
        self._producers.forget()
        # Checked first: taking over would fence a broker that took over from this one meanwhile.
        self._check_epoch(self._cluster.read_state())
        kept = self._cluster.take_over()
        self._check_epoch(kept)
        self._load_book(kept)
        self._forget_writers()
        # It is not known here which journals the last transaction moved.
        self._moves.forget()

    def _begin_epoch(self, book: Book) -> int:
        epoch = book.raise_count(EPOCH)
        forget_old_writers(book, [name for name, _ in self._book.counters.all()], epoch)
        return epoch

    def _check_epoch(self, kept: StateTopicContent) -> None:
        epoch = kept.book.count(EPOCH)
        if epoch != self._epoch:
            raise BrokerStopped(
                "another process took these journals over while Kafka was out of reach\n"
                f"  epoch here: {self._epoch}, found: {epoch}\n  to fix: join the new owner"
            )

    def _load_book(self, kept: StateTopicContent) -> None:
        folder_takeover.with_capped_leases(kept.book, self._times)
        with self._group_commit.settled:
            for field in fields(Book):
                setattr(self._book, field.name, getattr(kept.book, field.name))
            self._changes.forget(self._book)
        for id_, point in kept.points.items():
            self._fetching.learn(id_, point)
        self._is_new = not kept.book.count(OWN_PRODUCER)

    def _publish(self, request: Publish, *, again_is_fine: bool) -> Published:
        self._anchor_commits(request.commits)
        return super()._publish(request, again_is_fine=again_is_fine)

    def _anchor_commits(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            journal = self._book.journal(commit.journal)
            spot = plain_spot(journal.labels)
            if spot is not None:
                # Others may remove the rows before it, from which its clock would be counted.
                spot = replace(spot, journal=journal.id)
                self._fetching.anchor_at(journal, spot, Offset(commit.offset))

    def _check_rows(self, users: pa.RecordBatch, *, where: str) -> None:
        # Here, and not when they are sent: others may be in the same transaction.
        message_rows.check_rows(users, self._config.kafka_message_bytes_max, where=where)

    def _check_file(self, file: SegmentFile) -> SegmentFile:
        adopted_files.check(file, self.adoption_folder())
        return replace(file, path=os.path.abspath(file.path))

    # Reading.
    def _ranges(self, journal: Journal, offset: Offset) -> Iterable[Stored]:
        spot = plain_spot(journal.labels)
        if spot is not None:
            return self._fetching.plain_ranges(journal, replace(spot, journal=journal.id), offset)
        return self._fetching.ranges(journal, self._cluster.topics.own_spot(journal), offset)

    def _load(self, journal: Journal, stored: Stored) -> Sequence[pa.RecordBatch]:
        assert isinstance(stored.content, pa.RecordBatch), journal.name
        return [stored.content]

    def _missing(self, journal: Journal, offset: Offset) -> MillraceError:
        """Why rows are not there: truncated or deleted meanwhile, or lost."""
        now = self._book.journal(journal.name)
        if now.id == journal.id and offset >= now.start:
            return lost(journal, offset, self._cluster.topics.of(journal))
        return out_of_range(now, offset)


def _made(draft: Book) -> list[Journal]:
    """The journals that a draft makes."""
    below = draft.journals.below
    assert below is not None
    there = {name: below.get(name) for name in draft.journals.own}
    return [
        journal
        for name, journal in draft.journals.own.items()
        if journal is not None and ((before := there[name]) is None or before.id != journal.id)
    ]
