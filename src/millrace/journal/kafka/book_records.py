"""A broker's book as records of a compacted topic, and back. Pure.

A record's key is a JSON list, its table first; a record without a value takes the key away. Only
what a draft changed is written, in the transaction that also has its rows. Version 1 of the format:

    ["format"]                         1
    ["counter", name]                  number; "kafka_writer/<epoch>/<writer>" has the number of the
                                       last transaction of a writer that an owner enlisted
    ["journal", id]                    name, schema (base64 of Arrow's form), labels, created_at_ms
    ["extent", id]                     start, end, rows, last known point
    ["sequence", journal, producer]    last commit, begin and highest clock of what is open
    ["rolled_back", journal]           producer, begin, end of each
    ["group", journal, name]           next offset
    ["lease", name]                    epoch, holder, expires_at_ms, lease_ms
    ["producer", id]                   name, clock, sequence, answer
    ["adopted", path]                  bytes (or true), until the file is gone
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.errors import FormatError
from millrace.journal.core.book import Book, Journal, LeaseState, ProducerState
from millrace.journal.core.clocks import Clock
from millrace.journal.core.committed_rows import RolledBackRange
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.sequencing import OpenTransaction, Sequence
from millrace.journal.embedded.ledger.ledger_tables import answer_of, answer_text
from millrace.journal.kafka.offset_points import KafkaOffset, OffsetPoint

FORMAT_VERSION: Final = 1
PROBE: Final = b'["probe"]'
FORMAT: Final = b'["format"]'
_WRITER: Final = re.compile(r"kafka_writer/(\d+)/([0-9a-f]{16,32})")


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the state topic; without a value it takes its key away."""

    key: bytes
    value: bytes | None


@dataclass(slots=True)
class StateTopicContent:
    """The content of the state topic."""

    book: Book = field(default_factory=Book)
    points: dict[JournalId, OffsetPoint] = field(default_factory=dict)


def changes(draft: Book, points: Mapping[JournalId, OffsetPoint]) -> Iterator[Record]:
    """The records of a draft's changes; `points` are those known so far."""
    for name, count in draft.counters.own.items():
        yield _record(count, "counter", name)
    for journal in draft.deleted:
        yield from _forgotten(draft, journal)
    gone = {journal.id for journal in draft.deleted}
    for kept in filter(None, draft.journals.own.values()):
        yield from _journal(draft, kept, points.get(kept.id))
    yield from _sequences(draft, gone)
    for id_, ranges in draft.rolled_back.own.items():
        if id_ not in gone:
            spans = [[span.producer, span.begin, span.end] for span in ranges or ()]
            yield _record(spans or None, "rolled_back", id_)
    yield from _groups(draft, gone)
    for lease, state in draft.leases.own.items():
        assert state is not None
        what = [state.epoch, state.holder, state.expires_at_ms, state.lease_ms]
        yield _record(what, "lease", lease)
    for producer, known in draft.producers.own.items():
        assert known is not None
        what = [known.name, known.clock, known.sequence, answer_text(known.answer)]
        yield _record(what, "producer", producer)
    for path, taken in draft.adopted.own.items():
        yield _record(taken, "adopted", path)


def writer_counter(epoch: int, writer: str) -> str:
    """The counter of a writer that the owner of an epoch enlisted."""
    return f"kafka_writer/{epoch}/{writer}"


def writer_of(counter: str) -> tuple[int, str] | None:
    """The epoch and the writer of a counter, if it is one of a writer."""
    match = _WRITER.fullmatch(counter)
    return None if match is None else (int(match[1]), match[2])


def writers_in(records: Mapping[bytes, bytes]) -> set[str]:
    """The writers that owners enlisted, by records of the state topic."""
    keys = (json.loads(key) for key in records if key.startswith(b'["counter","kafka_writer/'))
    found = (writer_of(str(key[1])) for key in keys)
    return {known[1] for known in found if known is not None}


def format_record() -> Record:
    """The record with the format version of the others."""
    return Record(FORMAT, str(FORMAT_VERSION).encode())


def forgotten_file(path: str) -> Record:
    """Takes an adopted file away that is deleted."""
    return _record(None, "adopted", path)


def extent(journal: Journal, point: OffsetPoint | None) -> Record:
    """The end of a journal, and the Kafka offset of one of its rows."""
    known = None if point is None else [point.offset, point.kafka_offset]
    return _record([journal.start, journal.end, journal.rows, known], "extent", journal.id)


