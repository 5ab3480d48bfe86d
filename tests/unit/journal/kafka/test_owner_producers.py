"""The owner's two producers: when there is a second one, and what the next owner knows of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.journal.kafka.fake_cluster import NAME, FakeKafka, FakeWriter, owner_of

from millrace.config import Config
from millrace.errors import BrokerStopped, KafkaUnreachable
from millrace.journal.kafka import kafka_cluster
from millrace.journal.kafka.book_records import writers_in
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.journal.kafka.topics import state_topic

SCHEMA = pa.schema([("value", pa.binary())])
MAIN = f"millrace-{NAME}"


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    FakeWriter.kafka = FakeKafka()
    monkeypatch.setattr(kafka_cluster, "TopicWriter", FakeWriter)
    # Here transactions follow each other, however busy the machine is.
    monkeypatch.setattr(kafka_cluster, "_ROW_S", 3_600.0)
    return FakeWriter.kafka


def busy(owner: KafkaBroker, count: int) -> None:
    for _ in range(count):
        owner.append("a", pa.record_batch([pa.array([b"x"], pa.binary())], schema=SCHEMA))


def used(kafka: FakeKafka, owner: KafkaBroker, count: int) -> list[str]:
    """The ids of so many transactions."""
    ids: list[str] = []
    kafka.between = lambda id_, step: ids.append(id_) if step == "begin" else None
    busy(owner, count)
    return ids


def opened(kafka: FakeKafka, folder: Path) -> KafkaBroker:
    owner = owner_of(kafka, str(folder), Config())
    owner.create("a", SCHEMA)
    return owner


def test_two_producers_take_turns_once_transactions_follow_each_other(
    kafka: FakeKafka, tmp_path: Path
) -> None:
    owner = opened(kafka, tmp_path)
    assert list(kafka.epochs) == [MAIN]
    busy(owner, 9)
    (second,) = set(kafka.epochs) - {MAIN}
    assert used(kafka, owner, 4) in ([MAIN, second] * 2, [second, MAIN] * 2)
    records = {entry.key or b"" for entry in kafka.committed(state_topic(NAME))}
    assert {f"{MAIN}-{writer}" for writer in writers_in(dict.fromkeys(records, b""))} == {second}


def test_the_next_owner_fences_both(kafka: FakeKafka, tmp_path: Path) -> None:
    old = opened(kafka, tmp_path)
    busy(old, 11)
    before = dict(kafka.epochs)
    assert len(before) == 2
    new = owner_of(kafka, str(tmp_path), Config())
    assert all(kafka.epochs[id_] > epoch for id_, epoch in before.items())
    for _ in range(2):
        with pytest.raises(BrokerStopped):
            busy(old, 1)
    busy(new, 3)
    assert new.end_offset("a") == len(kafka.committed(f"{NAME}.a")) == 14


def test_after_a_lost_answer_there_is_another_second_producer(
    kafka: FakeKafka, tmp_path: Path
) -> None:
    owner = opened(kafka, tmp_path)
    busy(owner, 11)
    (second,) = set(kafka.epochs) - {MAIN}
    owner._granting.lose()
    assert second not in used(kafka, owner, 12)
    assert len(kafka.epochs) == 3
    assert owner.end_offset("a") == len(kafka.committed(f"{NAME}.a")) == 23


def test_an_owner_that_gets_no_second_producer_goes_on_with_one(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: FakeWriter) -> None:
        raise KafkaUnreachable("no answer\n  to fix: ask again")

    owner = opened(kafka, tmp_path)
    monkeypatch.setattr(FakeWriter, "open", refuse)
    assert used(kafka, owner, 12) == [MAIN] * 12
