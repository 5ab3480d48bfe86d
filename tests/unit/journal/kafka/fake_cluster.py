"""A Kafka cluster in memory, as far as transactions go: ids, epochs, and what readers may see.

Invariant, as Kafka's: a transaction of an id that was initialised since never commits, and a reader
of committed records stops at the first record of an open transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from millrace.config import Config
from millrace.errors import BrokerStopped, KafkaUnreachable
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.values import KafkaPlace
from millrace.journal.kafka import kafka_messages
from millrace.journal.kafka.book_records import PROBE, Record
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.journal.kafka.kafka_cluster import Cluster
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.topic_readers import JournalTopic
from millrace.journal.kafka.topic_writer import TopicBatch
from millrace.journal.kafka.topics import state_topic

NAME = "sim"
STATE = state_topic(NAME)


@dataclass(eq=False)
class FakeTransaction:
    """A transaction and its end: None while it is open."""

    is_committed: bool | None = None


@dataclass(eq=False)
class Entry:
    """A record of a topic."""

    transaction: FakeTransaction
    key: bytes | None
    value: bytes | None
    offset: int | None = None
    """The journal's, of a row."""


@dataclass
class FakeKafka:
    """Topics, and the transactional ids that were ever initialised."""

    topics: dict[str, list[Entry]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    open: dict[str, FakeTransaction] = field(default_factory=dict)
    between: Callable[[str, str], None] = lambda _who, _step: None
    """Called between the steps of a transaction, with the id: anything may happen meanwhile."""

    def initialise(self, id_: str) -> int:
        self.epochs[id_] = self.epochs.get(id_, 0) + 1
        earlier = self.open.pop(id_, None)
        if earlier is not None:
            earlier.is_committed = False
        return self.epochs[id_]

    def committed(self, topic: str) -> list[Entry]:
        """What a reader of committed records sees."""
        seen = []
        for entry in self.topics.get(topic, []):
            if entry.transaction.is_committed is None:
                break
            if entry.transaction.is_committed:
                seen.append(entry)
        return seen

    def end(self, topic: str) -> int:
        entries = self.topics.get(topic, [])
        is_open = (n for n, entry in enumerate(entries) if entry.transaction.is_committed is None)
        return next(is_open, len(entries))


class FakeWriter:
    """In the place of `TopicWriter`."""

    kafka: FakeKafka

    def __init__(
        self, _servers: str, name: str, topic: str, _config: Config, *, writer: str | None = None
    ) -> None:
        self._id = f"millrace-{name}" + ("" if writer is None else f"-{writer}")
        self._topic = topic
        self._epoch: int | None = None

    @property
    def is_lost(self) -> bool:
        return self._epoch is None

    def open(self) -> None:
        self._epoch = self.kafka.initialise(self._id)

    def close(self) -> None:
        self._epoch = None

    def probe(self) -> KafkaOffset:
        self._check()
        entries = self.kafka.topics.setdefault(self._topic, [])
        entries.append(Entry(FakeTransaction(is_committed=False), PROBE, b"aborted"))
        return KafkaOffset(len(entries) - 1)

    def publish(
        self,
        batches: Sequence[TopicBatch],
        records: Iterable[Record],
        _groups: Mapping[str, Mapping[str, KafkaOffset]],
    ) -> dict[int, KafkaOffset]:
        kafka, transaction = self.kafka, FakeTransaction()
        kafka.between(self._id, "begin")
        self._check()
        kafka.open[self._id] = transaction
        for record in records:
            self._add(self._topic, Entry(transaction, record.key, record.value))
        kafka.between(self._id, "middle")
        self._check()
        offsets = {}
        for number, batch in enumerate(batches):
            offsets[number] = KafkaOffset(len(kafka.topics.get(batch.topic, [])))
            for message in batch.messages:
                at = kafka_messages.offset_of(message.headers)
                self._add(batch.topic, Entry(transaction, message.key, message.value, at))
        kafka.between(self._id, "commit")
        self._check()
        transaction.is_committed = True
        del kafka.open[self._id]
        kafka.between(self._id, "end")
        return offsets

    def _add(self, topic: str, entry: Entry) -> None:
        self.kafka.topics.setdefault(topic, []).append(entry)

    def _check(self) -> None:
        if self._epoch is None:
            raise KafkaUnreachable("closed\n  to fix: open it")
        if self.kafka.epochs[self._id] != self._epoch:
            raise BrokerStopped("another process took these journals over\n  to fix: join it")

    def lose_answer(self) -> None:
        """As after a commit whose answer never came."""
        self._epoch = None
        raise KafkaUnreachable("no answer\n  to fix: ask again")


@dataclass
class _FakeMessage:
    entry: Entry

    def key(self) -> bytes | None:
        return self.entry.key

    def value(self) -> bytes | None:
        return self.entry.value


@dataclass
class _FakeReader:
    kafka: FakeKafka
    at: int = 0
    end: int | None = None

    def seek(self, _spot: object, _offset: int) -> None:
        self.at = 0

    def take_to_end(self, _count: int, _beyond: int, _deadline: float) -> list[_FakeMessage]:
        end = self.kafka.end(STATE)
        found = self.kafka.topics.get(STATE, [])[self.at : end]
        self.at = self.end = end
        return [_FakeMessage(entry) for entry in found if entry.transaction.is_committed]


@dataclass
class _FakeReaders:
    kafka: FakeKafka

    @contextmanager
    def reader(self, _spot: object, _offset: Offset | None) -> Iterator[_FakeReader]:
        yield _FakeReader(self.kafka)

    def deadline(self) -> float:
        return 0.0

    def drop(self) -> None:
        pass

    close = drop


class _FakeTopics:
    state = STATE

    def of(self, journal: Any) -> str:  # noqa: ANN401 - a journal
        return f"{NAME}.{journal.name}"

    spot = of

    def own_spot(self, journal: Any) -> JournalTopic:  # noqa: ANN401 - a journal
        return JournalTopic(self.of(journal))

    def make(self, _journals: object) -> None:
        pass

    delete = make

    def refuse_lost_state(self) -> None:
        pass

    def leftovers(self, *_: object) -> list[str]:
        return []


def owner_of(kafka: FakeKafka, folder: str, config: Config) -> KafkaBroker:
    """An owner that takes the cluster over."""
    cluster = Cluster(
        place=KafkaPlace(servers="fake:1", name=NAME, cluster_id="fake"),
        config=config,
        topics=_FakeTopics(),  # type: ignore[arg-type]
        writer=FakeWriter("fake:1", NAME, STATE, config),  # type: ignore[arg-type]
        readers=_FakeReaders(kafka),  # type: ignore[arg-type]
    )
    from millrace.journal.book_broker import Times

    return KafkaBroker(folder, -1, cluster, config, Times())
