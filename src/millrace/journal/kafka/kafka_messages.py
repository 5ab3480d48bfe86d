"""Stored rows as Kafka messages and back: values, keys and headers. Pure.

The header `mr` of a message has the row's system fields, 34 bytes, big-endian: format version (1
byte), flag (1), offset (8), producer (8), clock (8) and how many rows of the journal come before it
(8). The message's key is the record key. Header `mr-timestamp` has the record's timestamp, if there
is one, in microseconds since 1970 UTC (8 bytes); `mr-hints` has an ACK's hints as a JSON list.

A frame is a message with many rows, format version 2. Its value is an Arrow record batch message:
the user's columns, after record keys and timestamps if there are any. `mr` has the fields of its
first row; offsets and clocks rise by one. Header `mr-rows` has the number of rows (4 bytes), and 1
if keys and timestamps are there (1 byte).

Invariant: a message without the header `mr` is not Millrace's and is no row of a journal.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, starmap
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import Config
from millrace.errors import FormatError
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import Offset
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
    ProducerId,
    Stamp,
    bare_rows,
    check_keys,
    check_timestamps,
    conform,
    keyed_rows,
    one_run,
    stamp_rows,
    stored_schema,
)
from millrace.journal.core.values import Append, JournalInfo
from millrace.journal.core.write_grants import AnnouncedRows
from millrace.journal.kafka import message_rows as codec
from millrace.limits import KIB

VERSION: Final = 1
FRAME_VERSION: Final = 2
FRAME_BYTES_TARGET: Final = 512 * KIB
"""About how many bytes of rows a frame has."""
SYSTEM: Final = "mr"
TIMESTAMP_HEADER: Final = "mr-timestamp"
HINTS_HEADER: Final = "mr-hints"
ROWS_HEADER: Final = "mr-rows"
_HEAD: Final = struct.Struct(">BBqqQq")
_FRAME: Final = struct.Struct(">IB")
_BESIDE_BYTES: Final = 1024
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
    """A Kafka message: one row, or a frame."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int = 0


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
    return list(starmap(KafkaMessage, zip(values, keys, headers, strict=True)))


