"""Ranges on their way to a segment or the ledger, with their bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash
from msgspec.structs import replace as changed

from millrace.journal.core.book import Journal, RangeKind, RowBlock
from millrace.journal.core.row_format import FORMAT_VERSION, stored_schema
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InLedger


@dataclass(slots=True)
class StoredRange:
    """A range with its bytes, on the way to a segment or the ledger."""

    range: AppendRange
    parts: list[bytes | memoryview]
    is_sound: bool = True
    """Whether the bytes are those that were appended."""


@dataclass(slots=True)
class SegmentOutput:
    """The rows that go to one segment."""

    header: bytes
    """The first bytes of a new segment."""
    pieces: list[StoredRange] = field(default_factory=list)
    moved: list[AppendRange] = field(default_factory=list)
    """Those of them that were in the ledger."""


def piece_of(block: RowBlock, content: pa.RecordBatch) -> StoredRange:
    """A range whose checksum is computed later, together with its neighbours."""
    message = memoryview(content.serialize())
    return StoredRange(range_of(block, len(message), ""), [message])


def waited(range_: AppendRange) -> StoredRange:
    """A range that was stored in the ledger, and whether its bytes are still sound."""
    assert isinstance(range_.where, InLedger)
    content = range_.where.content
    return StoredRange(range_, [content], is_sound=checksum_of([content]) == range_.checksum)


def one_message(piece: StoredRange, journal: Journal) -> StoredRange:
    """Rows of many small appends in one message: it is read as fast as one large append."""
    if len(piece.parts) <= 1:
        return piece
    header = stored_schema(journal.schema).serialize()
    rows = pa.ipc.open_stream(pa.py_buffer(b"".join([header, *piece.parts]))).read_all()
    batches = rows.combine_chunks().to_batches()
    if len(batches) != 1:
        return piece
    merged: list[bytes | memoryview] = [memoryview(batches[0].serialize())]
    range_ = changed(piece.range, bytes=len(merged[0]), checksum=checksum_of(merged))
    return StoredRange(range_, merged)


def range_of(block: RowBlock, size: int, checksum: str) -> AppendRange:
    """The range of a block, which is nowhere yet."""
    return AppendRange(
        journal=block.journal.id,
        first=block.first,
        next=block.next,
        rows=block.rows,
        rows_before=block.rows_before,
        kind=RangeKind(block.kind),
        bytes=size,
        checksum=checksum,
        where=InLedger(0, b""),
    )


def checksum_of(parts: Iterable[bytes | memoryview]) -> str:
    """XXH3-64 of bytes that follow each other."""
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return str(digest.hexdigest())


def header_of(journal: Journal) -> bytes:
    """The schema message that a segment begins with; its metadata says whose it is."""
    about = {
        "millrace.journal": journal.name,
        "millrace.journal_id": str(journal.id),
        "millrace.format": str(FORMAT_VERSION),
    }
    return bytes(stored_schema(journal.schema).with_metadata(about).serialize().to_pybytes())
