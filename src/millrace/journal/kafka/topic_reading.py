"""How rows of a journal are found in its topic and read, chunk by chunk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message as Received

from millrace.config import Config
from millrace.errors import DataLost, MillraceError, Retriable
from millrace.journal.core.book import Journal, RangeKind
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_limits import Stored
from millrace.journal.core.row_format import CLOCK, FLAG, OFFSET, Flag
from millrace.journal.kafka import kafka_messages, plain_messages
from millrace.journal.kafka.offset_points import KafkaOffset, OffsetPoint, OffsetPoints, first_guess
from millrace.journal.kafka.topic_readers import (
    JournalTopic,
    TopicReader,
    TopicReaders,
    headers_of,
    kafka_offset_of,
)

_NOWHERE: Final = OffsetPoints()
_SKIP_FRAMES: Final = 16
"""So many frames are read on to find a row."""
Missing = Callable[[Journal, Offset], MillraceError]
"""Why rows from an offset on are not there."""


class Fetching:
    """Reads journals' rows, and knows their Kafka offsets."""

    def __init__(self, readers: TopicReaders, config: Config, missing: Missing) -> None:
        self._readers = readers
        self._config = config
        self._missing = missing
        self._points: dict[JournalId, OffsetPoints] = {}
        self._learning = threading.Lock()

    def points(self, journal: JournalId) -> OffsetPoints:
        """The known points of a journal. For a plain topic: offsets, and the clock before them."""
        return self._points.get(journal, _NOWHERE)

    def journals(self) -> int:
        """Of how many journals points are known."""
        return len(self._points)

    def learn(self, journal: JournalId, point: OffsetPoint) -> None:
        """Take a point in."""
        with self._learning:
            limit = self._config.kafka_points_max
            self._points[journal] = self.points(journal).with_point(point, limit)

    def forget(self, journal: JournalId, before: Offset | None = None) -> None:
        """Drop what is known of a deleted journal, or of rows that are truncated."""
        with self._learning:
            if before is None:
                self._points.pop(journal, None)
            else:
                self._points[journal] = self.points(journal).from_offset(before)

    def locate(self, journal: Journal, spot: JournalTopic, offset: Offset) -> KafkaOffset:
        """The Kafka offset of a row, or the end of the topic if it is not written yet."""
        with self._readers.reader(spot, None) as reader:
            if offset >= journal.end:
                return reader.bounds(spot, self._readers.deadline())[1]
            self._find(reader, journal, spot, offset)
            self._chunk(reader, journal, offset, 1)
        points = self.points(journal.id)
        return first_guess(points, offset, KafkaOffset(0), is_framed=spot.is_framed)

    # Journals that this broker writes.
    def ranges(self, journal: Journal, spot: JournalTopic, offset: Offset) -> Iterator[Stored]:
        """The rows of a journal from an offset on, up to its end."""
        with self._readers.reader(spot, offset) as reader:
            at = offset
            rows = reader.rows
            if reader.spot == spot and rows is not None and rows.first <= at < rows.next:
                yield rows
                at = rows.next
            if at < journal.end and (reader.spot != spot or reader.next_offset != at):
                self._find(reader, journal, spot, at)
            while at < journal.end:
                count = reader.count_max(at - offset, journal.end - at)
                rows = self._chunk(reader, journal, at, count)
                yield rows
                at = rows.next

    def _chunk(self, reader: TopicReader, journal: Journal, at: Offset, count: int) -> Stored:
        """The next rows, from this offset on, and in a frame maybe some before it."""
        deadline = self._readers.deadline()
        while True:
            messages = self._take_messages(reader, journal, at, count, deadline)
            own = _from(messages, at)
            if own.headers:
                break
        decoded = kafka_messages.incoming(own, journal.schema, where=f"journal {journal.name!r}")
        rows = decoded.rows
        first, last = rows[OFFSET][0].as_py(), rows[OFFSET][-1].as_py()
        if not first <= at <= last or last - first + 1 != rows.num_rows:
            raise self._missing(journal, at)
        self.learn(journal.id, OffsetPoint(Offset(first), KafkaOffset(own.kafka_offset)))
        acks = int((rows[FLAG].to_numpy() == Flag.ACK).sum())
        is_plain = not rows[FLAG].to_numpy().any()
        stored = Stored(
            first=Offset(first),
            next=Offset(last + 1),
            rows=rows.num_rows - acks,
            rows_before=decoded.rows_before,
            kind=RangeKind.PLAIN if is_plain else RangeKind.MIXED,
            bytes=rows.nbytes,
            content=rows,
        )
        reader.rows, reader.next_offset = stored, stored.next
        reader.is_read_up = stored.next >= journal.end
        reader.on_messages(len(own.headers), stored.bytes)
        return stored

    def _take_messages(
        self, reader: TopicReader, journal: Journal, at: Offset, count: int, deadline: float
    ) -> list[Received]:
        """Some messages; if there are none, the error says why."""
        try:
            messages = reader.take(count, deadline)
        except Retriable:
            # A topic that is gone does not answer, and neither does a cluster that is away.
            why = self._missing(journal, at)
            if isinstance(why, DataLost):
                raise
            raise why from None
        if not messages:
            raise self._missing(journal, at)
        return messages

    def _find(self, reader: TopicReader, journal: Journal, spot: JournalTopic, at: Offset) -> None:
        """Bring a reader close to the row of an offset, never behind it."""
        points, deadline = self.points(journal.id), self._readers.deadline()
        is_framed, skip = spot.is_framed, self._config.kafka_skip_rows_max
        low = first_guess(points, at, KafkaOffset(0), is_framed=is_framed)
        above, below = points.above(at), points.below(at)
        left = journal.end - at
        if below is not None and is_framed:
            left = at - below.offset
        if above is not None:
            high = KafkaOffset(above.kafka_offset - (0 if is_framed else above.offset - at))
        elif below is not None and left <= skip:
            high = low
        else:
            first, end = reader.bounds(spot, deadline)
            low = KafkaOffset(max(low, first))
            high = KafkaOffset(max(low, end - (0 if is_framed else left)))
        if is_framed:
            skip = _SKIP_FRAMES
        while high - low > skip:
            middle = KafkaOffset((low + high) // 2)
            reader.seek(spot, middle)
            point = self._first_own(reader, deadline)
            if point is not None:
                self.learn(journal.id, point)
            if point is not None and point.offset <= at:
                rows = 0 if is_framed else at - point.offset
                low = KafkaOffset(max(low, point.kafka_offset + rows))
            else:
                high = middle
        reader.seek(spot, low)

    def _first_own(self, reader: TopicReader, deadline: float) -> OffsetPoint | None:
        """The next row in a topic; None at its end."""
        while True:
            messages = reader.take_to_end(1, KafkaOffset(-1), deadline)
            if not messages:
                return None
            offset = kafka_messages.offset_of(headers_of(messages)[0])
            if offset is not None:
                return OffsetPoint(Offset(offset), kafka_offset_of(messages[0]))

    # Topics that others write.
    def plain_ranges(
        self, journal: Journal, spot: JournalTopic, offset: Offset
    ) -> Iterator[Stored]:
        """The messages of a plain topic from an offset on, as rows."""
        with self._readers.reader(spot, offset) as reader:
            at = offset
            rows = reader.rows
            if reader.spot == spot and rows is not None and rows.first <= at < rows.next:
                yield rows
                at = rows.next
            if reader.spot != spot or reader.next_offset != at:
                at = self._anchor(reader, journal, spot, at)
            while at < journal.end:
                rows = self._plain_chunk(reader, journal, spot, at)
                if rows is None:
                    return
                if rows.next > offset:
                    yield rows
                at = rows.next

    def anchor_at(self, journal: Journal, spot: JournalTopic, offset: Offset) -> None:
        """Find the clock before an offset of a plain topic out, and remember it there."""
        point = self.points(journal.id).below(offset)
        is_known = point is not None and point.offset == offset
        if is_known or not journal.start < offset <= journal.end:
            return
        clock: Clock | None = None
        for rows in self.plain_ranges(journal, spot, Offset(offset - 1)):
            assert isinstance(rows.content, pa.RecordBatch)
            before = int(np.searchsorted(rows.content[OFFSET].to_numpy(), offset))
            if before:
                clock = Clock(rows.content[CLOCK][before - 1].as_py())
            if rows.next >= offset:
                break
        if clock is None:
            # There is no row from the last point up to there.
            point = self.points(journal.id).below(offset)
            clock = plain_messages.FIRST_CLOCK if point is None else Clock(point.kafka_offset)
        self.learn(journal.id, OffsetPoint(offset, KafkaOffset(clock)))

    def _anchor(
        self, reader: TopicReader, journal: Journal, spot: JournalTopic, at: Offset
    ) -> Offset:
        """Bring a reader to the last offset at or below whose clock is known."""
        point = self.points(journal.id).below(at)
        if point is None or point.offset < journal.start:
            # Of rows that are gone the last known clock holds: no later row may have a lower one.
            known = plain_messages.FIRST_CLOCK if point is None else point.kafka_offset
            point = OffsetPoint(journal.start, KafkaOffset(known))
            self.learn(journal.id, point)
        reader.seek(spot, KafkaOffset(point.offset))
        reader.next_offset = point.offset
        return point.offset

    def _plain_chunk(
        self, reader: TopicReader, journal: Journal, spot: JournalTopic, at: Offset
    ) -> Stored | None:
        """The next messages; None if there are none up to the journal's end."""
        count = reader.count_max(1, journal.end - at)
        messages = reader.take_to_end(count, KafkaOffset(journal.end - 1), self._readers.deadline())
        if not messages:
            return None
        before = _clock_before(reader, self.points(journal.id), at)
        plain = plain_messages.PlainRows(
            offsets=[kafka_offset_of(message) for message in messages],
            values=[message.value() for message in messages],
            keys=[message.key() for message in messages],
            times_ms=[message.timestamp()[1] for message in messages],
        )
        producer = plain_messages.producer_of(spot.topic, spot.partition)
        where = f"topic {spot.topic} (partition {spot.partition})"
        rows = plain_messages.stored_rows(plain, journal.schema, producer, before, where=where)
        after = Offset(plain.offsets[-1] + 1)
        self.learn(journal.id, OffsetPoint(after, KafkaOffset(rows[CLOCK][-1].as_py())))
        reader.rows = Stored(
            first=at,
            next=after,
            rows=rows.num_rows,
            rows_before=at,
            kind=RangeKind.PLAIN,
            bytes=rows.nbytes,
            content=rows,
        )
        reader.next_offset = after
        return reader.rows


def _clock_before(reader: TopicReader, points: OffsetPoints, at: Offset) -> Clock:
    """The clock of the row before the one that a reader of a plain topic reads next."""
    rows = reader.rows
    if rows is not None and rows.next == at:
        assert isinstance(rows.content, pa.RecordBatch)
        return Clock(rows.content[CLOCK][-1].as_py())
    point = points.below(at)
    assert point is not None
    assert point.offset == at, (point, at)
    return Clock(point.kafka_offset)


def _from(messages: list[Received], at: Offset) -> kafka_messages.Incoming:
    """The messages of rows at or above an offset."""
    headers = headers_of(messages)
    is_kept = kafka_messages.are_rows_from(headers, at)
    if not is_kept.all():
        kept = np.flatnonzero(is_kept).tolist()
        messages, headers = (
            [messages[number] for number in kept],
            [headers[number] for number in kept],
        )
    return kafka_messages.Incoming(
        kafka_offset=kafka_offset_of(messages[0]) if messages else 0,
        values=[message.value() for message in messages],
        keys=[message.key() for message in messages],
        headers=headers,
    )


def lost(journal: Journal, offset: Offset, topic: str) -> DataLost:
    """Word the error for rows that a topic does not have."""
    return DataLost(
        f"rows of journal {journal.name!r} from offset {offset} on are lost\n"
        f"  looked in: topic {topic}, to its end\n"
        "  likely: somebody deleted the topic, or its retention was changed\n"
        "  to fix: restore the topic, or truncate the journal past these offsets"
    )