def load(records: Mapping[bytes, bytes], *, where: str) -> StateTopicContent:
    """The book that the latest records of all keys make."""
    version = records.get(FORMAT)
    if records and version != str(FORMAT_VERSION).encode():
        raise FormatError(
            f"{where} has format version {None if version is None else version.decode()}\n"
            f"  read here: {FORMAT_VERSION}\n"
            "  to fix: use the Millrace that wrote it, or give another name in the address"
        )
    kept = StateTopicContent()
    by_table: dict[str, list[tuple[list[Any], Any]]] = {}
    for key, value in records.items():
        table, *names = json.loads(key)
        by_table.setdefault(table, []).append((names, json.loads(value)))
    journals = {names[0]: what for names, what in by_table.pop("journal", [])}
    for names, what in by_table.pop("extent", []):
        _load_journal(kept, JournalId(names[0]), journals[names[0]], what)
    for table, table_records in by_table.items():
        for names, what in table_records:
            _load(kept.book, table, names, what)
    return kept


def _record(value: object, *key: object) -> Record:
    text = None if value is None else json.dumps(value, separators=(",", ":")).encode()
    return Record(json.dumps(key, separators=(",", ":")).encode(), text)


def _journal(draft: Book, journal: Journal, point: OffsetPoint | None) -> Iterator[Record]:
    below = draft.journals.below
    assert below is not None
    before = below.get(journal.name)
    if before is None or before.id != journal.id:
        schema = base64.b64encode(journal.schema.serialize()).decode("ascii")
        what = [journal.name, schema, dict(journal.labels), journal.created_at_ms]
        yield _record(what, "journal", journal.id)
    yield extent(journal, point)


def _forgotten(draft: Book, journal: Journal) -> Iterator[Record]:
    """Nothing is left of a deleted journal."""
    for table in ("journal", "extent", "rolled_back"):
        yield _record(None, table, journal.id)
    assert draft.sequences.below is not None
    assert draft.groups.below is not None
    for producer in draft.sequences.below.get(journal.id) or ():
        yield _record(None, "sequence", journal.id, producer)
    for group in draft.groups.below.get(journal.id) or ():
        yield _record(None, "group", journal.id, group)


def _sequences(draft: Book, gone: set[JournalId]) -> Iterator[Record]:
    assert draft.sequences.below is not None
    for id_, now in draft.sequences.own.items():
        before = draft.sequences.below.get(id_) or {}
        if id_ in gone or now is None:
            continue
        for producer, state in now.items():
            if before.get(producer) != state:
                pending = None if state.open is None else [state.open.begin, state.open.highest]
                yield _record([state.last_commit, pending], "sequence", id_, producer)


def _groups(draft: Book, gone: set[JournalId]) -> Iterator[Record]:
    assert draft.groups.below is not None
    for id_, now in draft.groups.own.items():
        before = draft.groups.below.get(id_) or {}
        if id_ in gone or now is None:
            continue
        for group, offset in now.items():
            if before.get(group) != offset:
                yield _record(offset, "group", id_, group)


def _load_journal(
    kept: StateTopicContent, id_: JournalId, made: list[Any], extent: list[Any]
) -> None:
    name, schema, labels, created = made
    start, end, rows, point = extent
    journal = Journal(
        id=id_,
        name=name,
        schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))),
        labels=labels,
        created_at_ms=created,
        start=Offset(start),
        end=Offset(end),
        rows=rows,
    )
    kept.book.journals.put(name, journal)
    if point is not None:
        kept.points[id_] = OffsetPoint(Offset(point[0]), KafkaOffset(point[1]))


def _load(book: Book, table: str, names: list[Any], what: Any) -> None:  # noqa: ANN401 - JSON
    match table:
        case "counter":
            book.counters.put(names[0], what)
        case "sequence":
            last, pending = what
            state = Sequence(Clock(last), None if pending is None else _open(pending))
            _add(book.sequences.own, JournalId(names[0]), ProducerId(names[1]), state)
        case "rolled_back":
            gone = tuple(RolledBackRange(ProducerId(p), Offset(b), Offset(e)) for p, b, e in what)
            book.rolled_back.put(JournalId(names[0]), gone)
        case "group":
            _add(book.groups.own, JournalId(names[0]), names[1], Offset(what))
        case "lease":
            epoch, holder, expires, lasts = what
            lease = LeaseState(epoch=epoch, holder=holder, expires_at_ms=expires, lease_ms=lasts)
            book.leases.put(names[0], lease)
        case "producer":
            _load_producer(book, ProducerId(names[0]), what)
        case "adopted":
            book.adopted.put(names[0], int(what))
        case _:
            assert table == "format", table


def _load_producer(book: Book, id_: ProducerId, what: list[Any]) -> None:
    name, clock, sequence, answer = what
    state = ProducerState(
        name=name, clock=Clock(clock), sequence=sequence, answer=answer_of(answer)
    )
    book.producers.put(id_, state)
    if name is not None:
        book.producer_names.put(name, id_)


def _open(pending: list[int]) -> OpenTransaction:
    return OpenTransaction(Offset(pending[0]), Clock(pending[1]))


def _add(table: dict[Any, Any], outer: object, inner: object, value: object) -> None:
    table.setdefault(outer, {})[inner] = value
