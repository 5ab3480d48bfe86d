"""Ranges on their way to where they will lie, with their bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from millrace.journal.book import Block, Journal, Kind
from millrace.journal.embedded.ledger import InLedger, Range
from millrace.journal.records import FORMAT_VERSION, stored_schema


@dataclass(slots=True)
class Piece:
    """A range with its bytes, on the way to where it will lie."""

    range: Range
    parts: list[bytes | memoryview]
    is_sound: bool = True
    """Whether the bytes are those that were appended."""


@dataclass(slots=True)
class Out:
    """What goes to one segment."""

    header: bytes
    """What it begins with if it is new."""
    pieces: list[Piece] = field(default_factory=list)
    moved: list[Range] = field(default_factory=list)
    """Those of them that rode in the ledger."""


def piece_of(block: Block, content: pa.RecordBatch) -> Piece:
    """A range whose checksum is computed when it is known what it is put together with."""
    message = memoryview(content.serialize())
    return Piece(range_of(block, len(message), ""), [message])


def waited(each: Range) -> Piece:
    """A range that rode in the ledger; bytes that went bad there are told apart."""
    assert isinstance(each.where, InLedger)
    content = each.where.content
    return Piece(each, [content], is_sound=checksum_of([content]) == each.checksum)


def range_of(block: Block, size: int, checksum: str) -> Range:
    """The range of a block, which is nowhere yet."""
    return Range(
        journal=block.journal.id,
        first=block.first,
        next=block.next,
        rows=block.rows,
        rows_before=block.rows_before,
        kind=Kind(block.kind),
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
