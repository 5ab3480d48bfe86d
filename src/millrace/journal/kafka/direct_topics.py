"""Rows of journals that a process reads from Kafka itself, past the owner of the journals.

Invariant: a reader goes no further than the owner said, and leaves out what was rolled back. What
cannot be read here is never taken for empty: the owner is asked then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import DataLost, MillraceError
from millrace.journal.core.book import Journal
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.read_limits import ReadLimits, RowCollector, Stored
from millrace.journal.core.row_bundles import ManyRows, TopicSpot, many_rows
from millrace.journal.core.values import Fetched, KafkaPlace
from millrace.journal.direct_reads import SpotUnreadable
from millrace.journal.kafka.offset_points import KafkaOffset, OffsetPoint
from millrace.journal.kafka.topic_readers import JournalTopic, TopicReaders
from millrace.journal.kafka.topic_reading import Fetching, lost
from millrace.journal.kafka.topics import Topics

_JOURNALS_MAX: Final = 4096
"""Of how many journals Kafka offsets are remembered."""


class DirectTopics:
    """Reads the topics of a workspace's journals. May be used by many threads."""

    def __init__(self, place: KafkaPlace, config: Config) -> None:
        """Raises `SpotUnreadable` if the cluster is out of reach, or is another one."""
        wait = min(ms(config.kafka_timeout), config.kafka_direct_ms_max)
        self._config = replace(config, kafka_timeout=f"{wait}ms")
        try:
            found = Topics(place.servers, place.name, self._config).cluster_id()
        except MillraceError as error:
            raise SpotUnreadable(str(error)) from error
        if found != place.cluster_id:
            raise SpotUnreadable(f"{place.servers} is another cluster here: {found}")
        self._readers = TopicReaders(place.servers, f"millrace-{place.name}", self._config)
        self._fetching = Fetching(self._readers, self._config, _missing)

    def read(self, located: ManyRows, limits: ReadLimits) -> ManyRows:
        """The rows that the owner located; raises `SpotUnreadable` if some cannot be had here."""
        try:
            return many_rows(self._fetched(located, limits))
        except MillraceError as error:
            # What is remembered may be of a topic that was deleted and made again.
            self._forget()
            raise SpotUnreadable(str(error)) from error

    def close(self) -> None:
        """Close the consumers."""
        self._readers.close()

    def _fetched(self, located: ManyRows, limits: ReadLimits) -> Iterator[Fetched]:
        rows_left, bytes_left = limits.rows, limits.bytes
        for number, name in enumerate(located.journals):
            if rows_left <= 0 or bytes_left <= 0:
                return
            spot = located.topics.get(number)
            if spot is None:
                fetched = located[name]
            else:
                size = min(bytes_left, limits.bytes_each)
                fetched = self._rows(located, number, spot, rows_left, size)
            yield fetched
            rows_left -= fetched.num_rows
            bytes_left -= sum(batch.nbytes for batch in fetched.batches)

    def _rows(
        self, located: ManyRows, number: int, spot: TopicSpot, rows_max: int, bytes_max: int
    ) -> Fetched:
        offset, end = located.nexts[number], located.ends[number]
        journal = Journal(
            id=located.ids[number],
            name=located.journals[number],
            schema=located.schemas[number],
            labels={},
            created_at_ms=0,
            start=offset,
            end=end,
            rows=0,
        )
        fetching = self._knowing(journal, spot)
        taking = RowCollector(
            offset=offset,
            end=end,
            rows_left=rows_max,
            bytes_left=bytes_max,
            rolled_back=located.mixed.get(number),
        )
        topic = JournalTopic(spot.topic, journal=journal.id, is_framed=spot.is_framed)
        ranges = fetching.ranges(journal, topic, offset)
        taking.take(ranges, _content)
        return Fetched(
            journal=journal.name,
            id=journal.id,
            schema=journal.schema,
            batches=tuple(taking.batches),
            next_offset=taking.offset,
            end_offset=end,
        )

    def _knowing(self, journal: Journal, spot: TopicSpot) -> Fetching:
        """Where rows are searched for, with what the owner knows of this journal."""
        fetching = self._fetching
        if spot.near is not None:
            offset, kafka_offset = spot.near
            known = fetching.points(journal.id).below(offset)
            if known is None or known.offset != offset:
                fetching.learn(journal.id, OffsetPoint(offset, KafkaOffset(kafka_offset)))
        if fetching.journals() > _JOURNALS_MAX:
            self._fetching = Fetching(self._readers, self._config, _missing)
        return fetching

    def _forget(self) -> None:
        self._readers.drop()
        self._fetching = Fetching(self._readers, self._config, _missing)


def _content(stored: Stored) -> Sequence[pa.RecordBatch]:
    assert isinstance(stored.content, pa.RecordBatch)
    return [stored.content]


def _missing(journal: Journal, offset: Offset) -> DataLost:
    """The owner knows whether they were truncated or deleted."""
    return lost(journal, offset, f"of journal {journal.id}")
