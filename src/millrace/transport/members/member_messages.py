"""What a session, its slices and their queues say over Flight, as bytes and back. Pure.

A message is an envelope, sent as the `app_metadata` of a Flight message: a header in JSON, behind
it the Arrow bytes that it refers to. Rows stand beside it, as the one value of the one column that
all streams have: a Flight stream has one schema, and bindings have many.

Invariant: whatever comes from the network is a message of the kind that its stream carries, or it
is a `UserError` that says what was found. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.errors import DataLost, MillraceError, UserError
from millrace.journal.core.row_format import CLOCK, OFFSET, PRODUCER
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.number_tables import Table, pack, unpack
from millrace.reads.model.session_messages import (
    Abandon,
    CatalogUpdate,
    Continue,
    Pressure,
    Reported,
    StartReads,
    Starts,
    StopReads,
)
from millrace.reads.model.slice_progress import SliceProgress
from millrace.reads.model.tags import Ints
from millrace.reads.queue.queue_messages import TAG, Flush, Flushed, QueueRows, RowsAccepted
from millrace.transport.flight import wire
from millrace.transport.flight.byte_batches import BYTES, byte_batch
from millrace.transport.owner.wire_shapes import (
    ARRAY,
    FLAG,
    SCHEMA,
    TEXT,
    WHOLE,
    ArrowParts,
    WireShape,
    aligned,
    between,
    either,
    many,
    maybe,
    record,
    seal,
    unseal,
    wrong,
)

_KINDS_MAX: Final = 256
_MEMBERS_MAX: Final = 2**16
_ALIGNED: Final = 8
_OFFSETS_BYTES: Final = 64
"""Before the value in what a stream carries."""
_FLIGHT_BYTES: Final = 2
"""Before all of it, short of a multiple of 8: seen with pyarrow 26."""
_STAMPS: Final = {
    TAG: pa.int64(),
    PRODUCER: pa.int64(),
    CLOCK: pa.uint64(),
    OFFSET: pa.int64(),
}
"""What a queue looks at of every row."""


@dataclass(frozen=True, slots=True)
class OpenStreams:
    """From the session, first on a slice's stream: open a stream to every queue."""

    addresses: tuple[str, ...]
    """Of all members, in order."""


@dataclass(frozen=True, slots=True)
class StreamsOpened:
    """The stream is open, and so are as many others that this one asked for."""

    streams: int = 0


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """Something failed, and with it the session."""

    error: MillraceError
    peer: int | None = None
    """The member that was lost; None if it is the one that says so."""


@dataclass(frozen=True, slots=True)
class MemberBeat:
    """There is nothing to say, and somebody there to say it."""


FromSession = OpenStreams | CatalogUpdate | StartReads | StopReads | Continue | Abandon | MemberBeat
FromSlice = StreamsOpened | Reported | Pressure | SessionFailed | MemberBeat
ToQueue = QueueRows | Flush | MemberBeat
FromQueue = StreamsOpened | RowsAccepted | Flushed | SessionFailed | MemberBeat


@dataclass(frozen=True, slots=True)
class SealedMessage:
    """A message as Flight sends it: an envelope, and rows where there are any."""

    envelope: bytes
    body: pa.Buffer | None = None

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return len(self.envelope) + (0 if self.body is None else self.body.size)


# Shapes of what the messages hold.
def _tables(kind: type[Any]) -> WireShape:
    def take(value: object, parts: ArrowParts) -> Table:
        found: Table = unpack(parts.get(value), [kind])[0]
        return found

    return WireShape(lambda table, parts: parts.add(pa.py_buffer(pack([table]))), take)


def _put_ints(value: Ints, parts: ArrowParts) -> Any:  # noqa: ANN401 - what a header holds
    return ARRAY.put(pa.array(value, pa.int64()), parts)


def _take_ints(value: object, parts: ArrowParts) -> Ints:
    found = ARRAY.take(value, parts)
    if found.type != pa.int64() or found.null_count:
        raise wrong("whole numbers", found.type)
    return np.asarray(found.to_numpy(), np.int64)


def _put_texts(value: Sequence[str], parts: ArrowParts) -> Any:  # noqa: ANN401 - what a header holds
    return ARRAY.put(pa.array(value, pa.string()), parts)


def _take_texts(value: object, parts: ArrowParts) -> tuple[str, ...]:
    found = ARRAY.take(value, parts)
    if found.type != pa.string() or found.null_count:
        raise wrong("texts", found.type)
    return tuple(found.to_pylist())


