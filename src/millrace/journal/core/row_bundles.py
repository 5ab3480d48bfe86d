"""Rows of very many journals on their way out of a broker: packed as stored, unpacked at once.

What is small is put together by schema into streams of Arrow messages, with a list of whose rows
are where in them. So nothing is decoded on the way, not even by an owner that sends them on, and a
journal costs a few microseconds. Pure.

Invariant: unpacked, each journal has its rows in order, and none of another one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from millrace.journal.core.committed_rows import RolledBackRange, committed_mask, stamps_of
from millrace.journal.core.row_format import Stamp, stamp_rows, stored_schema
from millrace.journal.core.values import Fetched

ALONE_BYTES: Final = 64 * 1024
"""Rows of this size are a bundle by themselves, and decoded without a copy."""
_FORMATS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Format:
    """How the rows of a schema are stored, and the message that a stream of them begins with."""

    users: pa.Schema
    stored: pa.Schema
    header: bytes

    @property
    def bare(self) -> pa.Schema:
        """Of rows in files that hold the user's columns alone."""
        return pa.schema([pa.field(field.name, field.type) for field in self.users])

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


def messages(data: bytes | pa.Buffer, stored: pa.Schema) -> list[pa.RecordBatch]:
    """The batches of messages that follow each other, without a copy."""
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(pa.py_buffer(data)))
    return [pa.ipc.read_record_batch(message, stored) for message in reader]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpot:
    """Messages that the reader fetches itself."""

    file: str
    """Relative to the folder of the journals."""
    position: int
    bytes: int
    checksum: str
    stamp: Stamp | None
    """The system fields of rows that hold none themselves."""


@dataclass(slots=True)
class Bundle:
    """Messages of one format, and whose rows they hold."""

    format: Format
    parts: list[bytes | pa.Buffer] = field(default_factory=list)
    whose: list[int] = field(default_factory=list)
    """Places of journals; each with the rows from `begins` on, `counts` of them."""
    begins: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: int = 0
    spot: FileSpot | None = None
    """Where the messages are; `parts` is empty until they are fetched."""

    def batches(self) -> list[pa.RecordBatch]:
        """All rows, decoded."""
        if self.spot is not None and self.spot.stamp is not None:
            (data,) = self.parts
            rows = pa.ipc.read_record_batch(pa.py_buffer(data), self.format.bare)
            return [stamp_rows(rows, self.spot.stamp)]
        if len(self.parts) == 1:
            return messages(self.parts[0], self.format.stored)
        return list(pa.ipc.open_stream(pa.py_buffer(b"".join([self.format.header, *self.parts]))))

    def unpack(self, into: list[list[pa.RecordBatch]]) -> None:
        """Give every journal its rows."""
        rest = iter(self.batches())
        batch, first = next(rest), 0
        for whose, begin, count in zip(self.whose, self.begins, self.counts, strict=True):
            at, end = begin, begin + count
            while at < end:
                after = first + batch.num_rows
                if at >= after:
                    batch, first = next(rest), after
                    continue
                size = min(after, end) - at
                is_all = size == batch.num_rows
                into[whose].append(batch if is_all else batch.slice(at - first, size))
                at += size


@dataclass(slots=True)
class Packed:
    """The rows read from many journals."""

    heads: list[Fetched] = field(default_factory=list)
    """In order, without rows."""
    bundles: list[Bundle] = field(default_factory=list)
    mixed: dict[int, tuple[RolledBackRange, ...]] = field(default_factory=dict)
    """Journals of which only committed rows are asked for, while others are packed; and what was
    rolled back in them."""

    def fetch(self, load: Callable[[Sequence[FileSpot]], Sequence[bytes]]) -> None:
        """Fill in what is in files."""
        away = [bundle for bundle in self.bundles if bundle.spot is not None and not bundle.parts]
        loaded = load([bundle.spot for bundle in away if bundle.spot is not None])
        for bundle, data in zip(away, loaded, strict=True):
            bundle.parts.append(data)

    def unpacked(self) -> Iterator[Fetched]:
        """The rows of each journal, unpacked."""
        batches: list[list[pa.RecordBatch]] = [[] for _ in self.heads]
        for bundle in self.bundles:
            bundle.unpack(batches)
        for number, (head, some) in enumerate(zip(self.heads, batches, strict=True)):
            gone = self.mixed.get(number)
            kept = some if gone is None else list(_committed(some, gone))
            yield head.with_batches(kept) if kept else head


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
        data: bytes | pa.Buffer,
        *,
        rows: int,
        begin: int,
        count: int,
    ) -> None:
        """Take messages in that hold `rows`, of which `count` from `begin` on are meant."""
        now = self.bundles[-1] if self.bundles else None
        is_small = len(data) < ALONE_BYTES
        if now is None or not is_small or not _takes_more(now, form):
            now = Bundle(form)
            self.bundles.append(now)
        now.parts.append(data)
        now.whose.append(whose)
        now.begins.append(now.rows + begin)
        now.counts.append(count)
        now.rows += rows

    def add_spot(self, whose: int, form: Format, spot: FileSpot, *, begin: int, count: int) -> None:
        """Take messages in that the reader fetches."""
        bundle = Bundle(form, whose=[whose], begins=[begin], counts=[count], spot=spot)
        self.bundles.append(bundle)


def _takes_more(bundle: Bundle, form: Format) -> bool:
    if bundle.spot is not None or len(bundle.parts[0]) >= ALONE_BYTES:
        return False
    return bundle.format is form or bundle.format.header == form.header


def pack(fetched: Iterable[Fetched], formats: Formats) -> Packed:
    """Pack the rows read from each journal, for brokers that have them in batches."""
    packed, packing = Packed(), Packing()
    for number, rows in enumerate(fetched):
        packed.heads.append(rows.with_batches(()))
        for batch in rows.batches:
            count = batch.num_rows
            form, data = formats.of(rows.schema), batch.serialize()
            packing.add(number, form, data, rows=count, begin=0, count=count)
    packed.bundles = packing.bundles
    return packed
