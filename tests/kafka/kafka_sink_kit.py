"""A job that commits to a topic of Kafka, in processes that are killed in it.

A cheap function refuses some rows; the others are in the topic, and what was refused is a dead
letter. Another producer writes to the topic meanwhile.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.kafka.kafka_kit import PATIENT
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    Bench,
    dead,
    fill,
    hop,
    map_step,
    noted_rows,
)

from millrace.config import Config
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.journal.kafka.sink.kafka_target import KafkaTarget
from millrace.journal.kafka.sink.placed_messages import PlacedMessages
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import KafkaSink
from millrace.pipeline.sinks import check_sink

PROGRESS = "jobs/an-id/j/out/progress-0"
ROWS, BATCH_ROWS, ARMING = 40, 4, 21
CONFIG = PATIENT.with_options(
    job_idle_ms=2,
    job_retry_wait=0.001,
    job_lease=60,
    job_run_lease=3_600,
    job_worker_time=60,
    job_turn_ms=60_000,
    job_publish_bytes=1,
)
"""Each batch is committed by itself."""
REFUSED = tuple(range(3, ROWS, 7))
EXPECTED = sorted(-value for value in range(ROWS) if value not in REFUSED)
PARTITIONS = 3
multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Topic:
    """A topic of others, and a client of it that knows nothing of Millrace."""

    servers: str
    name: str

    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers, "log_level": 0}

    def make(self, partitions: int = PARTITIONS, **config: str) -> None:
        new = NewTopic(self.name, partitions, 1, config=config)
        admin = AdminClient(self.settings())
        for future in admin.create_topics([new]).values():
            future.result()

    def messages(self) -> list[Any]:
        """What a reader of committed messages sees, partition by partition, to the end."""
        more = {"group.id": "judge", "isolation.level": "read_committed"}
        more |= {"enable.partition.eof": "true", "auto.offset.reset": "earliest"}
        consumer = Consumer({**self.settings(), **more})
        described = consumer.list_topics(self.name, timeout=60).topics[self.name]
        consumer.assign([TopicPartition(self.name, number, 0) for number in described.partitions])
        ends, found = set[int](), []
        while len(ends) < len(described.partitions):
            message = consumer.poll(60)
            assert message is not None, "a transaction stays open"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends.add(message.partition() or 0)
        consumer.close()
        return found

    def own(self) -> list[int]:
        """The numbers of the job's rows."""
        rows = [json.loads(message.value()) for message in self.messages()]
        return sorted(row["x"] for row in rows if "x" in row)

    def of_others(self) -> list[int]:
        rows = [json.loads(message.value()) for message in self.messages()]
        return sorted(row["other"] for row in rows if "other" in row)

    def write(self, number: int) -> None:
        """Another program's transaction of one message."""
        producer = Producer({**self.settings(), "transactional.id": f"other-{self.name}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(self.name, json.dumps({"other": number}).encode())
        producer.commit_transaction(60)


def new_topic(servers: str, partitions: int = PARTITIONS) -> Topic:
    topic = Topic(servers, f"out-{secrets.token_hex(6)}")
    topic.make(partitions)
    return topic


def refuse_some(row: dict[str, Any]) -> dict[str, Any]:
    if row["x"] == ARMING and os.environ.get("ARMED_LATER"):
        os.environ[VARIABLE] = os.environ["ARMED_LATER"]
    if row["x"] in REFUSED:
        raise ValueError("refused")
    return {"x": -row["x"]}


def sink_to(topic: Topic, schema: pa.Schema = NUMBERS) -> KafkaSink:
    target = KafkaTarget(topic=topic.name, servers=topic.servers)
    return KafkaSink(name="out", schema=schema, target=target)


def job_hops(topic: Topic) -> list[Hop]:
    function = map_step("f", refuse_some, retries=0, on_error="dead_letter", batch_rows=BATCH_ROWS)
    return [hop(function, sink=sink_to(topic))]


def bench(folder: Path, home: Broker, topic: Topic) -> Bench:
    made = job_hops(topic)
    for each in made:
        check_sink(each, home, CONFIG)
    return Bench(folder, made, CONFIG, home, progress={"out": f"{PROGRESS}/{topic.name}"})


def home_of(folder: str, url: str | None) -> Broker:
    """The job's own journals: in a folder, or in Kafka."""
    if url is None:
        return EmbeddedBroker.open(f"{folder}/mill")
    return KafkaBroker.open(url, f"{folder}/mill", PATIENT)


def prepare(folder: str, url: str | None = None) -> None:
    home = home_of(folder, url)
    fill(home, range(ROWS))
    home.close()


def run_job(
    folder: str, topic: Topic, point: str | None, later: str | None, url: str | None = None
) -> None:
    """Run the job to its end, or die at a point: the first time, or in the middle."""
    home = home_of(folder, url)
    for lease in home.leases(hops.ROOT):
        home.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    started = bench(Path(folder), home, topic).start()
    if point is not None:
        os.environ[VARIABLE] = point
    if later is not None:
        os.environ["ARMED_LATER"] = later
    started.run()
    home.close()


def judge(folder: Path, topic: Topic, url: str | None = None) -> None:
    """Each row is in the topic once, and each refused one is one dead letter."""
    home = home_of(str(folder), url)
    assert topic.own() == EXPECTED
    assert [letter["row"]["x"] for letter in dead(home, "f")] == list(REFUSED)
    (source,) = home.list(hops.output_prefix(JOB, "src"))
    assert home.backlog(hops.step_root(JOB, "out"), source.name) == 0
    assert noted_rows(home) == len(EXPECTED)
    home.close()


def placed(topic: Topic, config: Config = CONFIG, **columns: Any) -> PlacedMessages:  # noqa: ANN401
    """A worker of units of one sink."""
    target = KafkaTarget(topic=topic.name, servers=topic.servers, **columns)
    return PlacedMessages(target, f"{PROGRESS}/{topic.name}", config, who="a test")


def numbers(values: Sequence[int]) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)]