def _put_progress(value: SliceProgress, parts: ArrowParts) -> int:
    return parts.add(pa.py_buffer(value.to_bytes()))


def _take_progress(value: object, parts: ArrowParts) -> SliceProgress:
    return SliceProgress.from_bytes(parts.get(value))


def _put_error(value: MillraceError, _parts: ArrowParts) -> str:
    return wire.encode_error(value).decode()


def _take_error(value: object, parts: ArrowParts) -> MillraceError:
    found = wire.decode_error(TEXT.take(value, parts).encode())
    if found is None:
        raise wrong("an error", value)
    return found


_INTS: Final = WireShape(_put_ints, _take_ints)
_TEXTS: Final = WireShape(_put_texts, _take_texts)
_MEMBER: Final = between(0, _MEMBERS_MAX)
_CATALOG: Final = record(
    JournalCatalog, {"cohorts": many(WHOLE), "journals": many(_INTS), "highest": WHOLE}
)
_STARTS: Final = {"starts": _tables(Starts), "names": _TEXTS, "shown": _tables(ShownClock)}
_BEAT: Final = record(MemberBeat, {})
_OPENED: Final = record(StreamsOpened, {"streams": WHOLE})
_FAILED: Final = record(
    SessionFailed, {"error": WireShape(_put_error, _take_error), "peer": maybe(_MEMBER)}
)

FROM_SESSION: Final = either(
    {
        OpenStreams: record(OpenStreams, {"addresses": _TEXTS}),
        CatalogUpdate: record(CatalogUpdate, {"catalog": _CATALOG}),
        StartReads: record(StartReads, _STARTS),
        StopReads: record(StopReads, {"tags": _INTS}),
        Continue: record(Continue, {}),
        Abandon: record(Abandon, {"producer": WHOLE}),
        MemberBeat: _BEAT,
    }
)
FROM_SLICE: Final = either(
    {
        StreamsOpened: _OPENED,
        Reported: record(Reported, {"progress": WireShape(_put_progress, _take_progress)}),
        Pressure: record(Pressure, {"is_pushed_back": FLAG}),
        SessionFailed: _FAILED,
        MemberBeat: _BEAT,
    }
)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Rows whose body travels beside the envelope."""

    number: int
    schema: pa.Schema


TO_QUEUE: Final = either(
    {
        _Numbered: record(_Numbered, {"number": WHOLE, "schema": SCHEMA}),
        Flush: record(Flush, {"cycle": WHOLE}),
        MemberBeat: _BEAT,
    }
)
FROM_QUEUE: Final = either(
    {
        StreamsOpened: _OPENED,
        RowsAccepted: record(RowsAccepted, {"number": WHOLE}),
        Flushed: record(Flushed, {"cycle": WHOLE}),
        SessionFailed: _FAILED,
        MemberBeat: _BEAT,
    }
)


def encode(shape: WireShape, message: object, bytes_max: int) -> SealedMessage:
    """Write a message of a kind of stream; one that is too large is refused."""
    body = None
    if isinstance(message, QueueRows):
        _check_plain(message.batch.schema)
        body = message.batch.serialize()
        message = _Numbered(message.number, message.batch.schema)
    parts = ArrowParts()
    envelope = seal(shape.put(message, parts), parts)
    if body is not None:
        envelope += bytes(_padding(len(envelope), body.size))
    sealed = SealedMessage(envelope, body)
    _check_size(sealed.size, bytes_max)
    return sealed


def decode(
    shape: WireShape, envelope: pa.Buffer | None, body: pa.Buffer | None, bytes_max: int
) -> Any:  # noqa: ANN401
    """Read a message of a kind of stream."""
    if envelope is None:
        raise wrong("a message", "one without an envelope")
    _check_size(envelope.size + (0 if body is None else body.size), bytes_max)
    try:
        message = shape.take(*unseal(envelope))
    except (DataLost, AssertionError, pa.ArrowException, OSError) as error:
        raise wrong("a message", error) from error
    if not isinstance(message, _Numbered):
        if body is not None:
            raise wrong("a message without rows", type(message).__name__)
        return message
    if body is None:
        raise wrong("rows", "an envelope without them")
    _check_staged(message.schema)
    return QueueRows(message.number, read_rows(body, message.schema))


def unwrapped(batch: pa.RecordBatch | None) -> pa.Buffer | None:
    """The bytes of rows in what came; None if there are none."""
    if batch is None:
        return None
    if batch.num_rows != 1 or not batch.schema.equals(BYTES):
        raise wrong("rows", f"{batch.num_rows} of {batch.schema}")
    column = batch.column(0)
    _, offsets, data = column.buffers()
    if column.null_count or data is None:
        raise wrong("rows", "none")
    # A scalar would be a copy.
    begin, end = np.frombuffer(offsets, np.int64)[column.offset : column.offset + 2].tolist()
    if not 0 <= begin <= end <= data.size:
        raise wrong("rows", f"bytes {begin} to {end} of {data.size}")
    return data.slice(begin, end - begin)


def read_rows(body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Rows from their bytes; what does not fit its schema is refused."""
    _check_plain(schema)
    try:
        batch = pa.ipc.read_record_batch(aligned(body), schema)
        batch.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise wrong("rows", error) from error
    return batch


