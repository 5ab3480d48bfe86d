"""What Kafka itself and its other clients see of journals, and what Millrace sees of theirs."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.kafka.kafka_kit import PATIENT, KafkaPlace
from tests.unit.journal.journal_kit import SCHEMA, column, publish, read_all, values, written

from millrace.errors import (
    AlreadyOwned,
    Conflict,
    DataLost,
    FormatError,
    OffsetOutOfRange,
    UnsupportedType,
    UserError,
)
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_format import Flag
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.kafka_server import KafkaServer

RAW = pa.schema([("value", pa.binary())])


def eventually(found: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + 60
    while (last := found()) != wanted:
        assert time.monotonic() < deadline, (last, wanted)
        time.sleep(0.05)


class Others:
    """Another program on the same cluster."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.settings: dict[str, Any] = {"bootstrap.servers": kafka.address}
        self.admin = AdminClient(self.settings)

    def topics(self, prefix: str = "") -> list[str]:
        return [each for each in self.admin.list_topics(timeout=20).topics if prefix in each]

    def make(self, topic: str, partitions: int = 1) -> None:
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(20)

    def write(self, topic: str, *rows: tuple[bytes, int], partition: int = 0) -> None:
        """Values with their timestamps in milliseconds."""
        producer = Producer(self.settings)
        for value, time_ms in rows:
            producer.produce(topic, value, b"k", partition, timestamp=time_ms)
        assert producer.flush(20) == 0

    def cut(self, topic: str, before: int) -> None:
        """Remove messages, as retention does."""
        for future in self.admin.delete_records([TopicPartition(topic, 0, before)]).values():
            future.result(20)

    def consumer(self, group: str) -> Consumer:
        more = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        return Consumer({**self.settings, **more, "group.id": group, "enable.auto.commit": False})

    def read(self, topic: str, count: int, group: str = "others") -> list[Any]:
        consumer = self.consumer(group)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.consume(count, 20)
        consumer.close()
        return found


@pytest.fixture
def others(kafka: KafkaServer) -> Others:
    return Others(kafka)


# Journals, seen from outside.


def test_other_clients_read_rows_as_json_and_never_uncommitted_ones(
    place: KafkaPlace, others: Others
) -> None:
    broker = place.open()
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms")), ("b", pa.binary())])
    broker.create("acme/orders", schema)
    rows = pa.record_batch(
        [pa.array([1, 2]), pa.array([5, None], pa.timestamp("ms")), pa.array([b"\xff", b""])],
        schema=schema,
    )
    broker.append("acme/orders", rows, keys=pa.array(["k1", "k2"]))
    name = (place.folder / "kafka.name").read_text()
    topic = f"millrace-{name}.1.acme-orders"
    found = others.read(topic, 2)

    assert [json.loads(each.value()) for each in found] == [
        {"id": 1, "at": 5, "b": "/w=="},
        {"id": 2, "at": None, "b": ""},
    ]
    assert [each.key() for each in found] == [b"k1", b"k2"]
    assert sorted(others.topics(name)) == [topic, f"millrace-{name}.state"]


def test_raw_bytes_are_the_message(place: KafkaPlace, others: Others) -> None:
    broker = place.open()
    broker.create("raw", RAW)
    rows = pa.record_batch({"value": pa.array([b"\x00{", None, b""])})
    broker.append("raw", rows)
    name = (place.folder / "kafka.name").read_text()

    assert [m.value() for m in others.read(f"millrace-{name}.1.raw", 3)] == [b"\x00{", None, b""]
    assert place.open().read("raw", 0).rows()["value"].to_pylist() == [b"\x00{", None, b""]


