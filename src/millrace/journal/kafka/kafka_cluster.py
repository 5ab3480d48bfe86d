"""The ways in which a broker speaks with its cluster, and how it takes it over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.core.values import KafkaPlace
from millrace.journal.kafka import book_records, kafka_client
from millrace.journal.kafka.book_records import StateTopicContent
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.topic_readers import JournalTopic, TopicReaders
from millrace.journal.kafka.topic_writer import TopicWriter
from millrace.journal.kafka.topics import Topics

_LOAD_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Topics, the one producer, and readers."""

    place: KafkaPlace
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
        records = self._records(beyond=self.writer.probe())
        if book_records.PROBE in records:
            raise UserError(
                f"Kafka at {self.place.servers} cannot be used for work that is done exactly once\n"
                "  found: a record of an aborted transaction came back from a read of committed "
                "ones\n  to fix: use a cluster whose transactions work"
            )
        return book_records.load(records, where=f"topic {self.topics.state}")

    def read_state(self) -> StateTopicContent:
        """The current content of the state topic."""
        return book_records.load(
            self._records(beyond=KafkaOffset(-1)), where=f"topic {self.topics.state}"
        )

    def close(self) -> None:
        """Close the connections to the cluster."""
        self.writer.close()
        self.readers.close()

    def _records(self, *, beyond: KafkaOffset) -> dict[bytes, bytes]:
        """The last record of each key, read to an end beyond a Kafka offset."""
        spot = JournalTopic(self.topics.state)
        records: dict[bytes, bytes] = {}
        with self.readers.reader(spot, None) as reader:
            reader.seek(spot, KafkaOffset(0))
            while messages := reader.take_to_end(_LOAD_RECORDS, beyond, self.readers.deadline()):
                for message in messages:
                    key, value = message.key() or b"", message.value()
                    if value is None:
                        records.pop(key, None)
                    else:
                        records[key] = value
        return records
