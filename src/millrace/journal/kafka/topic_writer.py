"""A transactional producer, of a broker or of a writer: a draft becomes one Kafka transaction.

Invariant: a transaction that was not committed was aborted, or its outcome is unknown. Then
nothing more is written until a new producer, under the same transactional id, has found out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Delivered

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import BrokerStopped, KafkaUnreachable, MillraceError, UserError
from millrace.faults import fault
from millrace.journal.kafka import kafka_client
from millrace.journal.kafka.book_records import PROBE, Record
from millrace.journal.kafka.kafka_messages import KafkaMessage
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.topic_readers import kafka_offset_of

OnDelivery = Callable[[KafkaError | None, Delivered], None]
_PARTITION: Final = 0
_NO_TRANSACTIONS: Final = {
    KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001 - the name the client gives it
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_POLL_S: Final = 0.05
_EVERY_MESSAGES: Final = 1000


@dataclass(frozen=True, slots=True)
class TopicBatch:
    """Messages for a topic, in order."""

    topic: str
    messages: Iterable[KafkaMessage]


@dataclass(slots=True)
class _Sent:
    """The Kafka offset of the first message of each batch."""

    kafka_offsets: dict[int, KafkaOffset] = field(default_factory=dict)

    def first_of(self, number: int, error: KafkaError | None, message: Delivered) -> None:
        if error is None:
            self.kafka_offsets[number] = kafka_offset_of(message)


class TopicWriter:
    """A transactional producer; used by one thread at a time."""

    def __init__(
        self,
        servers: str,
        name: str,
        state_topic: str,
        config: Config,
        *,
        writer: str | None = None,
        more: kafka_client.Settings | None = None,
    ) -> None:
        """`writer` is the process that writes transactions which the owner grants to it.

        `more` are settings of the client's, on top of those made here.
        """
        self._servers = servers
        self._id = f"millrace-{name}" if writer is None else f"millrace-{name}-{writer}"
        self._name = name
        self._topic = state_topic
        self._config = config
        self._more = more or {}
        self._producer: Producer | None = None
        self._groups: dict[str, object] = {}

    @property
    def is_lost(self) -> bool:
        """Whether a new producer is needed."""
        return self._producer is None

    def open(self) -> None:
        """Take over: fence the earlier writer of this id and abort its open transaction.

        Raises `UserError` if the cluster has no transactions.
        """
        settings = kafka_client.producing(self._servers, self._id, self._config) | self._more
        producer = Producer(settings)
        try:
            # Kafka refuses a call before it is connected: try again half a second later.
            producer.list_topics(timeout=self._call_s())
            producer.init_transactions(self._call_s())
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() not in _NO_TRANSACTIONS and not cause.fatal():
                raise self._translated(error, "taking the journals over") from error
            raise UserError(
                f"Kafka at {self._servers} cannot be used for work that is done exactly once\n"
                f"  it refused a transactional producer: {cause.name()}: {cause.str()}\n"
                "  to fix: allow transactions there, or use another cluster"
            ) from error
        self._producer = producer

    def probe(self) -> KafkaOffset:
        """Write a record to the state topic and abort it; its Kafka offset."""
        producer, sent = self._open_one(), _Sent()
        with kafka_client.reported("trying a transaction", self._servers, self._config):
            producer.begin_transaction()
            producer.produce(
                self._topic,
                b"aborted",
                PROBE,
                partition=_PARTITION,
                on_delivery=lambda error, message: sent.first_of(0, error, message),
            )
            producer.flush(self._call_s())
            producer.abort_transaction(self._call_s())
        if 0 not in sent.kafka_offsets:
            raise self._unanswered("trying a transaction")
        return sent.kafka_offsets[0]

    def publish(
        self,
        batches: Iterable[TopicBatch],
        records: Iterable[Record],
        groups: Mapping[str, Mapping[str, KafkaOffset]],
    ) -> dict[int, KafkaOffset]:
        """Write everything in one transaction; the offset of each batch's first message, by number.

        `groups` are the next Kafka offsets of topics; other tools see them as the group's offsets.
        After an error, `is_lost` says whether the transaction may have been carried out.
        """
        producer, sent = self._open_one(), _Sent()
        is_ending = False
        try:
            producer.begin_transaction()
            # First, so that Kafka is told of all the topics at once.
            for record in records:
                self._produce(producer, self._topic, KafkaMessage(record.value, record.key, []))
            for number, batch in enumerate(batches):
                self._send(producer, batch, number, sent)
            fault("kafka.publish.after_produce")
            self._flush(producer)
            for group, kafka_offsets in groups.items():
                self._send_offsets(producer, group, kafka_offsets)
            fault("kafka.publish.before_commit")
            is_ending = True
            producer.commit_transaction(self._call_s())
            fault("kafka.publish.after_commit")
        except KafkaException as error:
            raise self._given_up(producer, error, is_ending=is_ending) from error
        except MillraceError:
            self._abort(producer)
            raise
        except BaseException:
            self._producer = None
            raise
        return sent.kafka_offsets

    def close(self) -> None:
        """Drop the producer."""
        self._producer = None

    def _send(self, producer: Producer, batch: TopicBatch, number: int, sent: _Sent) -> None:
        messages = iter(batch.messages)
        for message in islice(messages, 1):
            self._produce(
                producer,
                batch.topic,
                message,
                on_delivery=lambda error, done: sent.first_of(number, error, done),
            )
        while some := list(islice(messages, _EVERY_MESSAGES)):
            for message in some:
                value, key, headers, partition = message
                try:
                    producer.produce(
                        batch.topic, value, key, partition=partition, headers=cast("Any", headers)
                    )
                except BufferError:
                    self._produce(producer, batch.topic, message)
            producer.poll(0)

    def _produce(
        self,
        producer: Producer,
        topic: str,
        message: KafkaMessage,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        deadline = time.monotonic() + self._call_s()
        while True:
            try:
                producer.produce(
                    topic,
                    message.value,
                    message.key,
                    partition=message.partition,
                    headers=cast("Any", message.headers),
                    on_delivery=on_delivery,
                )
            except BufferError:
                if time.monotonic() > deadline:
                    raise self._unanswered("writing rows") from None
                producer.poll(_POLL_S)
            else:
                return

    def _flush(self, producer: Producer) -> None:
        """Wait until all is acknowledged, for as long as there is some progress."""
        left, deadline = len(producer), time.monotonic() + self._call_s()
        while producer.flush(_POLL_S):
            if len(producer) < left:
                left, deadline = len(producer), time.monotonic() + self._call_s()
            elif time.monotonic() > deadline:
                raise self._unanswered("writing rows")

    def _send_offsets(
        self, producer: Producer, group: str, kafka_offsets: Mapping[str, KafkaOffset]
    ) -> None:
        group_offsets = [
            TopicPartition(topic, _PARTITION, kafka_offset)
            for topic, kafka_offset in kafka_offsets.items()
        ]
        producer.send_offsets_to_transaction(group_offsets, self._group(group), self._call_s())

    def _group(self, group: str) -> object:
        """The metadata of a group, for Kafka."""
        if group not in self._groups:
            group_id = f"millrace-{self._name}/{group}"
            settings = kafka_client.consuming(self._servers, group_id, self._config)
            consumer = Consumer(settings)
            self._groups[group] = consumer.consumer_group_metadata()
            consumer.close()
        return self._groups[group]

    def _given_up(
        self, producer: Producer, error: KafkaException, *, is_ending: bool
    ) -> MillraceError:
        """Abort after an error of Kafka's; what to tell the caller."""
        cause = error.args[0]
        translated = self._translated(error, "publishing a transaction")
        if isinstance(translated, BrokerStopped):
            return translated
        if cause.fatal() or (is_ending and not cause.txn_requires_abort()):
            self._producer = None
            return KafkaUnreachable(
                f"{translated}\n  it may have been carried out\n"
                "  to fix: look whether it was, or ask again with `expected`"
            )
        self._abort(producer)
        return translated

    def _abort(self, producer: Producer) -> None:
        try:
            producer.abort_transaction(self._config.kafka_abort_ms_max / 1000)
        except KafkaException:
            # The next producer's first act is to abort what this one left.
            self._producer = None

    def _open_one(self) -> Producer:
        if self._producer is None:
            raise self._unanswered("publishing a transaction")
        return self._producer

    def _translated(self, error: KafkaException, doing: str) -> MillraceError:
        return kafka_client.translated(error, doing, self._servers, self._config)

    def _unanswered(self, doing: str) -> KafkaUnreachable:
        return kafka_client.unanswered(doing, self._servers, self._config)

    def _call_s(self) -> float:
        return self._config.peer_ms(ms(self._config.kafka_timeout)) / 1000
