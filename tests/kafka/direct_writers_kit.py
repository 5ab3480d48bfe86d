"""Processes that write Kafka themselves, and are killed or stopped meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.kafka.direct_topics_kit import DIRECT
from tests.unit.transport.direct_kit import sees, transaction
from tests.unit.transport.owner_kit import column

from millrace.errors import MillraceError
from millrace.faults import VARIABLE
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.fault_injection import armed

STEPS = (
    "kafka.direct.before_enlist",
    "kafka.direct.after_enlist",
    "kafka.direct.after_grant",
    "kafka.publish.after_produce",
    "kafka.publish.before_commit",
    "kafka.publish.after_commit",
    "kafka.direct.before_settle",
)
"""In their order. From `after_commit` on, the transaction is there."""
ENLISTING = STEPS[:2]


def is_committed(point: str) -> bool:
    return STEPS.index(point) >= STEPS.index("kafka.publish.after_commit")


def child_publishes_twice(folder: str, point: str) -> None:
    """Publish to two journals and move a group on; then again, and fail at a point."""
    client = sees(folder, DIRECT)
    if point not in ENLISTING:
        client.publish(transaction(1, sequence=1, expected=None))
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    if point in ENLISTING:
        client.publish(transaction(1, sequence=1, expected=None))
    client.publish(transaction(2, 3, sequence=2, expected=1))


def child_appends(folder: str, told: str, point: str, action: str, value: int) -> None:
    """Append a row that is asked for once, and write down what became of it."""
    client = sees(folder, DIRECT)
    client.append("a", column(value))
    os.environ[VARIABLE] = f"{point}:{action}"
    Path(told).write_text("begun")
    try:
        done = client.append("a", column(value + 1))
    except MillraceError as error:
        Path(told).write_text(f"{type(error).__name__}: {error}")
    else:
        Path(told).write_text(f"appended {done.first_offset}")
    os._exit(0)


def child_appends_many(folder: str, first: int, count: int) -> None:
    """Append rows to a journal that others append to as well."""
    client = sees(folder, DIRECT)
    for value in range(first, first + count):
        client.append("a", column(value, value))
    client.close()


def committed_values(servers: str, broker: KafkaBroker, journal: str) -> list[int]:
    """The rows of a journal's topic, by Kafka's own consumer."""
    topic = broker._cluster.topics.of(broker._book.journal(journal))
    settings = {"bootstrap.servers": servers, "group.id": "judge", "log_level": 0}
    consumer = Consumer(
        {**settings, "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows: list[bytes] = []
    while True:
        message = consumer.poll(30)
        assert message is not None, f"no end of {topic}"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            consumer.close()
            break
        value = message.value()
        if value is not None:  # An ACK has none.
            rows.append(value)
    return [json.loads(row)["x"] for row in rows]
