"""Results in topics of Kafka: all rows or none, once for a name, also after kills."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.kafka.kafka_sink_kit import CONFIG, Topic, new_topic
from tests.laws import seeds
from tests.unit.journal.kills_kit import KILLED, in_child, start

import millrace as mr
from millrace.errors import Conflict, UserError
from millrace.faults import VARIABLE
from millrace.journal.kafka.sink.kafka_target import PLACES, KafkaTarget
from millrace.journal.kafka.sink.place_topic import UnitPlace
from millrace.journal.kafka.sink.whole_messages import Rows, WholeMessages
from millrace.testing.fault_injection import POINTS
from millrace.testing.kafka_server import KafkaServer

ROWS, PIECE = 2_000, 300
POINTS_OF_WRITES = [p for p in POINTS if p.startswith(("kafka.sink.", "kafka.publish."))]


def write_of(topic: Topic, once: str | None = "today", limit_ms: int = 60_000) -> WholeMessages:
    target = KafkaTarget(topic=topic.name, servers=topic.servers)
    return WholeMessages(
        target=target, once=once, limit_ms=limit_ms, config=CONFIG, who="write_kafka('a test')"
    )


def rows(pause_s: float = 0) -> Iterator[pa.RecordBatch]:
    for begin in range(0, ROWS, PIECE):
        yield pa.record_batch({"x": range(begin, min(ROWS, begin + PIECE))})
        time.sleep(pause_s)


def again(tries: Iterator[Callable[[], Iterator[pa.RecordBatch]]]) -> Rows:
    """Rows that differ each time they are asked for."""

    def ask() -> Iterator[pa.RecordBatch]:
        return next(tries)()

    return ask


def written(topic: Topic, once: str | None = "today", pause_s: float = 0) -> int:
    write = write_of(topic, once)
    before = write.prepare()
    return write.write(lambda: rows(pause_s)) if before is None else before


def killed(topic: Topic, point: str | None, pause_s: float) -> None:
    if point is not None:
        os.environ[VARIABLE] = point
    written(topic, pause_s=pause_s)


@pytest.fixture
def topic(kafka: KafkaServer) -> Topic:
    return new_topic(kafka.address)


def test_a_named_write_comes_once_and_one_without_a_name_each_time(topic: Topic) -> None:
    assert [written(topic), written(topic)] == [ROWS, ROWS]
    assert topic.own() == list(range(ROWS))
    assert [written(topic, None), written(topic, None)] == [ROWS, ROWS]
    assert topic.own() == sorted([*range(ROWS)] * 3)
    assert written(topic, "tomorrow") == ROWS
    places = [m.key() for m in Topic(topic.servers, PLACES).messages() if m.value() is not None]
    named = [key for key in places if topic.name.encode() in key]
    forgotten = {m.key() for m in Topic(topic.servers, PLACES).messages() if m.value() is None}
    kept = [UnitPlace(f"write_kafka/{topic.name}/{n}", 0).key for n in ("today", "tomorrow")]
    assert sorted(set(named) - forgotten) == sorted(kept)


def test_a_row_that_cannot_be_sent_is_refused_before_any_is(topic: Topic) -> None:
    large = pa.record_batch({"x": ["x" * (CONFIG.kafka_message_bytes_max + 1)]})
    write = write_of(topic)
    assert write.prepare() is None
    with pytest.raises(UserError, match="too large for Kafka"):
        write.write(lambda: iter([pa.record_batch({"x": ["small"]}), large]))
    assert topic.messages() == []
    assert written(topic) == ROWS


def test_rows_that_fail_in_the_transaction_leave_none(topic: Topic) -> None:
    tries = iter([rows, failing])
    write = write_of(topic)
    with pytest.raises(mr.DataLost, match="gone"):
        write.write(again(tries))
    assert topic.messages() == []
    assert written(topic) == ROWS


def failing() -> Iterator[pa.RecordBatch]:
    yield next(rows())
    raise mr.DataLost("rows are gone\n  to fix: make them again")


def test_of_two_processes_with_one_name_one_writes(topic: Topic) -> None:
    first, second = write_of(topic), write_of(topic)
    asked = 0

    def interrupted() -> Iterator[pa.RecordBatch]:
        nonlocal asked
        asked += 1
        if asked == 2:
            second.write(rows)
        yield from rows()

    with contextlib.suppress(Conflict):  # It may also find that the other one wrote them all.
        assert first.write(interrupted) == ROWS
    assert topic.own() == list(range(ROWS))
    assert first.write(rows) == ROWS


def test_a_topic_that_is_missing_and_a_time_that_kafka_refuses_are_named(topic: Topic) -> None:
    with pytest.raises(UserError, match="there is no topic 'nowhere'"):
        write_of(Topic(topic.servers, "nowhere")).prepare()
    with pytest.raises(UserError, match="INVALID_TRANSACTION_TIMEOUT"):
        write_of(topic, limit_ms=3_600_000).write(rows)


@pytest.mark.parametrize("point", POINTS_OF_WRITES)
def test_a_write_killed_at_a_point_leaves_all_rows_or_none_and_is_made_once(
    topic: Topic, point: str
) -> None:
    assert in_child(killed, topic, point, 0) == KILLED
    assert written(topic) == ROWS
    assert topic.own() == list(range(ROWS))


def killed_at_random(server: KafkaServer, seed: int) -> None:
    topic, chance = new_topic(server.address), random.Random(seed)  # noqa: S311 - replayable
    for number in range(4):
        child = start(killed, topic, None, chance.choice([0, 0.02]))
        time.sleep(chance.uniform(0.05, 1.2))
        if chance.random() < 0.3:
            topic.write(number)
        child.kill()
        child.join(60)
    assert written(topic) == ROWS
    assert topic.own() == list(range(ROWS))


def test_a_write_killed_at_any_moment_is_made_once(kafka: KafkaServer) -> None:
    killed_at_random(kafka, 1)


@pytest.mark.slow
def test_many_writes_killed_at_any_moment_are_made_once(kafka: KafkaServer) -> None:
    for seed in seeds(125, first=1000):
        killed_at_random(kafka, seed)


@pytest.mark.slow
def test_a_transaction_that_takes_too_long_leaves_nothing(topic: Topic) -> None:
    """Kafka looks for these every ten seconds."""
    config = CONFIG.with_options(kafka_timeout=5)
    write = replace(write_of(topic, limit_ms=1), config=config)
    tries = iter([rows, lambda: rows(pause_s=4)])
    with pytest.raises(UserError, match="the transaction took too long"):
        write.write(again(tries))
    assert topic.messages() == []


@pytest.mark.slow
def test_a_dataset_on_spark_is_written_once(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = new_topic(kafka.address)
    with mr.open(tmp_path / "mill") as ws:
        orders = ws.from_spark(ws.spark.range(ROWS), version="1").select("id AS x")
        for _ in range(2):
            assert orders.write_kafka(topic.name, bootstrap=kafka.address, once="a") == ROWS
    assert topic.own() == list(range(ROWS))
