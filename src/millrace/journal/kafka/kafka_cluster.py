"""The ways in which a broker speaks with its cluster, and how it takes it over."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.errors import BrokerStopped, MillraceError, UserError
from millrace.journal.core.book import Book
from millrace.journal.core.values import KafkaPlace
from millrace.journal.kafka import book_records, kafka_client
from millrace.journal.kafka.book_records import StateTopicContent, writer_counter
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.topic_readers import JournalTopic, TopicReader, TopicReaders
from millrace.journal.kafka.topic_writer import TopicWriter
from millrace.journal.kafka.topics import Topics

_LOAD_RECORDS: Final = 10_000
_ANYWHERE: Final = KafkaOffset(-1)
_FENCES: Final = 8
"""How many writers are fenced at a time."""
_LOOK_S: Final = 0.02
_ROW_S: Final = 0.1
"""A transaction follows the last one if it begins this soon after it."""
_ROW_MIN: Final = 8
"""So many transactions in a row are worth a second producer."""
_PAUSE_S: Final = 30.0
"""For so long there is one producer after a second one could not be opened."""
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Topics, the one producer, and readers."""

    place: KafkaPlace
    config: Config
    topics: Topics
    writer: TopicWriter
    readers: TopicReaders

    @classmethod
    def at(
        cls, servers: str, name: str, config: Config, reading: kafka_client.Settings | None
    ) -> Cluster:
        """Find the cluster, and make the state topic if it is missing."""
        topics = Topics(servers, name, config)
        topics.prepare()
        return cls(
            place=KafkaPlace(servers=servers, name=name, cluster_id=topics.cluster_id()),
            config=config,
            topics=topics,
            writer=TopicWriter(servers, name, topics.state, config),
            readers=TopicReaders(servers, f"millrace-{name}", config, reading),
        )

    def take_over(self) -> StateTopicContent:
        """Fence the earlier writer, and read what it left.

        Raises `UserError` if the cluster's transactions do not do what they should: a transaction
        is begun and aborted, and a read of committed records must not return anything of it.
        """
        self.writer.open()
        records = self._records(beyond=self.writer.probe(), fences=True)
        if book_records.PROBE in records:
            raise UserError(
                f"Kafka at {self.place.servers} cannot be used for work that is done exactly once\n"
                "  found: a record of an aborted transaction came back from a read of committed "
                "ones\n  to fix: use a cluster whose transactions work"
            )
        return book_records.load(records, where=f"topic {self.topics.state}")

    def read_state(self, *, beyond: KafkaOffset = _ANYWHERE) -> StateTopicContent:
        """The current content of the state topic; at least what is before a Kafka offset."""
        return book_records.load(self._records(beyond=beyond), where=f"topic {self.topics.state}")

    def fence(self, writers: Iterable[str]) -> None:
        """End the transactions of writers: aborted, or completed if they were being committed.

        They can begin no other: each has an id that only its own process initialises, once.
        """
        with ThreadPoolExecutor(_FENCES) as pool:
            list(pool.map(self._fence, writers))

    def _fence(self, writer: str) -> None:
        place = self.place
        other = TopicWriter(
            place.servers, place.name, self.topics.state, self.config, writer=writer
        )
        other.open()
        other.close()

    def close(self) -> None:
        """Close the connections to the cluster."""
        self.writer.close()
        self.readers.close()

    def _records(self, *, beyond: KafkaOffset, fences: bool = False) -> dict[bytes, bytes]:
        """The last record of each key, read to an end beyond a Kafka offset.

        A read ends before the first open transaction. That is one of a writer, which enlisted
        before it, so the writers that were found are fenced, and the read goes on.
        """
        spot = JournalTopic(self.topics.state)
        records: dict[bytes, bytes] = {}
        fenced: set[str] = set()
        with self.readers.reader(spot, None) as reader:
            reader.seek(spot, KafkaOffset(0))
            deadline = self.readers.deadline()
            while True:
                _take_records(reader, records, deadline)
                new = book_records.writers_in(records) - fenced if fences else set()
                if new:
                    self.fence(sorted(new))
                    fenced |= new
                    deadline = self.readers.deadline()
                elif reader.end is not None and reader.end > beyond:
                    return records
                elif time.monotonic() > deadline:
                    trouble = f"no end beyond {beyond}"
                    servers, doing = self.place.servers, f"reading {spot.topic}"
                    raise kafka_client.unanswered(doing, servers, self.config, trouble)
                else:
                    time.sleep(_LOOK_S)


def _take_records(reader: TopicReader, records: dict[bytes, bytes], deadline: float) -> None:
    """Read on to the current end."""
    while messages := reader.take_to_end(_LOAD_RECORDS, _ANYWHERE, deadline):
        for message in messages:
            key, value = message.key() or b"", message.value()
            if value is None:
                records.pop(key, None)
            else:
                records[key] = value


class OwnerProducers:
    """Says which producer makes the owner's next transaction. For one thread at a time.

    Kafka answers a commit before it has ended the transaction in every topic. Until then a producer
    of the same id can begin no other, and Kafka's client asks again only 20 ms later. So the next
    transaction is made under a second id meanwhile.

    Invariant: transactions are made one after the other, whichever id they have. The second id is
    random and recorded as that of a writer, in a transaction of the first, before it is used: the
    next owner finds it, and fences it before it decides.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._second: TopicWriter | None = None
        self._second_id = ""
        self._is_enlisted = self._is_turn_of_second = False
        self._in_a_row = 0
        self._ended_at = self._not_before = 0.0

    def next(self, draft: Book, epoch: int) -> TopicWriter:
        """The producer of the next transaction, which saves this draft.

        The draft gets the record of the second producer, if that is new; `epoch` is the owner's.
        """
        now = time.monotonic()
        self._in_a_row = self._in_a_row + 1 if now - self._ended_at < _ROW_S else 0
        if self._second is None and self._in_a_row >= _ROW_MIN and now >= self._not_before:
            self._open()
        if self._second is None:
            return self._cluster.writer
        if not self._is_enlisted:
            draft.counters.put(writer_counter(epoch, self._second_id), 0)
            return self._cluster.writer
        return self._second if self._is_turn_of_second else self._cluster.writer

    def on_committed(self) -> None:
        """The transaction is committed: the next one is the other producer's."""
        self._is_enlisted = self._second is not None
        self._is_turn_of_second = self._is_enlisted and not self._is_turn_of_second
        self._ended_at = time.monotonic()

    def forget(self) -> None:
        """The second producer is fenced, or it is no longer needed."""
        second, self._second = self._second, None
        self._is_enlisted = self._is_turn_of_second = False
        if second is not None:
            second.close()

    def _open(self) -> None:
        place, writer = self._cluster.place, secrets.token_hex(8)
        second = TopicWriter(
            place.servers,
            place.name,
            self._cluster.topics.state,
            self._cluster.config,
            writer=writer,
        )
        try:
            second.open()
        except BrokerStopped:
            raise
        except MillraceError as error:
            _log.info("the owner goes on with one producer: %s", error)
            self._not_before = time.monotonic() + _PAUSE_S
            return
        self._second, self._second_id = second, writer
