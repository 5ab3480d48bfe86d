"""Where rows of journals are in Kafka, for processes that read them there themselves.

Invariant: how far a reader may go, and what was rolled back below that, are of one moment.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.book_reader import out_of_range
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import Formats, ManyRows, Packing, TopicSpot
from millrace.journal.core.values import Fetched, Isolation, KafkaPlace
from millrace.journal.kafka.plain_topics_broker import PlainTopicsBroker
from millrace.journal.kafka.topic_reading import Fetching
from millrace.journal.kafka.topics import plain_spot

_ROW_BYTES_MIN: Final = 32
"""What the system fields of a row take at least."""


class LocatingBroker(PlainTopicsBroker):
    """The half of the Kafka broker that says where rows are."""

    _fetching: Fetching

    def direct_cluster(self) -> KafkaPlace | None:
        """See `Broker.direct_cluster`."""
        return self._cluster.place

    def locate(self, request: ReadRequest) -> ManyRows:
        """See `Broker.locate`. Topics of others are read here: their clocks are counted here."""
        limits, isolation = request.limits(self._config), request.isolation
        rows, packing, is_only = ManyRows(), Packing(), request.is_single
        rows_left, bytes_left = limits.rows, limits.bytes
        for name, given in request.offsets.items():
            if rows_left <= 0 or bytes_left <= 0:
                break
            offset, size = Offset(given), min(bytes_left, limits.bytes_each)
            try:
                if plain_spot(self._book.journal(name).labels) is None:
                    count = self._locate(rows, name, offset, isolation, is_only=is_only)
                    row_bytes = count * _ROW_BYTES_MIN
                else:
                    fetched = self._fetch(name, offset, rows_left, size, isolation)
                    if is_only or fetched.next_offset > offset:
                        _pack(rows, packing, fetched, self._formats)
                    count = fetched.num_rows
                    row_bytes = sum(batch.nbytes for batch in fetched.batches)
            except (JournalUnknown, OffsetOutOfRange) as problem:
                rows.fail(name, offset, problem)
                continue
            rows_left, bytes_left = rows_left - count, bytes_left - row_bytes
        rows.bundles = packing.bundles
        if request.missing == "raise":
            rows.raise_problem()
        return rows

    def _locate(
        self, rows: ManyRows, name: str, offset: Offset, isolation: Isolation, *, is_only: bool
    ) -> int:
        """Say where a journal's rows are; how many offsets the reader may read."""
        raw = isolation == "raw"
        with self._group_commit.settled:
            journal = self._book.journal(name)
            end = journal.end if raw else self._book.stable_end(journal)
            gone = None if raw else self._book.rolled_back.get(journal.id) or ()
        if not journal.start <= offset <= journal.end:
            raise out_of_range(journal, offset)
        if offset < end or is_only:
            number = rows.add(name, journal.id, journal.schema, offset, end)
        if offset >= end:
            return 0
        point = self._fetching.points(journal.id).below(offset)
        near = None if point is None else (point.offset, int(point.kafka_offset))
        spot = self._cluster.topics.own_spot(journal)
        rows.topics[number] = TopicSpot(topic=spot.topic, near=near, is_framed=spot.is_framed)
        if gone is not None:
            rows.mixed[number] = gone
        return end - offset


def _pack(rows: ManyRows, packing: Packing, fetched: Fetched, formats: Formats) -> None:
    """Send rows that were read here."""
    number = rows.add(
        fetched.journal, fetched.id, fetched.schema, fetched.next_offset, fetched.end_offset
    )
    packing.add_batches(number, formats.of(fetched.schema), fetched.batches)