def test_groups_are_offsets_that_kafka_knows(place: KafkaPlace, others: Others) -> None:
    broker = place.open()
    for name in ("in", "out"):
        broker.create(name, SCHEMA)
    for value in range(6):
        broker.append("in", column([value]))
    publish(broker, {"out": column([0])}, ("fast", "in", 4, None))
    publish(broker, {"out": column([1])}, ("slow", "in", 2, None))

    broker = place.open()
    assert (broker.committed("fast", "in"), broker.committed("slow", "in")) == (4, 2)
    assert (broker.backlog("fast", "in"), broker.backlog("slow", "in")) == (2, 4)
    name = (place.folder / "kafka.name").read_text()
    topic = f"millrace-{name}.1.in"
    for group, expected in (("fast", [4, 5]), ("slow", [2, 3, 4, 5])):
        consumer = others.consumer(f"millrace-{name}/{group}")
        at = consumer.committed([TopicPartition(topic, 0)], timeout=20)
        consumer.assign(at)
        found = consumer.consume(len(expected), 20)
        assert [json.loads(each.value() or b"")["x"] for each in found] == expected
        consumer.close()


def test_truncation_deletes_records_and_deletion_the_topic(
    place: KafkaPlace, others: Others
) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    for value in range(10):
        broker.append("a", column([value]))
    name = (place.folder / "kafka.name").read_text()
    topic = f"millrace-{name}.1.a"
    assert broker.truncate_before("a", 7).removed == 7
    first = others.read(topic, 1)[0]

    assert json.loads(first.value())["x"] == 7
    assert read_all(place.open(), "a") == [7, 8, 9]
    broker = place.open()
    broker.delete("a")
    eventually(lambda: others.topics(f"{name}.1"), [])
    broker.create("a", SCHEMA)
    broker.append("a", column([1]))
    assert read_all(broker, "a") == [1]


def test_a_row_is_found_whatever_lies_between(place: KafkaPlace) -> None:
    place.config = PATIENT.with_options(kafka_skip_rows_max=3, kafka_points_max=4)
    broker = place.open()
    broker.create("a", SCHEMA)
    sizes = [1, 40, 1, 1, 7, 1, 1, 1, 25, 1, 1, 1, 1, 1, 3, 1]
    end = 0
    for size in sizes:
        broker.append("a", column(range(end, end + size)))
        end += size

    for first in (0, 1, 40, 43, 50, 60, end - 1):
        broker = place.open()
        assert values(broker.read("a", first, rows_max=2)) == [first, first + 1][: end - first]
    assert [values(broker.read("a", at, rows_max=1)) for at in range(end)] == [
        [at] for at in range(end)
    ]


def test_a_reader_beside_a_truncation_gets_rows_or_hears_that_they_are_truncated(
    place: KafkaPlace,
) -> None:
    place.config = PATIENT.with_options(kafka_readers_max=1, kafka_skip_rows_max=3)
    broker = place.open()
    broker.create("a", SCHEMA)
    for begin in range(0, 120, 10):
        broker.append("a", column(range(begin, begin + 10)))
    cutting = threading.Thread(
        target=lambda: [broker.truncate_before("a", at) for at in range(5, 115, 5)]
    )
    cutting.start()
    outcomes = set()
    while cutting.is_alive():
        at = broker.start_offset("a")
        try:
            found = values(broker.read("a", at, rows_max=40))
        except OffsetOutOfRange:
            outcomes.add("truncated")
        else:
            assert found == list(range(at, min(120, at + 40)))
            outcomes.add("rows")
    cutting.join()

    assert "rows" in outcomes
    assert read_all(broker, "a") == list(range(110, 120))


def test_messages_of_others_in_a_journals_topic_are_no_rows(
    place: KafkaPlace, others: Others
) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    broker.append("a", column([1, 2]))
    name = (place.folder / "kafka.name").read_text()
    others.write(f"millrace-{name}.1.a", (b"not mine", 0), (b"nor this", 0))
    broker.append("a", column([3]))

    assert read_all(broker, "a") == [1, 2, 3]
    assert read_all(place.open(), "a") == [1, 2, 3]
    assert values(place.open().read("a", 2)) == [3]


