"""Rows are found in a topic with frames and messages, and readers that are done ask for nothing.

The topic is one of the cluster that Kafka's client has within itself for tests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from millrace.config import Config
from millrace.errors import DataLost
from millrace.journal.core.book import Journal
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag, ProducerId, Stamp, stamp_rows
from millrace.journal.kafka import kafka_messages
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.topic_readers import JournalTopic, TopicReaders
from millrace.journal.kafka.topic_reading import Fetching, lost

SCHEMA = pa.schema([("x", pa.int64())])
SPOT = JournalTopic("t", journal=JournalId(1), is_framed=True)
CONFIG = Config().with_options(kafka_timeout=60, gone_after=60)


@dataclass
class Topic:
    """A topic that grows."""

    producer: Producer
    readers: TopicReaders
    end: int = 0

    def write(self, count: int, *, is_framed: bool = True) -> None:
        stamp = Stamp(
            first_offset=Offset(self.end),
            producer=ProducerId(5),
            first_clock=Clock(self.end + 1),
            flag=Flag.OUTSIDE,
        )
        values = pa.array(range(self.end, self.end + count), pa.int64())
        rows = stamp_rows(pa.record_batch([values], schema=SCHEMA), stamp)
        messages = kafka_messages.outgoing(rows, self.end)
        if is_framed:
            messages = kafka_messages.outgoing_frames(rows, self.end, 2**20)
        for value, key, headers, _ in messages:
            pairs: list[tuple[str, str | bytes | None]] = [*headers]
            self.producer.produce("t", value, key, partition=0, headers=pairs)
        self.producer.flush()
        self.end += count

    def journal(self) -> Journal:
        return Journal(
            id=JournalId(1),
            name="j",
            schema=SCHEMA,
            labels={},
            created_at_ms=0,
            start=Offset(0),
            end=Offset(self.end),
            rows=self.end,
        )

    def fetching(self) -> Fetching:
        return Fetching(self.readers, CONFIG, self.missing)

    def missing(self, journal: Journal, offset: Offset) -> DataLost:
        return lost(journal, offset, "t")


@pytest.fixture
def topic() -> Iterator[Topic]:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": "made here",
        "test.mock.num.brokers": 1,
        "linger.ms": 0,
        "log_level": 0,
    }
    producer = Producer(settings)
    brokers = producer.list_topics(timeout=60).brokers.values()
    servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    made = Topic(producer, TopicReaders(servers, "g", CONFIG))
    yield made
    made.readers.close()


def test_every_row_is_found_among_frames_messages_and_messages_of_others(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_messages, "FRAME_BYTES_TARGET", 80)
    chance = random.Random(1)  # noqa: S311 - repeatable
    while topic.end < 1500:
        topic.write(chance.randrange(1, 90), is_framed=chance.random() < 0.8)
        if chance.random() < 0.3:
            topic.producer.produce("t", b"foreign", partition=0)
    journal, fetching = topic.journal(), topic.fetching()
    for _ in range(40):
        if chance.random() < 0.6:
            fetching = topic.fetching()  # It knows nothing.
        offset, wanted = Offset(chance.randrange(topic.end)), chance.choice([1, 30, 300])
        found: list[int] = []
        for stored in fetching.ranges(journal, SPOT, offset):
            assert isinstance(stored.content, pa.RecordBatch)
            assert stored.rows_before == stored.first <= offset + len(found) < stored.next
            found += stored.content["x"].to_pylist()[offset + len(found) - stored.first :]
            if len(found) >= wanted:
                break
        assert len(found) >= min(wanted, topic.end - offset)
        assert found == list(range(offset, offset + len(found)))


def test_a_journal_is_cut_before_the_frame_with_the_first_row_that_stays(topic: Topic) -> None:
    for _ in range(30):
        topic.write(50)
    located = [
        topic.fetching().locate(topic.journal(), SPOT, Offset(offset))
        for offset in (0, 49, 50, 777, 1499, 1500)
    ]
    assert located == [KafkaOffset(number) for number in (0, 0, 1, 15, 29, 30)]


def test_a_reader_that_has_read_all_asks_for_nothing_and_reads_on_later(topic: Topic) -> None:
    fetching = topic.fetching()
    for number in range(5):
        topic.write(20)
        (rows,) = fetching.ranges(topic.journal(), SPOT, Offset(20 * number))
        assert (rows.first, rows.next) == (20 * number, 20 * number + 20)
        (reader,) = topic.readers._idle
        assert reader._consumer.assignment() == []
    again = list(fetching.ranges(topic.journal(), SPOT, Offset(80)))
    assert [rows.first for rows in again] == [80], "the last rows are still here"
    assert reader._consumer.assignment() == []
