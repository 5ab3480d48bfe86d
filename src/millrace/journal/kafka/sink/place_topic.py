"""The topic of places: how far the rows of each unit of work are in topics of this cluster.

    key    ["<application>", <unit>]
    value  {"place": <offset>, "rows": <rows of its transaction>}

It is compacted, so that a place lives as long as the topic, also that of a job that rests. (Kafka
forgets the offsets of a consumer group after a week.) All records are in its first partition.

Invariant: a record is written in the transaction that has the rows up to its place.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.core.journal_names import Offset
from millrace.journal.kafka import kafka_client
from millrace.journal.kafka.book_records import Record
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.sink.kafka_target import KafkaTarget
from millrace.journal.kafka.topic_readers import JournalTopic, TopicReaders
from millrace.limits import MIB

_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # Small, since it is read from its beginning, and only closed segments are compacted.
    "segment.bytes": str(4 * MIB),
    "min.cleanable.dirty.ratio": "0.1",
}
_TAKEN: Final = 10_000
_FROM_START: Final = KafkaOffset(0)


def check_topics(target: KafkaTarget, config: Config, *, who: str) -> None:
    """Refuse a topic that is missing, and make the one of the places."""
    admin = kafka_client.admin(target.servers, config, target.settings.given())
    with kafka_client.reported("looking at its topics", target.servers, config):
        there = admin.list_topics(timeout=kafka_client.call_ms(config) / 1000).topics
    if target.topic not in there:
        raise UserError(
            f"{who}: there is no topic {target.topic!r} at {target.servers}\n"
            f"  found: {len(there)} others\n  to fix: make it, with as many partitions as you want"
        )
    if target.places not in there:
        _make(admin, target, config)
    policy = _settings_of(admin, target, config).get("cleanup.policy")
    if policy != "compact":
        raise UserError(
            f"{who}: topic {target.places!r} cannot keep places\n"
            f"  found: cleanup.policy is {policy}, which forgets them\n"
            "  to fix: set cleanup.policy=compact there, or give places= another topic"
        )


@dataclass(frozen=True, slots=True)
class UnitPlace:
    """The key of the place of one unit."""

    application: str
    unit: int

    @property
    def key(self) -> bytes:
        """The key of its records."""
        return json.dumps([self.application, self.unit]).encode()

    def record(self, place: int, rows: int) -> Record:
        """The record for a place."""
        return Record(self.key, json.dumps({"place": place, "rows": rows}).encode())


def read_place(
    readers: TopicReaders, topic: str, unit: UnitPlace, beyond: KafkaOffset
) -> Offset | None:
    """The last place of a unit; the topic is read to an end beyond a Kafka offset."""
    key, last = unit.key, None
    spot = JournalTopic(topic)
    with readers.reader(spot, None) as reader:
        reader.seek(spot, _FROM_START)
        deadline = readers.deadline()
        while messages := reader.take_to_end(_TAKEN, beyond, deadline):
            own = [message for message in messages if message.key() == key]
            last = own[-1] if own else last
    return None if last is None else Offset(json.loads(last.value() or b"{}")["place"])


def _make(admin: AdminClient, target: KafkaTarget, config: Config) -> None:
    limit_s = kafka_client.call_ms(config) / 1000
    new = NewTopic(target.places, num_partitions=1, replication_factor=-1, config=dict(_SETTINGS))
    made = admin.create_topics([new], operation_timeout=limit_s)[target.places]
    with kafka_client.reported(f"making {target.places}", target.servers, config):
        try:
            made.result(limit_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        except TimeoutError as error:
            doing = f"making {target.places}"
            raise kafka_client.unanswered(doing, target.servers, config) from error


def _settings_of(admin: AdminClient, target: KafkaTarget, config: Config) -> dict[str, Any]:
    limit_s = kafka_client.call_ms(config) / 1000
    asked = ConfigResource(ResourceType.TOPIC, target.places)
    doing = f"looking at {target.places}"
    with kafka_client.reported(doing, target.servers, config), contextlib.suppress(StopIteration):
        try:
            described = next(iter(admin.describe_configs([asked]).values())).result(limit_s)
        except TimeoutError as error:
            raise kafka_client.unanswered(doing, target.servers, config) from error
        return {name: entry.value for name, entry in described.items()}
    return {}