def test_rows_that_somebody_deleted_are_lost_and_never_empty(
    place: KafkaPlace, others: Others
) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    broker.append("a", column(range(5)))
    name = (place.folder / "kafka.name").read_text()
    topic = f"millrace-{name}.1.a"
    cut = others.admin.delete_records([TopicPartition(topic, 0, 3)])
    for future in cut.values():
        future.result(20)

    with pytest.raises(DataLost, match="rows of journal 'a' from offset 0 on are lost"):
        place.open().read("a", 0)
    for future in others.admin.delete_topics([f"millrace-{name}.state"]).values():
        future.result(20)
    place.close()
    eventually(lambda: others.topics(f"{name}.state"), [])
    for _ in range(2):
        with pytest.raises(DataLost, match="is gone or empty, and there are topics of journals"):
            place.open()
        # Nor is it an empty workspace if somebody made the topic again.
        if f"millrace-{name}.state" not in others.topics():
            others.make(f"millrace-{name}.state")
    assert topic in others.topics()


def test_an_adopted_file_is_deleted_and_is_not_adopted_again(place: KafkaPlace) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    file = written(broker, "one", range(5))
    content = Path(file.path).read_bytes()
    broker.adopt({"a": [file]})
    assert not Path(file.path).exists()
    place.close()
    # As if the owner had been killed before it deleted the file.
    Path(file.path).write_bytes(content)
    broker = place.open()

    assert not Path(file.path).exists()
    with pytest.raises((Conflict, DataLost)):
        broker.adopt({"a": [file]})
    broker.append("a", column([5]))
    with pytest.raises(DataLost, match="gone"):
        broker.adopt({"a": [file]})
    assert read_all(place.open(), "a") == [0, 1, 2, 3, 4, 5]


# Refusals.


def test_a_cluster_that_shows_aborted_rows_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exactly once\n  found: a record of an aborted"):
        KafkaBroker.open(
            kafka.url, str(tmp_path), PATIENT, reading={"isolation.level": "read_uncommitted"}
        )
    KafkaBroker.open(kafka.url, str(tmp_path), PATIENT).close()


def test_addresses_and_types_that_cannot_work_are_refused(
    place: KafkaPlace, tmp_path: Path
) -> None:
    for url in ("kafka://", "kafka://host", "http://a:1", "kafka://a:1/b c", "kafka://a:1,b"):
        with pytest.raises(UserError, match="is no address of a Kafka cluster"):
            KafkaBroker.open(url, str(tmp_path))
    broker = place.open()
    with pytest.raises(UnsupportedType, match="column 'i'"):
        broker.create("a", pa.schema([("i", pa.month_day_nano_interval())]))
    with pytest.raises(AlreadyOwned):
        KafkaBroker.open(place.url, str(place.folder), PATIENT)
    assert broker.list() == ()


def test_a_row_that_is_too_large_is_refused_and_the_broker_goes_on(place: KafkaPlace) -> None:
    place.config = PATIENT.with_options(kafka_message_bytes_max=100_000)
    broker = place.open()
    broker.create("raw", RAW)
    big = pa.record_batch({"value": pa.array([b"x" * 200_000])})
    small = pa.record_batch({"value": pa.array([b"y" * 90_000])})

    with pytest.raises(UserError, match=r"limit: 100000 \(kafka_message_bytes_max\)"):
        broker.append("raw", big)
    file = broker.store_file(RAW, [big])
    with pytest.raises(UserError, match=r"limit: 100000 bytes \(kafka_message_bytes_max\)"):
        broker.adopt({"raw": [file]})
    assert broker.append("raw", small).first_offset == 0
    assert broker.read("raw", 0).num_rows == 1


# Topics that others write.


def plain(others: Others, *rows: tuple[bytes, int]) -> str:
    topic = f"plain-{os.urandom(4).hex()}"
    others.make(topic, 2)
    if rows:
        others.write(topic, *rows)
    return topic


