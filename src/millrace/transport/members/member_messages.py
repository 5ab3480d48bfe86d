"""The messages between a session, its slices and their queues, as bytes and back. Pure.

A message is an envelope (see `arrow_envelope`), sent as the `app_metadata` of a Flight message. The
rows are beside it, as the one value of the one column that all streams have: a stream has one
schema, and bindings have many.

Invariant: a message from the network is of a kind that its stream carries, or it is a `UserError`
that shows the message. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Union

import msgspec
import numpy as np
import pyarrow as pa

from millrace.errors import DataLost, MillraceError, UserError
from millrace.journal.core.number_ranges import Int64
from millrace.journal.core.row_format import CLOCK, OFFSET, PRODUCER
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
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
from millrace.reads.model.tags import TAG
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.transport.flight import arrow_envelope, wire
from millrace.transport.flight.arrow_envelope import aligned, schema_of
from millrace.transport.flight.byte_batches import BYTES, byte_batch
from millrace.transport.flight.wire import wrong
from millrace.transport.members.catalog_fields import (
    CatalogFields,
    read_catalog,
    read_ints,
    write_catalog,
    write_ints,
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
    """The session failed, with this error."""

    error: MillraceError
    peer: int | None = None
    """The member that was lost; None if it is the sender."""


@dataclass(frozen=True, slots=True)
class MemberBeat:
    """A sign of life while there is nothing else to send."""


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


# How fields of messages travel that are not plain texts and numbers.
@dataclass(frozen=True, slots=True)
class _Field:
    """The type of a field on the way, and how its value is written as that and read."""

    kind: Any
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda value: value


def _tables(kind: type[Any]) -> _Field:
    def read(data: pa.Buffer) -> Table:
        table: Table = unpack(data, [kind])[0]
        return table

    return _Field(pa.Buffer, lambda table: pa.py_buffer(pack([table])), read)


def _read_error(text: str) -> MillraceError:
    error = wire.decode_error(text.encode())
    if error is None:
        raise wrong("an error", text)
    return error


_WHOLE: Final = _Field(Int64)
_TEXTS: Final = _Field(tuple[str, ...])
_INTS: Final = _Field(pa.Array, write_ints, read_ints)
_CATALOG: Final = _Field(CatalogFields, write_catalog, read_catalog)
_ERROR: Final = _Field(str, lambda error: wire.encode_error(error).decode(), _read_error)
_PROGRESS: Final = _Field(
    pa.Buffer, lambda progress: pa.py_buffer(progress.to_bytes()), SliceProgress.from_bytes
)
_PEER: Final = _Field(Annotated[int, msgspec.Meta(ge=0, le=_MEMBERS_MAX)] | None)


class StreamMessages:
    """The messages that one end of a stream may send, each with its fields."""

    def __init__(self, *kinds: tuple[type, Mapping[str, _Field]]) -> None:
        self._fields = dict(kinds)
        self._structs = {
            kind: msgspec.defstruct(
                kind.__name__,
                [(name, field.kind) for name, field in fields.items()],
                tag=True,
                frozen=True,
                forbid_unknown_fields=True,
            )
            for kind, fields in kinds
        }
        self._kinds = {struct: kind for kind, struct in self._structs.items()}
        self._union: Any = Union[tuple(self._kinds)]  # noqa: UP007 - made at run time

    def encode(self, message: object) -> bytes:
        """Write the envelope of a message."""
        struct = self._structs.get(type(message))
        if struct is None:
            raise wrong(" or ".join(kind.__name__ for kind in self._structs), message)
        fields = self._fields[type(message)].items()
        return arrow_envelope.encode(
            struct(**{name: field.write(getattr(message, name)) for name, field in fields})
        )

    def decode(self, envelope: pa.Buffer) -> Any:  # noqa: ANN401 - one of these messages
        """Read the envelope of a message; anything else is refused."""
        sent = arrow_envelope.decode(envelope, self._union)
        kind = self._kinds[type(sent)]
        fields = self._fields[kind].items()
        try:
            return kind(**{name: field.read(getattr(sent, name)) for name, field in fields})
        except (DataLost, AssertionError, pa.ArrowException, OSError) as error:
            raise wrong("a message", error) from error


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Rows whose body travels beside the envelope."""

    number: int
    schema: pa.Schema