def _padding(envelope: int, body: int) -> int:
    """How many bytes behind an envelope let many rows beside it lie where Arrow can use them.

    Flight puts an envelope and its length before the rows and theirs; lengths have 7 bits a byte.
    Where that turns out wrong, rows are copied on arrival and nothing else happens.
    """
    behind = _length(body + _OFFSETS_BYTES) - _FLIGHT_BYTES
    ends = ((more, envelope + more) for more in range(_ALIGNED))
    return next((more for more, end in ends if (end + _length(end) + behind) % _ALIGNED == 0), 0)


def _length(size: int) -> int:
    """How many bytes a length takes."""
    return max(1, -(-size.bit_length() // 7))


# Questions.
def encode_visible(visible: Visible) -> bytes:
    """A ticket for the rows that become visible."""
    parts = ArrowParts()
    return seal(parts.add(pa.py_buffer(visible.to_bytes())), parts)


def decode_visible(ticket: pa.Buffer, bytes_max: int) -> Visible:
    """Read such a ticket."""
    _check_size(ticket.size, bytes_max)
    number, parts = unseal(ticket)
    try:
        return Visible.from_bytes(parts.get(number))
    except (DataLost, AssertionError) as error:
        raise wrong("a ticket for visible rows", error) from error


def encode_release(shown: ShownClock, rolled_back: RolledBack) -> bytes:
    """What a committed checkpoint shows."""
    return pack([shown, rolled_back])


def decode_release(content: pa.Buffer, bytes_max: int) -> tuple[ShownClock, RolledBack]:
    """Read what a committed checkpoint shows."""
    _check_size(content.size, bytes_max)
    try:
        shown, gone = unpack(aligned(content), [ShownClock, RolledBack])
    except (DataLost, AssertionError) as error:
        raise wrong("what a checkpoint shows", error) from error
    return shown, gone


def encode_rows(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Buffer]:
    """Visible rows as a stream carries them: the bytes, and beside them their schema."""
    _check_plain(batch.schema)
    return byte_batch(batch.serialize()), batch.schema.serialize()


def decode_rows(batch: pa.RecordBatch | None, schema: pa.Buffer | None) -> pa.RecordBatch:
    """Visible rows as they came."""
    body = unwrapped(batch)
    if body is None or schema is None:
        raise wrong("rows", "a message without them")
    return read_rows(body, _schema(schema.to_pybytes()))


@lru_cache(maxsize=_KINDS_MAX)
def _schema(data: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise wrong("a schema", error) from error


@lru_cache(maxsize=_KINDS_MAX)
def _check_plain(schema: pa.Schema) -> None:
    """Bare messages lose dictionaries; rows as stored have none."""
    for field in schema:
        if pa.types.is_dictionary(field.type) or pa.types.is_run_end_encoded(field.type):
            raise UserError(
                f"column {field.name} is encoded as {field.type}\n  to fix: decode it first"
            )


@lru_cache(maxsize=_KINDS_MAX)
def _check_staged(schema: pa.Schema) -> None:
    for name, kind in _STAMPS.items():
        place = schema.get_field_index(name)
        if place < 0 or schema.field(place).type != kind:
            raise wrong(f"rows with a column {name} of {kind}", ", ".join(schema.names))


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise UserError(
            f"a message of {size} bytes is too large\n  limit: {bytes_max} "
            "(reads_envelope_bytes_max)\n  to fix: raise the limit, or read fewer journals"
        )
