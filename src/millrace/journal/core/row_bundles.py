"""Rows of very many journals on their way out of a broker, joined by schema.

What is small is put together into streams of Arrow messages, with a list of whose rows are where in
them. So nothing is decoded on the way, not even by an owner that sends them on, and a journal costs
a few microseconds. A reader takes joined batches, or the rows of each journal. Pure.

Invariant: each journal has its rows in order, and none of another one's, in both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.core.committed_rows import RolledBackRange, committed_mask, stamps_of
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Stamp, bare_rows, stored_schema
from millrace.journal.core.values import Fetched

ALONE_BYTES: Final = 64 * 1024
"""Rows of this size are decoded by themselves, without a copy."""
_FORMATS_MAX: Final = 1024
_PREFIX_BYTES: Final = 8
"""What a message begins with: a mark, and the length of its head."""


@dataclass(frozen=True, slots=True)
class Format:
    """How the rows of a schema are stored, and the message that a stream of them begins with."""

    users: pa.Schema
    stored: pa.Schema
    header: bytes

    @classmethod
    def of(cls, schema: pa.Schema) -> Format:
        """The format of a journal's schema."""
        stored = stored_schema(schema)
        return cls(schema, stored, stored.serialize().to_pybytes())


class Formats:
    """The formats of the last schemas; very many journals mostly share very few."""

    def __init__(self) -> None:
        self._by_number: dict[int, tuple[pa.Schema, Format]] = {}
        """By the id of a schema's object, which is kept so that no other object gets it."""
        self._formats: list[Format] = []

    def of(self, schema: pa.Schema) -> Format:
        """The format of a schema."""
        known = self._by_number.get(id(schema))
        if known is not None:
            return known[1]
        format_ = next((format_ for format_ in self._formats if format_.users.equals(schema)), None)
        if format_ is None:
            format_ = Format.of(schema)
            self._formats = [format_, *self._formats[: _FORMATS_MAX - 1]]
        if len(self._by_number) >= _FORMATS_MAX:
            self._by_number = {}
        self._by_number[id(schema)] = (schema, format_)
        return format_


def messages(data: bytes | memoryview | pa.Buffer, stored: pa.Schema) -> list[pa.RecordBatch]:
    """The batches of messages that follow each other, without a copy."""
    content = pa.py_buffer(data)
    if content.size > _PREFIX_BYTES:
        # Most are a single message, for which a reader takes longer than decoding.
        message = pa.ipc.read_message(content)
        head = int.from_bytes(content[4:_PREFIX_BYTES].to_pybytes(), "little")
        if _PREFIX_BYTES + head + message.body.size == content.size:
            return [pa.ipc.read_record_batch(message, stored)]
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(content))
    return [pa.ipc.read_record_batch(message, stored) for message in reader]


def sliced(batches: Iterable[pa.RecordBatch], begin: int, count: int) -> list[pa.RecordBatch]:
    """So many rows of batches that follow each other, from one on."""
    out, first = [], 0
    for batch in batches:
        low, high = max(begin - first, 0), min(begin + count - first, batch.num_rows)
        if low < high:
            out.append(batch.slice(low, high - low))
        first += batch.num_rows
    return out


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that keep nothing but themselves in memory."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpot:
    """Messages that the reader fetches itself."""

    file: str
    """Relative to the folder of the journals."""
    position: int
    bytes: int
    rows: int
    checksum: str
    stamp: Stamp | None
    """The system fields of rows that hold none themselves."""
    is_keyed: bool = False
    """Whether such rows hold record keys and timestamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpot:
    """Rows in a topic of Kafka that the reader fetches itself, up to the end it is told."""

    topic: str
    near: tuple[Offset, int] | None
    """An offset of the journal and Kafka's of the same row, at or below the first one asked for."""
    is_framed: bool = False
    """Whether a message may have many rows."""


