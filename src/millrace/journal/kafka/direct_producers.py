"""Transactions in Kafka that a process makes itself, past the owner of the journals.

A producer has a transactional id of its own, which it initialises once, before it enlists at the
owner. For each transaction it asks the owner for a grant, carries it out, and says so.

Invariant: a grant is carried out by the producer that enlisted for it, and by no later one. A
producer of which it is not known that the owner has settled its last transaction is not used again.
Rows are left to the owner only if it is known that nothing of them was committed.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from millrace.config import Config
from millrace.errors import BrokerStopped, KafkaUnreachable, MillraceError, Retriable
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import KafkaPlace
from millrace.journal.core.write_grants import GrantedBlock, GrantRequest, WriteGrant
from millrace.journal.direct_reads import SpotUnreadable
from millrace.journal.kafka import kafka_messages
from millrace.journal.kafka.book_records import Record
from millrace.journal.kafka.kafka_messages import HeldRows, KafkaMessage
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.topic_writer import TopicBatch, TopicWriter
from millrace.journal.kafka.topics import state_topic

_IDLE_MAX: Final = 4
"""Producers that are kept between transactions."""
_TRIES: Final = 2
"""A producer that the owner no longer knows is replaced once."""
_FULL_S: Final = 30.0
"""For so long rows are sent after the owner had no room for another writer."""
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _EnlistedProducer:
    """A producer of this process that the owner knows."""

    id: str
    topics: TopicWriter
    number: int = 0


class DirectProducers:
    """Makes transactions that the owner grants. May be used by many threads."""

    def __init__(self, place: KafkaPlace, config: Config, owner: Broker) -> None:
        self._place, self._config, self._owner = place, config, owner
        self._idle: list[_EnlistedProducer] = []
        self._lock = threading.Lock()
        self._full_until = 0.0

    def make(self, wanted: GrantRequest, held: Sequence[HeldRows]) -> WriteGrant | None:
        """Make a transaction with these parts; None if the owner is to get the rows.

        Raises `SpotUnreadable` if that is because Kafka could not be written from here.
        """
        for _ in range(_TRIES):
            producer = self._take()
            if producer is None:
                return None
            producer.number += 1
            wanted = replace(wanted, number=producer.number)
            try:
                answer = self._owner.grant(producer.id, wanted)
            except (Retriable, BrokerStopped):
                # Nothing was begun; a grant whose answer was lost is ended by its time limit.
                producer.topics.close()
                raise
            except MillraceError:
                self._give_back(producer)
                raise
            if isinstance(answer, WriteGrant) and not answer.is_done:
                return self._made(producer, wanted, answer, held)
            if isinstance(answer, WriteGrant) or answer.reason == "busy":
                self._give_back(producer)
                return answer if isinstance(answer, WriteGrant) else None
            producer.topics.close()
        return None

    def close(self) -> None:
        """Retire the producers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for producer in idle:
            self._retire(producer)

    def _made(
        self,
        producer: _EnlistedProducer,
        wanted: GrantRequest,
        grant: WriteGrant,
        held: Sequence[HeldRows],
    ) -> WriteGrant:
        fault("kafka.direct.after_grant")
        try:
            kafka_offsets = producer.topics.publish(
                [TopicBatch(block.topic, self._messages(block, held)) for block in grant.blocks],
                [Record(key, value) for key, value in grant.records],
                {group: _kafka_offsets(offsets) for group, offsets in grant.groups.items()},
            )
        except MillraceError as error:
            self._end(producer, wanted, error)
            return grant
        fault("kafka.direct.before_settle")
        try:
            self._settle(producer, is_committed=True, kafka_offsets=kafka_offsets)
        except MillraceError as error:
            # It is committed. The owner finds that out by itself, the next owner as well.
            _log.info("transaction %s of writer %s: %s", producer.number, producer.id, error)
            producer.topics.close()
        else:
            self._give_back(producer)
        return grant

    def _messages(self, block: GrantedBlock, held: Sequence[HeldRows]) -> Iterator[KafkaMessage]:
        """The messages of rows that are here, or that the owner made."""
        rows = block.rows
        if block.part is not None:
            assert block.stamp is not None, block.topic
            rows = held[block.part].stored(block.stamp)
        assert rows is not None, block.topic
        if block.is_framed:
            most = self._config.kafka_message_bytes_max
            yield from kafka_messages.outgoing_frames(rows, block.rows_before, most)
        else:
            yield from kafka_messages.outgoing(rows, block.rows_before)

    def _end(self, producer: _EnlistedProducer, wanted: GrantRequest, error: MillraceError) -> None:
        """Find out what became of a transaction that failed: raises unless it is committed."""
        if not producer.topics.is_lost and not isinstance(error, BrokerStopped):
            with contextlib.suppress(MillraceError):  # Else it is ended by its time limit.
                self._settle(producer, is_committed=False, kafka_offsets={})
            self._retire(producer)
            raise SpotUnreadable(str(error)) from error
        producer.topics.close()
        is_repeatable = wanted.sequence is not None or wanted.stamped is not None
        try:
            is_committed = self._owner.outcome(producer.id, producer.number)
        except MillraceError as unknown:
            if is_repeatable:
                raise SpotUnreadable(str(error)) from unknown
            raise _in_doubt(f"{error}\n{unknown}") from unknown
        if is_committed:
            return
        if is_committed is None and not is_repeatable:
            raise _in_doubt(str(error)) from error
        raise SpotUnreadable(str(error)) from error

    def _settle(
        self,
        producer: _EnlistedProducer,
        *,
        is_committed: bool,
        kafka_offsets: Mapping[int, KafkaOffset],
    ) -> None:
        self._owner.settle(
            producer.id,
            producer.number,
            is_committed=is_committed,
            kafka_offsets={block: int(offset) for block, offset in kafka_offsets.items()},
        )

    def _take(self) -> _EnlistedProducer | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        if time.monotonic() < self._full_until:
            return None
        writer, place = secrets.token_hex(8), self._place
        topics = TopicWriter(
            place.servers, place.name, state_topic(place.name), self._config, writer=writer
        )
        try:
            topics.open()
        except MillraceError as error:
            raise SpotUnreadable(str(error)) from error
        fault("kafka.direct.before_enlist")
        if not self._owner.enlist(writer):
            topics.close()
            self._full_until = time.monotonic() + _FULL_S
            return None
        fault("kafka.direct.after_enlist")
        return _EnlistedProducer(writer, topics)

    def _give_back(self, producer: _EnlistedProducer) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append(producer)
                return
        self._retire(producer)

    def _retire(self, producer: _EnlistedProducer) -> None:
        producer.topics.close()
        try:
            self._owner.retire(producer.id)
        except MillraceError as error:
            # The next owner fences it; until then it takes a place.
            _log.debug("writer %s is not retired: %s", producer.id, error)


def _kafka_offsets(offsets: Mapping[str, int]) -> dict[str, KafkaOffset]:
    return {topic: KafkaOffset(offset) for topic, offset in offsets.items()}


def _in_doubt(why: str) -> KafkaUnreachable:
    return KafkaUnreachable(
        f"{why}\n  the transaction may have been carried out\n"
        "  to fix: look whether its rows are there before you ask again; with a producer and a\n"
        "  sequence a publish can be asked again by itself"
    )
