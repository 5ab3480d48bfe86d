"""Coordinated reads over Kafka: our producers' transactions, and topics that others write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.kafka.kafka_kit import KafkaPlace
from tests.kafka.test_topics_on_kafka import RAW, Others
from tests.unit.reads.kit import LONG_S, SCHEMA, next_shown, reading, shown

from millrace.journal.broker import Broker
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.testing.kafka_server import KafkaServer


def rows(*names: str) -> pa.Table:
    return pa.table({"key": [sum(n.encode()) for n in names], "what": list(names)}, schema=SCHEMA)


def make(broker: Broker) -> None:
    for name in "ab":
        broker.create(f"t/{name}", SCHEMA)


def test_a_producer_s_transaction_over_two_topics_shows_whole(
    place: KafkaPlace, tmp_path: Path
) -> None:
    broker = place.open()
    make(broker)
    producer = broker.producer("shop")
    producer.append("t/a", rows("a1", "a2"))
    with reading(broker, tmp_path / "queues", members=2) as session:
        broker.append("t/a", rows("behind them"))
        assert next_shown(session) == ["behind them"]
        producer.append("t/b", rows("b1"))
        producer.commit()
        assert next_shown(session) == ["a1", "a2", "b1"]
        producer.append("t/a", rows("gone"))
        producer.rollback()
        producer.append_now("t/b", rows("alone"))
        found: list[str] = []
        while not found:
            found = next_shown(session)
        assert found == ["alone"]


def test_a_prepared_checkpoint_comes_again_when_broker_and_session_were_lost(
    place: KafkaPlace, tmp_path: Path
) -> None:
    broker = place.open()
    make(broker)
    producer = broker.producer("shop")
    for number in range(5):
        producer.append("t/a", rows(f"a{number}"))
        producer.append("t/b", rows(f"b{number}"))
        producer.commit()
    with reading(broker, tmp_path / "queues", members=3) as session:
        first = session.next_checkpoint(LONG_S)
        before = shown(session, first)
    broker = place.open()
    broker.append("t/a", rows("later"))
    with reading(broker, tmp_path / "queues", members=2, take_over=True) as session:
        again = session.next_checkpoint(LONG_S)
        assert again is not None
        assert first is not None
        assert (again.number, shown(session, again)) == (first.number, before)
        session.commit(again)
        found = list(before)
        while len(found) < 11:
            found += next_shown(session)
    wanted = [f"{name}{number}" for name in "ab" for number in range(5)]
    assert sorted(found) == sorted([*wanted, "later"])


def test_a_topic_of_others_reads_as_rows_that_commit_themselves(
    kafka: KafkaServer, place: KafkaPlace, tmp_path: Path
) -> None:
    others = Others(kafka)
    topic = f"plain-{tmp_path.name}"
    others.make(topic)
    others.write(topic, (b"one", 1000), (b"two", 900), (b"three", 1000), (b"last", 1000))
    broker = place.open()
    broker.create("outside", RAW, labels={"kafka.topic": topic})
    read = CoordinatedRead("plain", [Binding(name="all", prefix="outside", key="value")])

    def rows_up_to(last: bytes) -> list[bytes]:
        """All that a session shows up to a row: rows from before would come before it."""
        values: list[bytes] = []
        with reading(broker, tmp_path / "queues", read, members=2, take_over=True) as session:
            while last not in values:
                checkpoint = session.next_checkpoint(LONG_S)
                assert checkpoint is not None, f"{values} is all there is"
                for member in range(session.members):
                    table = session.read(member, checkpoint)
                    values += table["value"].to_pylist() if table.num_rows else []
                session.commit(checkpoint)
        return sorted(values)

    assert rows_up_to(b"last") == [b"last", b"one", b"three", b"two"]
    others.write(topic, (b"four", 1000))
    broker = place.open()
    assert rows_up_to(b"four") == [b"four"]