def test_a_plain_topic_reads_as_rows_that_commit_themselves(
    place: KafkaPlace, others: Others
) -> None:
    topic = plain(others, (b'{"x":1}', 5000), (b'{"x":2}', 4000), (b'{"x":3}', 6000))
    broker = place.open()
    broker.create("theirs", SCHEMA, {"kafka.topic": topic})
    first = broker.read("theirs", 0)

    assert values(first) == [1, 2, 3]
    stored = first.stored()
    clocks = stored["_mr_clock"].to_pylist()
    assert clocks == [5000 * 160_000, 5000 * 160_000 + 1, 6000 * 160_000]
    assert stored["_mr_key"].to_pylist() == [b"k"] * 3
    assert (broker.start_offset("theirs"), broker.end_offset("theirs")) == (0, 3)
    assert not broker.wait_for_rows({"theirs": 3}, timeout_s=0)
    others.write(topic, (b'{"x":4}', 1))
    assert broker.wait_for_rows({"theirs": 3}, timeout_s=30)
    broker.commit("g", "theirs", 2, expected=None)
    assert broker.backlog("g", "theirs") == 2

    broker = place.open()
    at = broker.committed("g", "theirs")
    assert at == 2
    rest = broker.read("theirs", at)
    assert values(rest) == [3, 4]
    assert rest.stored()["_mr_clock"].to_pylist() == [6000 * 160_000, 6000 * 160_000 + 1]
    assert values(broker.read("theirs", 1, rows_max=1)) == [2]
    with pytest.raises(OffsetOutOfRange):
        broker.read("theirs", 5)


def test_a_plain_topic_is_left_to_those_who_write_it(place: KafkaPlace, others: Others) -> None:
    topic = plain(others, (b"a", 1), (b"b", 2))
    others.write(topic, (b"c", 3), partition=1)
    broker = place.open()
    broker.create("zero", RAW, {"kafka.topic": topic})
    broker.create("one", RAW, {"kafka.topic": f"{topic}:1"})
    broker.create("typed", SCHEMA, {"kafka.topic": topic})

    assert broker.read("zero", 0).rows()["value"].to_pylist() == [b"a", b"b"]
    assert broker.read("one", 0).rows()["value"].to_pylist() == [b"c"]
    with pytest.raises(FormatError, match=f"messages of topic {topic}"):
        broker.read("typed", 0)
    with pytest.raises(UserError, match="which others write"):
        broker.append("zero", pa.record_batch({"value": [b"x"]}))
    with pytest.raises(UserError, match="which others write"):
        broker.truncate_before("zero", 1)
    broker.commit("g", "zero", 2, expected=None)
    assert broker.truncate_committed("zero").removed == 0
    with pytest.raises(UserError, match="partition 2 of topic"):
        broker.create("two", RAW, {"kafka.topic": f"{topic}:2"})
    broker.delete("zero")
    place.open().tidy()
    assert others.topics(topic) == [topic]


def test_open_transactions_of_others_are_waited_for(place: KafkaPlace, others: Others) -> None:
    topic = plain(others, (b"a", 1))
    open_one = Producer({**others.settings, "transactional.id": topic})
    open_one.init_transactions(20)
    open_one.begin_transaction()
    open_one.produce(topic, b"b", partition=0)
    open_one.flush(20)
    others.write(topic, (b"c", 2))
    broker = place.open()
    broker.create("theirs", RAW, {"kafka.topic": topic})

    assert broker.end_offset("theirs") == 1
    assert broker.read("theirs", 0).rows()["value"].to_pylist() == [b"a"]
    open_one.commit_transaction(20)
    assert broker.wait_for_rows({"theirs": 2}, timeout_s=30)
    eventually(lambda: broker.end_offset("theirs"), 4)
    first = broker.read("theirs", 0, rows_max=1)
    assert (first.next_offset, first.end_offset) == (1, 4)
    rest = broker.read("theirs", first.next_offset)
    assert rest.rows()["value"].to_pylist() == [b"b", b"c"]
    # The end of their transaction has an offset, too, and whoever read all rows is past it.
    assert rest.next_offset == 4
    broker.commit("g", "theirs", rest.next_offset, expected=None)
    assert broker.backlog("g", "theirs") == 0