_BEAT: Final[tuple[type, Mapping[str, _Field]]] = (MemberBeat, {})
_OPENED: Final = (StreamsOpened, {"streams": _WHOLE})
_FAILED: Final = (SessionFailed, {"error": _ERROR, "peer": _PEER})
FROM_SESSION: Final = StreamMessages(
    (OpenStreams, {"addresses": _TEXTS}),
    (CatalogUpdate, {"catalog": _CATALOG}),
    (StartReads, {"starts": _tables(Starts), "names": _TEXTS, "shown": _tables(ShownClock)}),
    (StopReads, {"tags": _INTS}),
    (Continue, {}),
    (Abandon, {"producer": _WHOLE}),
    _BEAT,
)
FROM_SLICE: Final = StreamMessages(
    _OPENED,
    (Reported, {"progress": _PROGRESS}),
    (Pressure, {"is_pushed_back": _Field(bool)}),
    _FAILED,
    _BEAT,
)
TO_QUEUE: Final = StreamMessages(
    (_Numbered, {"number": _WHOLE, "schema": _Field(pa.Schema)}),
    (Flush, {"cycle": _WHOLE}),
    _BEAT,
)
FROM_QUEUE: Final = StreamMessages(
    _OPENED, (RowsAccepted, {"number": _WHOLE}), (Flushed, {"cycle": _WHOLE}), _FAILED, _BEAT
)


def encode(messages: StreamMessages, message: object, bytes_max: int) -> SealedMessage:
    """Write a message of a kind of stream; one that is too large is refused."""
    body = None
    if isinstance(message, QueueRows):
        _check_plain(message.batch.schema)
        body = message.batch.serialize()
        message = _Numbered(message.number, message.batch.schema)
    envelope = messages.encode(message)
    if body is not None:
        envelope += bytes(_padding(len(envelope), body.size))
    sealed = SealedMessage(envelope, body)
    _check_size(sealed.size, bytes_max)
    return sealed


def decode(
    messages: StreamMessages, envelope: pa.Buffer | None, body: pa.Buffer | None, bytes_max: int
) -> Any:  # noqa: ANN401
    """Read a message of a kind of stream."""
    if envelope is None:
        raise wrong("a message", "one without an envelope")
    _check_size(envelope.size + (0 if body is None else body.size), bytes_max)
    message = messages.decode(envelope)
    if not isinstance(message, _Numbered):
        if body is not None:
            raise wrong("a message without rows", type(message).__name__)
        return message
    if body is None:
        raise wrong("rows", "an envelope without them")
    _check_staged(message.schema)
    return QueueRows(message.number, read_rows(body, message.schema))


def unwrapped(batch: pa.RecordBatch | None) -> pa.Buffer | None:
    """The bytes of rows in a message; None if there are none."""
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
    """How many bytes behind an envelope let many rows beside it be where Arrow can use them.

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
    return arrow_envelope.encode(pa.py_buffer(visible.to_bytes()))


def decode_visible(ticket: pa.Buffer, bytes_max: int) -> Visible:
    """Read such a ticket."""
    _check_size(ticket.size, bytes_max)
    what = "a ticket for visible rows"
    try:
        return Visible.from_bytes(arrow_envelope.decode(ticket, pa.Buffer, what))
    except (DataLost, AssertionError) as error:
        raise wrong(what, error) from error


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
    try:
        return read_rows(body, schema_of(schema.to_pybytes()))
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
        column = schema.get_field_index(name)
        if column < 0 or schema.field(column).type != kind:
            raise wrong(f"rows with a column {name} of {kind}", ", ".join(schema.names))


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise UserError(
            f"a message of {size} bytes is too large\n  limit: {bytes_max} "
            "(reads_envelope_bytes_max)\n  to fix: raise the limit, or read fewer journals"
        )
