"""A book comes back from the records that its drafts left."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.journal.journal_kit import SCHEMA, column, stamped, written

from millrace.errors import FormatError
from millrace.journal.core.book import Book
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.kafka import book_records
from millrace.journal.kafka.offset_points import KafkaOffset, OffsetPoint
from millrace.journal.memory import MemoryBroker


class Recorded(MemoryBroker):
    """A broker whose drafts leave records, compacted as Kafka would."""

    def __init__(self) -> None:
        self.topic: dict[bytes, bytes] = {}
        super().__init__()

    def _save(self, draft: Book) -> None:
        ids = [each.id for each in filter(None, draft.journals.own.values())]
        points = {each: OffsetPoint(Offset(1), KafkaOffset(each * 10)) for each in ids}
        for record in (book_records.format_record(), *book_records.changes(draft, points)):
            if record.value is None:
                self.topic.pop(record.key, None)
            else:
                self.topic[record.key] = record.value
        super()._save(draft)


def tables(book: Book) -> dict[str, dict[Any, Any]]:
    names = ("journals", "sequences", "rolled_back", "groups", "leases", "producers")
    more = ("producer_names", "counters", "adopted")
    found = {name: dict(getattr(book, name).all()) for name in (*names, *more)}
    # Nothing is as good as an empty table.
    for name in ("sequences", "rolled_back", "groups"):
        found[name] = {key: value for key, value in found[name].items() if value}
    return found


def test_a_book_comes_back_from_its_records() -> None:
    broker = Recorded()
    broker.create("a", SCHEMA, {"k": "v"})
    broker.create("b/c", pa.schema([pa.field("t", pa.string(), nullable=False)]))
    broker.create("gone", SCHEMA)
    broker.append("a", column(range(5)))
    producer = broker.producer_id("p")
    broker.append("a", column([5]), producer=producer, sequence=3)
    broker.append_stamped("a", stamped((1, 5, 10, Flag.OUTSIDE), (2, 5, 11, Flag.CONTINUE)))
    broker.append_stamped("a", stamped((None, 5, 10, Flag.ACK), (3, 5, 2**63, Flag.CONTINUE)))
    broker.append("gone", column([1]))
    broker.commit("g", "a", 3, expected=None)
    broker.commit("g", "gone", 1, expected=None)
    broker.adopt({"a": [written(broker, "f", [9])]})
    lease = broker.acquire("l", "me")
    broker.release(lease)
    broker.fence("m")
    broker.truncate_before("a", 2)
    broker.delete("gone")
    kept = book_records.load(broker.topic, where="here")

    assert tables(kept.book) == tables(broker._book)
    ids = {each.id for each in broker.list()}
    assert kept.points == {each: OffsetPoint(Offset(1), KafkaOffset(each * 10)) for each in ids}
    assert kept.book.journal("b/c").schema == broker.get("b/c").schema
    broker.close()


def test_only_what_changed_is_written() -> None:
    broker = Recorded()
    broker.create("a", SCHEMA)
    for number in range(20):
        broker.append_stamped("a", stamped((1, 100 + number, 10, Flag.OUTSIDE)))
        broker.commit(f"g{number}", "a", 0, expected=None)
    before = dict(broker.topic)
    broker.topic.clear()
    broker.commit("g3", "a", 1, expected=0)
    broker.append_stamped("a", stamped((1, 105, 11, Flag.OUTSIDE)))

    assert sorted(set(broker.topic) - {book_records.FORMAT}) == [
        b'["extent",1]',
        b'["group",1,"g3"]',
        b'["producer",105]',
        b'["sequence",1,105]',
    ]
    assert len(before) > 40
    broker.close()


def test_another_version_of_the_format_is_refused() -> None:
    with pytest.raises(FormatError, match="topic t has format version 2\n  read here: 1"):
        book_records.load({book_records.FORMAT: b"2"}, where="topic t")
    with pytest.raises(FormatError, match="format version None"):
        book_records.load({b'["counter","version"]': b"2"}, where="topic t")
    assert tables(book_records.load({}, where="topic t").book) == tables(Book())
