"""Rows of journals that a process reads from Kafka itself, past the owner of the journals.

Invariant: a reader goes no further than the owner said, and leaves out what was rolled back. What
cannot be read here is never taken for empty: the owner is asked then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
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
TOPICS_AT_ONCE: Final = 4
"""How many topics a read waits for at the same time; idle consumers are kept for twice as many."""
_READ_S_MAX: Final = 600
"""Longer than the calls for a topic can take."""


ReadTopic = Callable[[int, int, int], Fetched]
"""Reads the journal of a number, at most so many rows and about so many bytes."""


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
        self._pool = ThreadPoolExecutor(TOPICS_AT_ONCE, thread_name_prefix="millrace-topics")
        self._readers = TopicReaders(place.servers, f"millrace-{place.name}", self._config)
        self._fetching = Fetching(self._readers, self._config, _missing)

    def read(self, located: ManyRows, limits: ReadLimits) -> ManyRows:
        """The rows that the owner located; raises `SpotUnreadable` if some cannot be had here."""
        try:
            return many_rows(self._fetched(located, limits))
        except (MillraceError, RuntimeError) as error:  # The pool is closed: a `RuntimeError`.
            # What is remembered may be of a topic that was deleted and made again.
            self._forget()
            raise SpotUnreadable(str(error)) from error

    def close(self) -> None:
        """Close the consumers."""
        self._pool.shutdown(wait=False)
        self._readers.close()

    def _fetched(self, located: ManyRows, limits: ReadLimits) -> Iterator[Fetched]:
        """Journals in their order: several topics are read at a time, if all of them fit."""

        def read(number: int, rows_max: int, bytes_max: int) -> Fetched:
            return self._rows(located, number, located.topics[number], rows_max, bytes_max)

        wanted = [self._wanted(located, number) for number in range(len(located))]
        return side_by_side(wanted, limits, read, self._pool)

    @staticmethod
    def _wanted(located: ManyRows, number: int) -> Fetched | int:
        """What the owner gave of a journal, or how many rows its topic has at most."""
        if number not in located.topics:
            return located[located.journals[number]]
        return int(located.ends[number] - located.nexts[number])

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


@dataclass(frozen=True, slots=True)
class _Coming:
    """A journal that is read, and what it may take of the limits."""

    result: Future[Fetched]
    rows: int
    bytes: int


def side_by_side(
    wanted: Sequence[Fetched | int], limits: ReadLimits, read: ReadTopic, pool: ThreadPoolExecutor
) -> Iterator[Fetched]:
    """Journals in their order, up to the limits.

    A topic is read beside the ones in front of it only if the limits hold whatever these return,
    so that nothing is read and thrown away.

    Args:
        wanted: of each journal what is there already, or how many rows its topic has at most.
        limits: of the whole read, and of each journal.
        read: reads a topic.
        pool: where topics are read.
    """
    coming: deque[_Coming] = deque()
    try:
        yield from _in_turn(wanted, limits, read, pool, coming)
    finally:
        # Those behind an error give their consumers back before these are dropped.
        for one in coming:
            one.result.cancel()
        wait([one.result for one in coming], _READ_S_MAX)


def _in_turn(
    wanted: Sequence[Fetched | int],
    limits: ReadLimits,
    read: ReadTopic,
    pool: ThreadPoolExecutor,
    coming: deque[_Coming],
) -> Iterator[Fetched]:
    rows_used = bytes_used = number = 0
    while True:
        while number < len(wanted) and len(coming) < TOPICS_AT_ONCE:
            rows_left = limits.rows - rows_used - sum(one.rows for one in coming)
            bytes_left = limits.bytes - bytes_used - sum(one.bytes for one in coming)
            there = wanted[number]
            if isinstance(there, Fetched):
                rows, size = there.num_rows, _size(there)
            else:
                rows, size = there, limits.bytes_each
            if coming and (rows > rows_left or size > bytes_left):
                break
            if isinstance(there, Fetched):
                result: Future[Fetched] = Future()
                result.set_result(there)
            else:
                rows, size = min(rows, rows_left), min(size, bytes_left)
                result = pool.submit(read, number, rows, size)
            coming.append(_Coming(result, rows, size))
            number += 1
        if not coming:
            return
        fetched = coming.popleft().result.result(_READ_S_MAX)
        yield fetched
        rows_used += fetched.num_rows
        bytes_used += _size(fetched)
        if rows_used >= limits.rows or bytes_used >= limits.bytes:
            return


def _size(fetched: Fetched) -> int:
    return sum(batch.nbytes for batch in fetched.batches)


def _content(stored: Stored) -> Sequence[pa.RecordBatch]:
    assert isinstance(stored.content, pa.RecordBatch)
    return [stored.content]


def _missing(journal: Journal, offset: Offset) -> DataLost:
    """The owner knows whether they were truncated or deleted."""
    return lost(journal, offset, f"of journal {journal.id}")