def test_a_job_step_from_a_plain_topic_commits_its_offset_with_its_rows(
    place: KafkaPlace, others: Others
) -> None:
    topic = plain(others, *((json.dumps({"x": n}).encode(), n) for n in range(10)))
    broker = place.open()
    broker.create("in", SCHEMA, {"kafka.topic": topic})
    broker.create("out", SCHEMA)
    at: int = 0
    while (found := broker.read("in", at, rows_max=4)).num_rows:
        before = at or None
        publish(broker, {"out": found.rows()}, ("g", "in", found.next_offset, before))
        at = found.next_offset
        broker = place.open()

    assert read_all(broker, "out") == list(range(10))


def bursts(count: int) -> list[tuple[bytes, int]]:
    """Many messages of one millisecond, some of times long past, in an order that is repeated."""
    chosen = random.Random(7)  # noqa: S311 - the same each time
    times = [5000 + number // 40 - chosen.choice([0, 0, 0, 3000]) for number in range(count)]
    return [(json.dumps({"x": number}).encode(), time_ms) for number, time_ms in enumerate(times)]


def clocks_of(rows: list[tuple[bytes, int]]) -> list[int]:
    """max(timestamp, previous + 1), one after the other."""
    clocks: list[int] = []
    for _, time_ms in rows:
        clocks.append(max(time_ms * 160_000, clocks[-1] + 1 if clocks else 1))
    return clocks


def test_rows_of_a_plain_topic_have_one_clock_however_they_are_read(
    place: KafkaPlace, others: Others
) -> None:
    rows = bursts(400)
    topic, expected = plain(others, *rows), clocks_of(rows)
    chosen = random.Random(8)  # noqa: S311
    producers = set()
    for _ in range(2):
        broker = place.open()
        broker.create("theirs", SCHEMA, {"kafka.topic": topic})
        for _ in range(12):
            at = chosen.randrange(400)
            count = chosen.choice([1, 7, 70, 400])
            found = broker.read_many(
                ReadRequest(offsets={"theirs": at}, isolation="raw", rows_max=count)
            )["theirs"]
            stored = found.stored()
            assert stored["_mr_clock"].to_pylist() == expected[at : at + count]
            assert stored["_mr_offset"].to_pylist() == list(range(at, min(at + count, 400)))
            assert set(stored["_mr_flag"].to_pylist()) == {Flag.OUTSIDE}
            producers |= set(stored["_mr_producer"].to_pylist())

    assert len(producers) == 1


def test_clocks_of_a_plain_topic_outlive_rows_that_others_removed(
    place: KafkaPlace, others: Others
) -> None:
    rows = bursts(100)
    topic, expected = plain(others, *rows), clocks_of(rows)
    broker = place.open()
    broker.create("theirs", SCHEMA, {"kafka.topic": topic})
    broker.read("theirs", 0)
    broker.commit("g", "theirs", 60, expected=None)
    others.cut(topic, 50)
    eventually(lambda: broker.start_offset("theirs"), 50)

    # From where a group stands on they are known for good, elsewhere while this owner lives.
    for offset in (50, 60):
        found = broker.read("theirs", offset, isolation="raw").stored()
        clocks = found["_mr_clock"].to_pylist()
        assert clocks == sorted(set(clocks))
        assert clocks[60 - offset :] == expected[60:]
    broker = place.open()
    found = broker.read("theirs", 60, isolation="raw").stored()
    assert found["_mr_clock"].to_pylist() == expected[60:]


def test_who_waits_for_moves_hears_of_plain_topics(place: KafkaPlace, others: Others) -> None:
    topic = plain(others, (b'{"x":1}', 1))
    broker = place.open()
    theirs = broker.create("theirs", SCHEMA, {"kafka.topic": topic}).id
    mine = broker.create("mine", SCHEMA).id
    at = broker.moved(0, timeout_s=0).version
    assert broker.moved(at, timeout_s=0).journals == ()

    others.write(topic, (b'{"x":2}', 2))
    first = broker.moved(at, timeout_s=60)
    assert first.journals == (theirs,)
    broker.append("mine", column([1]))
    assert broker.moved(first.version, timeout_s=60).journals == (mine,)
    others.cut(topic, 1)
    last = broker.moved(first.version, timeout_s=60)
    while theirs not in (last.journals or ()):
        last = broker.moved(first.version, timeout_s=60)
