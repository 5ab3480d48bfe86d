"""Readers of topics that are kept for the next read, and what they read.

A journal is mostly read on from where the last read ended. So a reader stays where it is, with the
rows it has and did not return, and the next read from there gets it again.

Invariant: a reader is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Received

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import Retriable
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_limits import Stored
from millrace.journal.kafka import kafka_client
from millrace.journal.kafka.kafka_messages import Headers
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.limits import MIB

_PARTITION: Final = 0
_WAIT_S: Final = 0.5
_FIRST_ROWS: Final = 64
_ROWS: Final = 4096
_FIRST_FRAMES: Final = 4
_FETCH_BYTES: Final = 4 * MIB
"""About how many bytes of rows are decoded at once."""
# What passes by itself: a topic just made, a cluster just started, a connection just lost.
_PASSING: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the names that the client gives them
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
    KafkaError.OFFSET_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class JournalTopic:
    """A partition of a topic."""

    topic: str
    partition: int = _PARTITION
    journal: JournalId | None = None
    """As whose rows it is read; two journals may show one topic of others."""
    is_framed: bool = False
    """Whether a message may have many rows."""


def kafka_offset_of(message: Received) -> KafkaOffset:
    """The Kafka offset of a message."""
    offset = message.offset()
    assert offset is not None
    return KafkaOffset(offset)


def headers_of(messages: Sequence[Received]) -> list[Headers]:
    """The headers of messages; the client gives them as lists of pairs."""
    return cast("list[Headers]", [message.headers() or [] for message in messages])


class TopicReader:
    """A consumer with a position in a topic."""

    def __init__(self, servers: str, settings: kafka_client.Settings, config: Config) -> None:
        self._servers = servers
        self._config = config
        self._consumer = Consumer({**settings, "error_cb": self._on_trouble})
        self.trouble: str | None = None
        """The last thing that was wrong with the cluster, since it last answered."""
        self.spot: JournalTopic | None = None
        self.next_offset: Offset | None = None
        """The journal's offset that it reads next, if that is known."""
        self.rows: Stored | None = None
        """The last rows that it read."""
        self.end: KafkaOffset | None = None
        """The end of the topic, if it has been reached."""
        self.is_read_up = False
        """Whether it has read what there was to read."""
        self._rests_at: KafkaOffset | None = None
        self._message_bytes: int | None = None
        """About how large the last messages were."""

    def seek(self, spot: JournalTopic, kafka_offset: KafkaOffset) -> None:
        """Go to a Kafka offset of a topic, or to its first one if that is higher."""
        self._consumer.assign([TopicPartition(spot.topic, spot.partition, kafka_offset)])
        self.spot, self.rows, self.next_offset, self.end = spot, None, None, None
        self.is_read_up, self._rests_at, self._message_bytes = False, None, None

    def count_max(self, before: int, left: int) -> int:
        """How many messages to take: few at first, since a reader may need no more."""
        if self._message_bytes is not None:
            fitting = max(1, _FETCH_BYTES // self._message_bytes)
        else:
            fitting = _FIRST_FRAMES if self.spot is not None and self.spot.is_framed else _ROWS
        return min(left, _ROWS if before else _FIRST_ROWS, fitting)

    def on_messages(self, count: int, size: int) -> None:
        """So many messages had so many bytes of rows."""
        self._message_bytes = max(1, size // max(1, count))

    def rest(self) -> None:
        """Ask Kafka for nothing until it reads on.

        A reader at the end of a topic would ask fifty times a second, and hold up its next topic.
        """
        if self.spot is None or self._rests_at is not None:
            return
        where = TopicPartition(self.spot.topic, self.spot.partition)
        with contextlib.suppress(KafkaException):
            (there,) = self._consumer.position([where])
            if there.offset >= 0:
                self._consumer.unassign()
                self._rests_at, self.end = KafkaOffset(there.offset), None

    def take(self, count_max: int, deadline: float) -> list[Received]:
        """Some messages from its position on; none if there are none up to the deadline.

        Raises `Retriable` then, unless the end of the topic had been reached.
        """
        while True:
            messages = self._some(count_max, max(0.0, deadline - time.monotonic()))
            if messages:
                return messages
            if time.monotonic() >= deadline:
                if self.end is not None:
                    return []
                topic = self.spot.topic if self.spot else "nothing"
                trouble = self.trouble or "no answer"
                raise kafka_client.unanswered(
                    f"reading {topic}", self._servers, self._config, trouble
                )

    def take_to_end(self, count_max: int, beyond: KafkaOffset, deadline: float) -> list[Received]:
        """Some messages; none at the end of the topic, which is beyond a Kafka offset."""
        while True:
            is_there = self.end is not None and self.end > beyond
            left = 0.0 if is_there else max(0.0, deadline - time.monotonic())
            messages = self._some(count_max, left)
            if messages or (self.end is not None and self.end > beyond):
                return messages
            if time.monotonic() >= deadline:
                topic = self.spot.topic if self.spot else "nothing"
                trouble = self.trouble or f"no end beyond {beyond}"
                raise kafka_client.unanswered(
                    f"reading {topic}", self._servers, self._config, trouble
                )

    def bounds(self, spot: JournalTopic, deadline: float) -> tuple[KafkaOffset, KafkaOffset]:
        """The first Kafka offset of a topic that is not deleted, and its committed end."""
        where = TopicPartition(spot.topic, spot.partition)
        while True:
            left = deadline - time.monotonic()
            try:
                low, high = self._consumer.get_watermark_offsets(where, timeout=max(0.01, left))
            except KafkaException as error:
                if left <= 0 or error.args[0].code() not in _PASSING:
                    doing = f"looking at {spot.topic}"
                    raise kafka_client.translated(
                        error, doing, self._servers, self._config
                    ) from error
                time.sleep(0.02)
            else:
                return KafkaOffset(low), KafkaOffset(high)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _some(self, count_max: int, timeout_s: float) -> list[Received]:
        """The messages that are there; if there are none, the next one."""
        if self._rests_at is not None:
            assert self.spot is not None
            where = TopicPartition(self.spot.topic, self.spot.partition, self._rests_at)
            self._consumer.assign([where])
            self._rests_at = None
        messages = self._consumer.consume(count_max, 0)
        if not messages:
            # `consume` would wait for all of them.
            first = self._consumer.poll(min(_WAIT_S, timeout_s))
            if first is not None:
                messages = [first, *self._consumer.consume(max(1, count_max - 1), 0)]
        if [message for message in messages if message.error() is not None]:
            return [message for message in messages if self._is_message(message)]
        if messages:
            self.end = self.trouble = None
        return messages

    def _is_message(self, message: Received) -> bool:
        error = message.error()
        if error is None:
            self.end = self.trouble = None
            return True
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            self.end, self.trouble = kafka_offset_of(message), None
        elif error.code() not in _PASSING:
            doing = f"reading {message.topic()}"
            raise kafka_client.translated(KafkaException(error), doing, self._servers, self._config)
        return False

    def _on_trouble(self, error: KafkaError) -> None:
        self.end, self.trouble = None, f"{error.name()}: {error.str()}"


class TopicReaders:
    """The readers of one broker."""

    def __init__(
        self, servers: str, group: str, config: Config, more: kafka_client.Settings | None = None
    ) -> None:
        self._servers = servers
        self._settings = {**kafka_client.consuming(servers, group, config), **(more or {})}
        self._config = config
        self._idle: list[TopicReader] = []
        self._changing = threading.Lock()
        self._is_closed = False

    @contextlib.contextmanager
    def reader(self, spot: JournalTopic, offset: Offset | None) -> Iterator[TopicReader]:
        """A reader, the one that can read on at this offset if there is one."""
        reader = self._choose(spot, offset)
        is_fine = False
        try:
            yield reader
            is_fine = True
        except GeneratorExit:
            is_fine = True
            raise
        finally:
            if is_fine and (reader.is_read_up or reader.end is not None):
                reader.rest()
            self._give_back(reader, is_fine=is_fine)

    def deadline(self) -> float:
        """When a call that begins now has taken too long."""
        return time.monotonic() + ms(self._config.kafka_timeout) / 1000

    def drop(self) -> None:
        """Close the idle readers."""
        with self._changing:
            gone, self._idle = self._idle, []
        for reader in gone:
            reader.close()

    def close(self) -> None:
        """Close all readers; those in use when they are given back."""
        self._is_closed = True
        self.drop()

    def _choose(self, spot: JournalTopic, offset: Offset | None) -> TopicReader:
        if self._is_closed:
            raise Retriable("the broker was closed\n  to fix: open it again")
        with self._changing:
            for number, reader in enumerate(self._idle):
                if offset is not None and reader.spot == spot and _reads_on(reader, offset):
                    return self._idle.pop(number)
            if len(self._idle) >= self._config.kafka_readers_max or (offset is None and self._idle):
                return self._idle.pop(0)
        return TopicReader(self._servers, self._settings, self._config)

    def _give_back(self, reader: TopicReader, *, is_fine: bool) -> None:
        gone = reader
        with self._changing:
            if is_fine and not self._is_closed:
                self._idle.append(reader)
                if len(self._idle) <= self._config.kafka_readers_max:
                    return
                gone = self._idle.pop(0)
        gone.close()


def _reads_on(reader: TopicReader, offset: Offset) -> bool:
    rows = reader.rows
    return reader.next_offset == offset or (rows is not None and rows.first <= offset < rows.next)
