"""Stored rows as Kafka messages and back: values, keys and headers. Pure.

The header `mr` of a message has the row's system fields, 34 bytes, big-endian: format version (1
byte), flag (1), offset (8), producer (8), clock (8) and how many rows of the journal come before it
(8). The message's key is the record key. Header `mr-timestamp` has the record's timestamp, if there
is one, in microseconds since 1970 UTC (8 bytes); `mr-hints` has an ACK's hints as a JSON list.

Invariant: a message without the header `mr` is not Millrace's and is no row of a journal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import Config
from millrace.errors import FormatError
from millrace.journal.core.row_format import (
    CLOCK,
    FLAG,
    HINTS,
    KEY,
    OFFSET,
    PRODUCER,
    SYSTEM_COLUMNS,
    TIMESTAMP,
    Flag,
    Stamp,
    check_keys,
    check_timestamps,
    conform,
    stamp_rows,
    stored_schema,
)
from millrace.journal.core.values import Append, JournalInfo
from millrace.journal.core.write_grants import AnnouncedRows
from millrace.journal.kafka import message_rows as codec

VERSION: Final = 1
SYSTEM: Final = "mr"
TIMESTAMP_HEADER: Final = "mr-timestamp"
HINTS_HEADER: Final = "mr-hints"
_DTYPE: Final = np.dtype(
    [
        ("version", "u1"),
        ("flag", "u1"),
        ("offset", ">i8"),
        ("producer", ">i8"),
        ("clock", ">u8"),
        ("rows_before", ">i8"),
    ]
)

Headers = list[tuple[str, bytes]]


class KafkaMessage(NamedTuple):
    """The Kafka message of one row."""

    value: bytes | None
    key: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """Messages of a journal's topic as they were read, Millrace's own ones alone."""

    kafka_offset: int
    """Kafka's offset of the first."""
    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Headers]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Stored rows, and how many rows of the journal come before them."""

    rows: pa.RecordBatch
    rows_before: int


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows that fit their journal, and what stands beside them."""

    batch: pa.RecordBatch
    keys: pa.Array | None
    timestamps: pa.Array | None

    @classmethod
    def of(cls, part: Append, info: JournalInfo, config: Config) -> HeldRows:
        """The rows of a part of a publish; what does not fit is refused, as the owner would."""
        batch = conform(part.rows, info.schema, where=info.name)
        codec.check_rows(batch, config.kafka_message_bytes_max, where=info.name)
        count = batch.num_rows
        times = check_timestamps(part.timestamps, count)
        return cls(batch, check_keys(part.keys, count), times)

    @classmethod
    def of_stamped(cls, rows: pa.RecordBatch, info: JournalInfo, config: Config) -> HeldRows:
        """Rows that a producer stamped."""
        batch = rows.select(info.schema.names)
        codec.check_rows(batch, config.kafka_message_bytes_max, where=info.name)
        return cls(batch, rows[KEY], rows[TIMESTAMP])

    def stored(self, stamp: Stamp) -> pa.RecordBatch:
        """The rows in their stored form."""
        return stamp_rows(self.batch, stamp, keys=self.keys, timestamps=self.timestamps)

    def announced(self, part: int, info: JournalInfo, expected: int | None) -> AnnouncedRows:
        """What the owner is told of them."""
        return AnnouncedRows(
            part=part,
            journal=info.name,
            id=info.id,
            rows=self.batch.num_rows,
            bytes=self.batch.nbytes,
            expected=expected,
        )