def outgoing_frames(stored: pa.RecordBatch, rows_before: int, bytes_max: int) -> list[KafkaMessage]:
    """Frames for stored rows, each of at most so many bytes; messages where that cannot be."""
    run = one_run(stored)
    if run is None:
        return outgoing(stored, rows_before)
    content = stored.select(list(range(SYSTEM_COLUMNS, stored.num_columns)))
    keys, times = stored[KEY], stored[TIMESTAMP]
    is_keyed = min(keys.null_count, times.null_count) < stored.num_rows
    if is_keyed:
        content = keyed_rows(content, keys, times)
    first, (producer, clock, flag) = stored[OFFSET][0].as_py(), run
    step = max(1, FRAME_BYTES_TARGET * stored.num_rows // max(1, content.nbytes))
    messages: list[KafkaMessage] = []
    for begin in range(0, stored.num_rows, step):
        for at, count, data in _cut(content.slice(begin, step), begin, bytes_max - _BESIDE_BYTES):
            if data is None:
                messages += outgoing(stored.slice(at, count), rows_before + at)
                continue
            head = _HEAD.pack(
                FRAME_VERSION, flag, first + at, producer, clock + at, rows_before + at
            )
            headers = [(SYSTEM, head), (ROWS_HEADER, _FRAME.pack(count, is_keyed))]
            messages.append(KafkaMessage(data, None, headers))
    return messages


def _cut(rows: pa.RecordBatch, at: int, bytes_max: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Rows as Arrow messages that are small enough, from a number on; None for a row too large."""
    data = rows.serialize()
    if data.size <= bytes_max:
        yield at, rows.num_rows, data.to_pybytes()
    elif rows.num_rows == 1:
        yield at, 1, None
    else:
        half = rows.num_rows // 2
        yield from _cut(rows.slice(0, half), at, bytes_max)
        yield from _cut(rows.slice(half), at + half, bytes_max)


def offset_of(headers: Headers | None) -> int | None:
    """The journal's offset of a message's first row; None if the message is not Millrace's."""
    if not headers or headers[0][0] != SYSTEM:
        return None
    return int.from_bytes(headers[0][1][2:10], "big", signed=True)


def are_rows_from(headers: Sequence[Headers], at: int) -> npt.NDArray[np.bool_]:
    """Which messages are Millrace's, with rows at or above this offset of the journal."""
    own = [header[0][1] for header in headers if header and header[0][0] == SYSTEM]
    data = b"".join(own)
    is_whole = len(own) == len(headers) and len(data) == len(own) * _DTYPE.itemsize
    if is_whole and not _has_frames(headers):
        return np.frombuffer(data, _DTYPE)["offset"] >= at
    firsts = map(offset_of, headers)
    return np.array(
        [
            first is not None and first + _row_count(header) > at
            for first, header in zip(firsts, headers, strict=True)
        ],
        np.bool_,
    )


def incoming(given: Incoming, schema: pa.Schema, *, where: str) -> Decoded:
    """The stored rows of messages, of which there is at least one."""
    if not _has_frames(given.headers):
        return _rows(given, schema, where)
    decoded: list[Decoded] = []
    begin = 0
    for is_frame, some in groupby(given.headers, _is_frame):
        end = begin + len(list(some))
        if is_frame:
            decoded += [
                _framed(value, header, schema, where)
                for value, header in zip(
                    given.values[begin:end], given.headers[begin:end], strict=True
                )
            ]
        else:
            part = Incoming(
                kafka_offset=given.kafka_offset,
                values=given.values[begin:end],
                keys=given.keys[begin:end],
                headers=given.headers[begin:end],
            )
            decoded.append(_rows(part, schema, where))
        begin = end
    if len(decoded) == 1:
        return decoded[0]
    return Decoded(pa.concat_batches([one.rows for one in decoded]), decoded[0].rows_before)


def _is_frame(headers: Headers) -> bool:
    return len(headers) > 1 and headers[1][0] == ROWS_HEADER


def _has_frames(headers: Sequence[Headers]) -> bool:
    return max(map(len, headers), default=0) > 1 and any(map(_is_frame, headers))


def _row_count(headers: Headers) -> int:
    """How many rows a message of Millrace's has."""
    is_frame = _is_frame(headers) and len(headers[1][1]) == _FRAME.size
    return int(_FRAME.unpack(headers[1][1])[0]) if is_frame else 1


def _framed(value: bytes | None, headers: Headers, schema: pa.Schema, where: str) -> Decoded:
    """The rows of a frame."""
    head, beside = headers[0][1], headers[1][1]
    if len(head) != _HEAD.size or head[0] != FRAME_VERSION or len(beside) != _FRAME.size:
        raise FormatError(
            f"a frame of {where} has format version {head[:1].hex()}, and {len(head)} and "
            f"{len(beside)} bytes of system fields\n  read here: version {FRAME_VERSION}, "
            f"{_HEAD.size} and {_FRAME.size} bytes\n"
            "  to fix: use the Millrace that wrote it, or a newer one"
        )
    _, flag, offset, producer, clock, rows_before = _HEAD.unpack(head)
    count, is_keyed = _FRAME.unpack(beside)
    stamp = Stamp(
        first_offset=Offset(offset),
        producer=ProducerId(producer),
        first_clock=Clock(clock),
        flag=Flag(flag),
    )
    try:
        rows = bare_rows(value or b"", schema, stamp, is_keyed=bool(is_keyed))
    except (pa.ArrowException, OSError, EOFError) as error:
        rows, why = None, str(error)
    else:
        why = f"{rows.num_rows} rows"
    if rows is None or rows.num_rows != count:
        raise FormatError(
            f"a frame of {where} at offset {offset} does not have its {count} rows\n"
            f"  found: {why}\n  to fix: let only Millrace write to this topic"
        )
    return Decoded(rows, rows_before)


def _rows(given: Incoming, schema: pa.Schema, where: str) -> Decoded:
    """The stored rows of messages that have a row each."""
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
