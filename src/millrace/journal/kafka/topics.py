"""Topics of a workspace: their names, and making, cutting and deleting them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewTopic

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import DataLost, UserError
from millrace.journal.core.book import Journal
from millrace.journal.core.journal_names import JournalId
from millrace.journal.kafka import kafka_client
from millrace.journal.kafka.offset_points import KafkaOffset
from millrace.journal.kafka.topic_readers import JournalTopic

TOPIC_LABEL: Final = "kafka.topic"
"""A journal with this label is a plain topic that others write: `topic` or `topic:partition`."""
ROWS_LABEL: Final = "kafka.rows"
"""In which form rows of a journal are written: `messages`, the default, or `arrow`."""
_FORMS: Final = {"messages": False, "arrow": True}
_OF_JOBS: Final = "jobs/"
"""Journals of jobs, which no other program reads."""
_SLUG_LENGTH_MAX: Final = 150
_ODD: Final = re.compile(r"[^A-Za-z0-9-]+")
_PLAIN: Final = re.compile(r"([A-Za-z0-9._-]{1,249})(?::(\d+))?")
_FOR_GOOD: Final = {"retention.ms": "-1", "retention.bytes": "-1"}


def plain_spot(labels: Mapping[str, str]) -> JournalTopic | None:
    """The topic of others that a journal with these labels is, if it is one."""
    given = labels.get(TOPIC_LABEL)
    if given is None:
        return None
    match = _PLAIN.fullmatch(given)
    if match is None:
        raise UserError(
            f"label {TOPIC_LABEL!r} is {given!r}, which names no topic\n"
            "  to fix: give topic, or topic:partition"
        )
    return JournalTopic(match[1], int(match[2] or 0))


def has_frames(name: str, labels: Mapping[str, str]) -> bool:
    """Whether the rows of a journal are written as frames, and not as a message each."""
    given = labels.get(ROWS_LABEL)
    if given is None:
        return name.startswith(_OF_JOBS)
    if given not in _FORMS:
        raise UserError(
            f"label {ROWS_LABEL!r} is {given!r}\n  to fix: give one of {', '.join(_FORMS)}"
        )
    return _FORMS[given]


def state_topic(name: str) -> str:
    """The topic with everything but the rows, of the journals under a name."""
    return f"millrace-{name}.state"


class Topics:
    """The topics of the journals under one name."""

    def __init__(self, servers: str, name: str, config: Config) -> None:
        self._servers = servers
        self._config = config
        self._name, self._prefix = name, f"millrace-{name}."
        self._admin = kafka_client.admin(servers, config)

    @property
    def state(self) -> str:
        """The topic with everything but the rows."""
        return state_topic(self._name)

    def of(self, journal: Journal) -> str:
        """The topic of a journal. Its id is in the name, so that no two ever share one."""
        slug = _ODD.sub("-", journal.name)[:_SLUG_LENGTH_MAX].strip("-")
        return f"{self._prefix}{journal.id}.{slug}"

    def spot(self, journal: Journal) -> JournalTopic:
        """Where the rows of a journal are."""
        return plain_spot(journal.labels) or self.own_spot(journal)

    def own_spot(self, journal: Journal) -> JournalTopic:
        """Where the rows of a journal are that others do not write."""
        is_framed = has_frames(journal.name, journal.labels)
        return JournalTopic(self.of(journal), journal=journal.id, is_framed=is_framed)

    def prepare(self) -> None:
        """Make the state topic if it is missing; journals without one are lost data."""
        if self.state in self.there():
            return
        self.refuse_lost_state()
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(16 * 1024 * 1024),
            "min.cleanable.dirty.ratio": "0.1",
        }
        self._make({self.state: settings})

    def there(self) -> list[str]:
        """All topics that the cluster has."""
        with kafka_client.reported("looking at its topics", self._servers, self._config):
            return sorted(self._admin.list_topics(timeout=self._call_s()).topics)

    def cluster_id(self) -> str:
        """Kafka's own name of the cluster."""
        with kafka_client.reported("looking at the cluster", self._servers, self._config):
            described = self._admin.list_topics(self.state, timeout=self._call_s())
        return str(described.cluster_id)

    def refuse_lost_state(self) -> None:
        """Journals without a state are lost data, not an empty workspace."""
        rows = self._of_journals()
        if rows:
            raise DataLost(
                f"topic {self.state} is gone or empty, and there are topics of journals: "
                f"{min(rows)}\n  to fix: bring it back, or delete these topics to begin anew"
            )

    def leftovers(self, known: Collection[str], last: JournalId) -> list[str]:
        """Topics of journals that were deleted, or whose creation failed.

        One with an id above the last that was given out is left alone: the next journal may want
        it, and a state that was lost in part must not take rows with it.
        """
        return [
            topic
            for topic, id_ in self._of_journals().items()
            if topic not in known and id_ <= last
        ]

    def _of_journals(self) -> dict[str, JournalId]:
        of = re.compile(re.escape(self._prefix) + r"(\d+)\..*")
        matches = {topic: of.fullmatch(topic) for topic in self.there()}
        return {topic: JournalId(int(match[1])) for topic, match in matches.items() if match}

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; none if it is not there."""
        with kafka_client.reported(f"looking at {topic}", self._servers, self._config):
            described = self._admin.list_topics(topic, timeout=self._call_s()).topics.get(topic)
        return 0 if described is None else len(described.partitions)

    def make(self, journals: Sequence[Journal]) -> None:
        """Make the topics of journals; an existing one was left by a creation that failed."""
        size = str(self._config.kafka_message_bytes_max)
        settings = {"cleanup.policy": "delete", "max.message.bytes": size, **_FOR_GOOD}
        self._make({self.of(journal): settings for journal in journals})

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics; those that are gone are fine."""
        if topics:
            done = self._admin.delete_topics(list(topics), operation_timeout=self._call_s())
            self._settle(done, "deleting topics", KafkaError.UNKNOWN_TOPIC_OR_PART)

    def cut(self, spot: JournalTopic, kafka_offset: KafkaOffset) -> None:
        """Delete the messages before a Kafka offset."""
        cut_offsets = [TopicPartition(spot.topic, spot.partition, kafka_offset)]
        done = self._admin.delete_records(cut_offsets, request_timeout=self._call_s())
        self._settle(done, f"truncating {spot.topic}", KafkaError.UNKNOWN_TOPIC_OR_PART)

    def _make(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        if not topics:
            return
        # The cluster's own default is the number of copies of each.
        new = [
            NewTopic(name, num_partitions=1, replication_factor=-1, config=dict(settings))
            for name, settings in topics.items()
        ]
        done = self._admin.create_topics(new, operation_timeout=self._call_s())
        self._settle(done, "making topics", KafkaError.TOPIC_ALREADY_EXISTS)

    def _settle(self, futures: Mapping[Any, Future[Any]], doing: str, fine: int) -> None:
        with kafka_client.reported(doing, self._servers, self._config):
            for future in futures.values():
                try:
                    future.result(self._call_s())
                except KafkaException as error:
                    if error.args[0].code() != fine:
                        raise
                except TimeoutError as error:
                    raise kafka_client.unanswered(doing, self._servers, self._config) from error

    def _call_s(self) -> float:
        return self._config.peer_ms(ms(self._config.kafka_timeout)) / 1000