def outgoing(stored: pa.RecordBatch, rows_before: int) -> list[KafkaMessage]:
    """The messages for stored rows."""
    users = stored.select(list(range(SYSTEM_COLUMNS, stored.num_columns)))
    flags = stored[FLAG].to_numpy()
    is_ack = flags == Flag.ACK
    heads = np.empty(stored.num_rows, _DTYPE)
    heads["version"] = VERSION
    heads["flag"] = flags
    heads["offset"] = stored[OFFSET].to_numpy()
    heads["producer"] = stored[PRODUCER].to_numpy()
    heads["clock"] = stored[CLOCK].to_numpy()
    heads["rows_before"] = rows_before + _before(is_ack)
    data, size = heads.tobytes(), _DTYPE.itemsize
    headers: list[Headers] = [[(SYSTEM, data[at : at + size])] for at in range(0, len(data), size)]
    values = codec.encode(users)
    for row in np.flatnonzero(is_ack).tolist():
        values[row] = None
        hints = stored[HINTS][row].as_py() or []
        headers[row].append((HINTS_HEADER, json.dumps(hints).encode()))
    times = stored[TIMESTAMP]
    if times.null_count < stored.num_rows:
        for header, time in zip(headers, times.cast(pa.int64()).to_pylist(), strict=True):
            if time is not None:
                header.append((TIMESTAMP_HEADER, time.to_bytes(8, "big", signed=True)))
    keys = stored[KEY].to_pylist()
    return list(map(KafkaMessage._make, zip(values, keys, headers, strict=True)))


def offset_of(headers: Headers | None) -> int | None:
    """The journal's offset of a message; None if the message is not Millrace's."""
    if not headers or headers[0][0] != SYSTEM:
        return None
    return int.from_bytes(headers[0][1][2:10], "big", signed=True)


def are_rows_from(headers: Sequence[Headers], at: int) -> npt.NDArray[np.bool_]:
    """Which messages are Millrace's, with an offset of the journal at or above this one."""
    own = [header[0][1] for header in headers if header and header[0][0] == SYSTEM]
    data = b"".join(own)
    if len(own) == len(headers) and len(data) == len(own) * _DTYPE.itemsize:
        return np.frombuffer(data, _DTYPE)["offset"] >= at
    offsets = map(offset_of, headers)
    return np.array([offset is not None and offset >= at for offset in offsets], np.bool_)


def incoming(given: Incoming, schema: pa.Schema, *, where: str) -> Decoded:
    """The stored rows of messages, of which there is at least one."""
    heads = _heads(given.headers, where)
    times: list[int | None] = [None] * len(heads)
    hints: list[list[int] | None] = [None] * len(heads)
    more = [row for row, header in enumerate(given.headers) if len(header) > 1]
    for row in more:
        for name, content in given.headers[row][1:]:
            if name == TIMESTAMP_HEADER:
                times[row] = int.from_bytes(content, "big", signed=True)
            elif name == HINTS_HEADER:
                hints[row] = json.loads(content)
    kinds = stored_schema(schema)
    system = [
        pa.array(heads["offset"].astype(np.int64)),
        pa.array(heads["producer"].astype(np.int64)),
        pa.array(heads["clock"].astype(np.uint64)),
        pa.array(heads["flag"].astype(np.uint8)),
        pa.array(hints, kinds.field(HINTS).type),
        pa.array(given.keys, pa.binary()),
        pa.array(times, pa.int64()).cast(kinds.field(TIMESTAMP).type),
    ]
    users = codec.decode(given.values, schema)
    rows = pa.RecordBatch.from_arrays([*system, *users], schema=kinds)
    return Decoded(rows, int(heads["rows_before"][0]))


def _heads(headers: Sequence[Headers], where: str) -> npt.NDArray[np.void]:
    data = b"".join([header[0][1] for header in headers])
    if len(data) != len(headers) * _DTYPE.itemsize:
        raise FormatError(
            f"a message of {where} has system fields of another length\n"
            f"  expected: {_DTYPE.itemsize} bytes each, found: {len(data)} in {len(headers)}\n"
            "  to fix: let only Millrace write to this topic"
        )
    heads = np.frombuffer(data, _DTYPE)
    if (heads["version"] != VERSION).any():
        version = int(heads["version"][heads["version"] != VERSION][0])
        raise FormatError(
            f"a message of {where} has format version {version}\n  read here: {VERSION}\n"
            "  to fix: use the Millrace that wrote it, or a newer one"
        )
    return heads


def _before(is_ack: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How many of the rows, ACKs not counted, come before each."""
    counted = np.cumsum(~is_ack, dtype=np.int64)
    return counted - ~is_ack
