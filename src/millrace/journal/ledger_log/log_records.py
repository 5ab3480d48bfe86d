"""The records of a decision log, and its snapshots, as bytes. Pure.

    record      MAGIC, version, MessagePack of a `LogRecord`, XXH3-64 of all that
    snapshot    MAGIC, version, compressed SQLite file, XXH3-64 of all that

Invariant: bytes that were cut, changed or made by a newer version are never taken for a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import xxhash

from millrace.errors import Corrupt, FormatError
from millrace.journal.embedded.ledger import ledger_tables
from millrace.journal.embedded.ledger.ledger_saving import STATEMENTS, Change
from millrace.message_types import known

VERSION: Final = 1
_RECORD: Final = b"MRLR"
_SNAPSHOT: Final = b"MRLS"
_HEAD_BYTES: Final = 5
_SUM_BYTES: Final = 8
_SIZE_BYTES: Final = 8
_PACKED: Final = "zstd"
_WHOLE_ROW: Final = "put_"
"""How changes are called whose values are the columns of a table."""


class OwnerOpening(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new owner: its record begins an epoch, and ends that of every owner before it."""

    id: int
    host: str
    pid: int
    loss: str | None = None
    """What was missing when it opened the log, if that was accepted."""


class LogRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of decisions, all or nothing; or the beginning of an epoch."""

    number: int
    epoch: int
    mark: str
    """Random: two records are the same only if this is."""
    at_ms: int
    tables: int
    """The version of the tables that the changes are for."""
    opening: OwnerOpening | None = None
    changes: list[tuple[str, list[list[Any]]]] = []


def with_changes(record: LogRecord, changes: Sequence[Change]) -> LogRecord:
    """A record of these changes."""
    rows = [(name, [list(row) for row in some]) for name, some in changes]
    return msgspec.structs.replace(record, changes=rows)


def encode_record(record: LogRecord) -> bytes:
    """A record as the log keeps it."""
    return _sealed(_RECORD, msgspec.msgpack.encode(record))


def decode_record(data: bytes, *, where: str) -> LogRecord:
    """Read a record; `where` names it in errors."""
    content = _opened(_RECORD, data, where)
    try:
        record = msgspec.msgpack.decode(content, type=known(LogRecord))
    except msgspec.DecodeError as error:
        raise _damaged(where, str(error)) from error
    if record.tables > ledger_tables.FORMAT_VERSION:
        raise FormatError(
            f"{where} is for tables of version {record.tables}\n"
            f"  newest version read: {ledger_tables.FORMAT_VERSION}\n"
            "  to fix: use a newer Millrace"
        )
    unknown = [name for name, _ in record.changes if name not in STATEMENTS]
    if unknown:
        raise FormatError(
            f"{where} holds a change of another version\n  found: {unknown[0]!r}\n"
            "  to fix: use a newer Millrace"
        )
    return record


def changes_of(record: LogRecord) -> list[Change]:
    """The changes of a record, with nulls for columns that its version of the tables had not."""
    return [
        (name, [_padded(row, STATEMENTS[name].count("?")) for row in rows])
        if name.startswith(_WHOLE_ROW)
        else (name, rows)
        for name, rows in record.changes
    ]


def encode_snapshot(tables: bytes) -> bytes:
    """The file of the tables as the log keeps it."""
    packed = pa.compress(tables, _PACKED, asbytes=True)
    return _sealed(_SNAPSHOT, len(tables).to_bytes(_SIZE_BYTES) + packed)


def decode_snapshot(data: bytes, *, where: str) -> bytes:
    """The file of the tables from a snapshot."""
    content = _opened(_SNAPSHOT, data, where)
    size = int.from_bytes(content[:_SIZE_BYTES])
    try:
        return bytes(pa.decompress(content[_SIZE_BYTES:], size, _PACKED, asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(where, str(error)) from error


def _padded(row: Sequence[Any], count: int) -> Sequence[Any]:
    return row if len(row) >= count else [*row, *[None] * (count - len(row))]


def _sealed(magic: bytes, content: bytes) -> bytes:
    data = magic + bytes([VERSION]) + content
    return data + xxhash.xxh3_64_digest(data)


def _opened(magic: bytes, data: bytes, where: str) -> bytes:
    if len(data) < _HEAD_BYTES + _SUM_BYTES or data[: len(magic)] != magic:
        raise _damaged(where, f"{len(data)} bytes that begin with {data[:4]!r}")
    version = data[len(magic)]
    if version != VERSION:
        raise FormatError(
            f"{where} has version {version}\n  version read: {VERSION}\n"
            "  to fix: use a newer Millrace"
        )
    if xxhash.xxh3_64_digest(data[:-_SUM_BYTES]) != data[-_SUM_BYTES:]:
        raise _damaged(where, "a wrong checksum")
    return data[_HEAD_BYTES:-_SUM_BYTES]


def _damaged(where: str, found: str) -> Corrupt:
    return Corrupt(
        f"{where} is damaged\n  found: {found}\n  to fix: bring the journals back from a copy"
    )
