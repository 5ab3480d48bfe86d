"""Jobs' rows in topics of Kafka: messages, places, fences, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from tests.kafka.kafka_sink_kit import (
    EXPECTED,
    PARTITIONS,
    ROWS,
    Topic,
    bench,
    job_hops,
    new_topic,
    numbers,
    placed,
    sink_to,
)
from tests.unit.pipeline.worker.worker_kit import fill

from millrace.errors import LeaseLost, UserError
from millrace.journal.kafka.sink.kafka_target import PLACES
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.sinks import check_sink
from millrace.testing.kafka_server import KafkaServer

UNIT = 7
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topic(kafka: KafkaServer) -> Topic:
    made = new_topic(kafka.address)
    check_sink(job_hops(made)[0], MemoryBroker())
    return made


class Doubtful:
    """A producer whose next commit has no answer; it was carried out, or not."""

    def __init__(self, real: Producer, *, is_done: bool) -> None:
        self.real, self.is_done = real, is_done

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the real one's
        return getattr(self.real, name)

    def __len__(self) -> int:
        return len(self.real)

    def commit_transaction(self, timeout: float) -> None:
        if self.is_done:
            self.real.commit_transaction(timeout)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_a_job_of_several_workers_commits_each_row_once(tmp_path: Path, topic: Topic) -> None:
    home = MemoryBroker()
    fill(home, range(ROWS), partitions=3)
    bench(tmp_path, home, topic).run(workers=3)
    assert topic.own() == EXPECTED


def test_a_place_is_read_back_and_is_of_one_unit_alone(topic: Topic) -> None:
    first = placed(topic)
    assert first.take(UNIT) is None
    first.commit(numbers([1, 2]), 2)
    first.commit(numbers([3]), 5)
    first.close()
    assert placed(topic).take(UNIT) == 5
    assert placed(topic).take(UNIT + 1) is None
    assert topic.own() == [1, 2, 3]


def test_a_worker_that_was_taken_for_dead_commits_nothing(topic: Topic) -> None:
    late, new = placed(topic), placed(topic)
    late.take(UNIT)
    late.commit(numbers([1]), 1)
    assert new.take(UNIT) == 1
    with pytest.raises(LeaseLost, match="another worker has unit 7"):
        late.commit(numbers([99]), 2)
    new.commit(numbers([2]), 2)
    assert topic.own() == [1, 2]


def test_a_worker_that_dies_in_a_transaction_holds_its_successor_up_by_nothing(
    topic: Topic,
) -> None:
    dead, other = placed(topic), placed(topic)
    dead.take(UNIT)
    assert dead._taken is not None
    producer = dead._taken.writer._producer
    assert producer is not None
    producer.begin_transaction()
    producer.produce(PLACES, b"{}", b"half", partition=0)
    producer.produce(topic.name, b'{"x": 99}')
    producer.flush()
    new = placed(topic)
    assert new.take(UNIT) is None
    new.commit(numbers([1]), 1)
    assert other.take(UNIT) == 1
    assert topic.own() == [1]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_without_an_answer_is_found_out(topic: Topic, *, is_done: bool) -> None:
    worker = placed(topic)
    worker.take(UNIT)
    worker.commit(numbers([1]), 1)
    assert worker._taken is not None
    real = worker._taken.writer._producer
    assert real is not None
    worker._taken.writer._producer = Doubtful(real, is_done=is_done)  # type: ignore[assignment]
    worker.commit(numbers([2]), 2)
    worker.commit(numbers([3]), 3)
    assert topic.own() == [1, 2, 3]
    assert placed(topic).take(UNIT) == 3


def test_columns_become_values_keys_headers_and_partitions(topic: Topic) -> None:
    rows = pa.record_batch(
        {
            "body": pa.array(["a", None, "c"]),
            "id": pa.array([b"k", b"k", None], pa.binary()),
            "to": pa.array([2, 2, None], pa.int32()),
            "about": pa.array([[{"key": "h", "value": b"1"}], None, []], HEADERS),
        }
    )
    worker = placed(topic, value="body", key="id", partition="to", headers="about")
    worker.take(UNIT)
    worker.commit([rows], 3)
    found = topic.messages()
    assert [(m.value(), m.key(), m.headers()) for m in found if m.partition() == 2][:2] == [
        (b"a", b"k", [("h", b"1")]),
        (None, b"k", None),
    ]
    assert sorted(m.value() or b"" for m in found) == [b"", b"a", b"c"]


def test_equal_keys_are_in_the_partition_in_which_kafkas_own_client_puts_them(
    topic: Topic,
) -> None:
    rows = pa.record_batch({"key": pa.array(["21", "abc", "foobar"]), "value": ["1", "2", "3"]})
    worker = placed(topic, value="value", key="key")
    worker.take(UNIT)
    worker.commit([rows], 3)
    # Kafka's own tests of `Utils.murmur2` have these hashes.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}
    found = {message.key(): message.partition() for message in topic.messages()}
    assert found == {key: (value & 0x7FFFFFFF) % PARTITIONS for key, value in hashes.items()}


def test_a_partition_that_is_not_there_is_refused_before_any_row_is_sent(topic: Topic) -> None:
    rows = pa.record_batch({"value": ["a", "b"], "to": pa.array([0, PARTITIONS], pa.int32())})
    worker = placed(topic, value="value", partition="to")
    worker.take(UNIT)
    with pytest.raises(UserError, match="names partition 3\n  found: the topic has 3"):
        worker.commit([rows], 2)
    assert topic.messages() == []


def test_a_row_that_the_topic_refuses_takes_its_transaction_along(kafka: KafkaServer) -> None:
    topic = Topic(kafka.address, f"{new_topic(kafka.address).name}-small")
    topic.make(1, **{"max.message.bytes": "2000"})
    worker = placed(topic, value="value")
    worker.take(UNIT)
    with pytest.raises(UserError, match="too large for Kafka"):
        worker.commit([pa.record_batch({"value": ["a", "b" * 5000]})], 2)
    assert topic.messages() == []
    worker.commit([pa.record_batch({"value": ["c"]})], 1)
    assert [message.value() for message in topic.messages()] == [b"c"]


def test_a_topic_that_is_missing_and_one_that_forgets_places_are_refused(
    kafka: KafkaServer, topic: Topic
) -> None:
    with pytest.raises(UserError, match="there is no topic 'nowhere'"):
        check_sink(job_hops(Topic(kafka.address, "nowhere"))[0], MemoryBroker())
    forgetful = new_topic(kafka.address)
    sink = sink_to(topic)
    target = replace(sink.target, places=forgetful.name)
    (hop,) = job_hops(topic)
    with pytest.raises(UserError, match=r"cannot keep places\n  found: cleanup.policy is delete"):
        check_sink(replace(hop, sink=replace(sink, target=target)), MemoryBroker())


def test_places_are_kept_for_good(topic: Topic) -> None:
    admin = AdminClient(topic.settings())
    assert len(admin.list_topics(PLACES, timeout=60).topics[PLACES].partitions) == 1