@dataclass(slots=True)
class Bundle:
    """Messages or batches of one format, and whose rows they hold."""

    format: Format
    parts: list[bytes | memoryview | pa.Buffer] = field(default_factory=list)
    whose: list[int] = field(default_factory=list)
    """Numbers of journals; each with the rows from `begins` on, `counts` of them."""
    begins: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: int = 0
    spot: FileSpot | None = None
    """Where the messages are; `parts` is empty until they are fetched."""
    decoded: list[pa.RecordBatch] = field(default_factory=list)
    """In place of messages, if the rows were decoded already."""

    def batches(self) -> list[pa.RecordBatch]:
        """All rows, decoded."""
        if self.decoded:
            return self.decoded
        if len(self.parts) == len(self.whose) == 1:
            return messages(self.parts[0], self.format.stored)
        return list(pa.ipc.open_stream(pa.py_buffer(b"".join([self.format.header, *self.parts]))))

    def messages(self) -> pa.Buffer:
        """All rows as messages that follow each other."""
        parts = [batch.serialize() for batch in self.decoded] or self.parts
        return pa.py_buffer(b"".join(parts))

    def cut(self) -> list[pa.RecordBatch]:
        """The rows that are meant, behind each other."""
        if self.spot is not None and self.spot.stamp is not None:
            return [self._stamped(self.spot, self.spot.stamp)]
        batches = self.batches()
        if sum(batch.num_rows for batch in batches) == sum(self.counts):
            return batches
        whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return [
            whole.slice(begin, count) for begin, count in zip(self.begins, self.counts, strict=True)
        ]

    def _stamped(self, spot: FileSpot, stamp: Stamp) -> pa.RecordBatch:
        """The rows that are meant, of a file that has none of the system fields."""
        (data,), (begin,), (count,) = self.parts, self.begins, self.counts
        users, is_keyed = self.format.users, spot.is_keyed
        return bare_rows(data, users, stamp, is_keyed=is_keyed, begin=begin, count=count)


@dataclass(frozen=True, slots=True)
class SpotPart:
    """What a reader takes of a spot now; `is_last`: also the last row."""

    spot: FileSpot
    is_last: bool


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows of many journals of one schema, those of a journal together and in order."""

    batches: list[pa.RecordBatch]
    """As stored, behind each other."""
    whose: npt.NDArray[np.int64]
    """The numbers of journals whose rows follow each other, `counts` rows of each."""
    counts: npt.NDArray[np.int64]


Problem = JournalUnknown | OffsetOutOfRange


@dataclass(slots=True, eq=False)
class ManyRows(Mapping[str, Fetched]):
    """The rows read from many journals: by journal, or joined.

    What is known of each journal is in lists, by its number here.
    """

    journals: list[str] = field(default_factory=list)
    ids: list[JournalId] = field(default_factory=list)
    schemas: list[pa.Schema] = field(default_factory=list)
    nexts: list[Offset] = field(default_factory=list)
    ends: list[Offset] = field(default_factory=list)
    problems: dict[int, Problem] = field(default_factory=dict)
    """Why nothing could be read of a journal."""
    bundles: list[Bundle] = field(default_factory=list)
    mixed: dict[int, tuple[RolledBackRange, ...]] = field(default_factory=dict)
    """Journals of which only committed rows are asked for, while others are packed; and what was
    rolled back in them."""
    topics: dict[int, TopicSpot] = field(default_factory=dict)
    """Journals whose rows from the next offset on are in Kafka."""
    _unpacked: dict[str, Fetched] | None = None

    def __len__(self) -> int:
        return len(self.journals)

    def __iter__(self) -> Iterator[str]:
        return iter(self.journals)

    def __contains__(self, journal: object) -> bool:
        return journal in self._by_journal()

    def __getitem__(self, journal: str) -> Fetched:
        return self._by_journal()[journal]

    def add(
        self, journal: str, id_: JournalId, schema: pa.Schema, next_: Offset, end: Offset
    ) -> int:
        """Answer for a journal; returns its number."""
        self.journals.append(journal)
        self.ids.append(id_)
        self.schemas.append(schema)
        self.nexts.append(next_)
        self.ends.append(end)
        return len(self.journals) - 1

    def fail(self, journal: str, offset: Offset, problem: Problem) -> None:
        """Answer for a journal that is gone, or has no such offset."""
        failed = Fetched.failed(journal, offset, problem)
        number = self.add(journal, failed.id, failed.schema, offset, offset)
        self.problems[number] = problem

    def raise_problem(self) -> None:
        """Raise the first problem, if there is one."""
        if self.problems:
            raise self.problems[min(self.problems)]

    def fetch(self, load: Callable[[Sequence[SpotPart]], Sequence[bytes]]) -> None:
        """Fill in what is in files."""
        away = [bundle for bundle in self.bundles if bundle.spot is not None and not bundle.parts]
        loaded = load(
            [
                SpotPart(bundle.spot, bundle.begins[0] + bundle.counts[0] >= bundle.spot.rows)
                for bundle in away
                if bundle.spot is not None
            ]
        )
        for bundle, data in zip(away, loaded, strict=True):
            bundle.parts.append(data)

    def joined(self) -> Iterator[JoinedRows]:
        """All rows, those of one schema together."""
        if self.mixed:
            yield from many_rows(self.values()).joined()
            return
        by_format: dict[bytes, list[Bundle]] = {}
        for bundle in self.bundles:
            by_format.setdefault(bundle.format.header, []).append(bundle)
        for bundles in by_format.values():
            yield JoinedRows(
                [batch for bundle in bundles for batch in bundle.cut()],
                np.array([whose for bundle in bundles for whose in bundle.whose], np.int64),
                np.array([count for bundle in bundles for count in bundle.counts], np.int64),
            )

    def _by_journal(self) -> dict[str, Fetched]:
        """The rows of each journal."""
        if self._unpacked is not None:
            return self._unpacked
        batches: list[list[pa.RecordBatch]] = [[] for _ in self.journals]
        for bundle in self.bundles:
            _deal_out(bundle, batches)
        for number, gone in self.mixed.items():
            batches[number] = list(_committed(batches[number], gone))
        columns = (self.journals, self.ids, self.schemas, batches, self.nexts, self.ends)
        self._unpacked = {
            journal: Fetched(
                journal=journal,
                id=id_,
                schema=schema,
                batches=tuple(rows),
                next_offset=next_offset,
                end_offset=end_offset,
                problem=self.problems.get(number) if self.problems else None,
            )
            for number, (journal, id_, schema, rows, next_offset, end_offset) in enumerate(
                zip(*columns, strict=True)
            )
        }
        return self._unpacked


def _deal_out(bundle: Bundle, into: list[list[pa.RecordBatch]]) -> None:
    """Give every journal its rows of a bundle."""
    rest = iter(bundle.cut())
    batch, first = next(rest), 0
    ends = list(accumulate(bundle.counts, initial=0))
    for whose, (begin, end) in zip(bundle.whose, pairwise(ends), strict=True):
        at = begin
        while at < end:
            after = first + batch.num_rows
            if at >= after:
                batch, first = next(rest), after
                continue
            size = min(after, end) - at
            is_all = size == batch.num_rows
            into[whose].append(batch if is_all else batch.slice(at - first, size))
            at += size


def _committed(
    batches: Iterable[pa.RecordBatch], rolled_back: Sequence[RolledBackRange]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        mask = committed_mask(stamps_of(batch), rolled_back)
        if mask.all():
            yield batch
        elif mask.any():
            yield batch.filter(pa.array(mask))


@dataclass(slots=True)
class Packing:
    """Puts rows into bundles."""

    bundles: list[Bundle] = field(default_factory=list)

    def add(
        self,
        whose: int,
        form: Format,
        data: bytes | memoryview | pa.Buffer,
        *,
        rows: int,
        begin: int,
        count: int,
    ) -> None:
        """Take small messages in that hold `rows`, of which `count` from `begin` on are meant."""
        now = self.bundles[-1] if self.bundles else None
        if now is None or now.decoded or not _takes_more(now, form):
            now = Bundle(form)
            self.bundles.append(now)
        now.parts.append(data)
        now.whose.append(whose)
        now.begins.append(now.rows + begin)
        now.counts.append(count)
        now.rows += rows

    def add_batches(self, whose: int, form: Format, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows in that are decoded."""
        for batch in batches:
            now = self.bundles[-1] if self.bundles else None
            if now is None or not now.decoded or not _takes_more(now, form):
                now = Bundle(form)
                self.bundles.append(now)
            now.decoded.append(batch)
            now.whose.append(whose)
            now.begins.append(now.rows)
            now.counts.append(batch.num_rows)
            now.rows += batch.num_rows

    def add_spot(self, whose: int, form: Format, spot: FileSpot, *, begin: int, count: int) -> None:
        """Take messages in that the reader fetches."""
        bundle = Bundle(form, whose=[whose], begins=[begin], counts=[count], spot=spot)
        self.bundles.append(bundle)


def _takes_more(bundle: Bundle, form: Format) -> bool:
    if bundle.spot is not None:
        return False
    return bundle.format is form or bundle.format.header == form.header


def many_rows(fetched: Iterable[Fetched], formats: Formats | None = None) -> ManyRows:
    """The rows read from each journal, for brokers that have them in batches."""
    rows, packing, formats = ManyRows(), Packing(), formats or Formats()
    for part in fetched:
        number = rows.add(part.journal, part.id, part.schema, part.next_offset, part.end_offset)
        if part.problem is not None:
            rows.problems[number] = part.problem
        full = [batch for batch in part.batches if batch.num_rows]
        packing.add_batches(number, formats.of(part.schema), full)
    rows.bundles = packing.bundles
    return rows
