"""What a follower and the owner of journals say to each other, as bytes and back. Pure.

A stream carries envelopes, one a row: rows of any of the journals followed, or where the follower
is. A Flight stream has one schema, and journals have many.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

import pyarrow as pa

from millrace.errors import BrokerStopped, MillraceError
from millrace.journal.core.values import Fetched
from millrace.keys.key_ranges import KeyRange
from millrace.reads.live.follow_requests import (
    AskAgain,
    FollowEnded,
    FollowerBeat,
    FollowRequest,
    FollowStarted,
    Message,
)
from millrace.transport.flight import wire
from millrace.transport.owner.fetched_rows import FETCHED
from millrace.transport.owner.wire_shapes import (
    FLAG,
    ROWS,
    TEXT,
    WHOLE,
    ArrowParts,
    either,
    many,
    maybe,
    one_of,
    record,
    seal,
    table,
    unseal,
    wrong,
)

ENVELOPES: Final = pa.schema([("bytes", pa.large_binary())])
_OFFSETS: Final = table(WHOLE)
_WANTED: Final = record(
    FollowRequest,
    {
        "prefix": TEXT,
        "keys": many(TEXT),
        "range": record(KeyRange, {"begin": WHOLE, "end": WHOLE}),
        "key": maybe(ROWS),
        "begins": _OFFSETS,
        "others": one_of("start", "end"),
        "ends": maybe(_OFFSETS),
        "until_end": FLAG,
        "alone": FLAG,
        "version": TEXT,
    },
)
_MESSAGE: Final = either(
    {
        FollowStarted: record(FollowStarted, {"at": _OFFSETS, "ends": maybe(_OFFSETS)}),
        Fetched: FETCHED,
        FollowerBeat: record(FollowerBeat, {"at": _OFFSETS}),
        AskAgain: record(AskAgain, {}),
        FollowEnded: record(FollowEnded, {}),
    }
)


def encode_wanted(wanted: FollowRequest) -> bytes:
    """Write what a follower asks for."""
    parts = ArrowParts()
    return seal(_WANTED.put(wanted, parts), parts)


def decode_wanted(data: pa.Buffer) -> FollowRequest:
    """Read what a follower asks for, refusing whatever is not that."""
    wanted: FollowRequest = _WANTED.take(*unseal(data))
    key = wanted.key
    if key is not None and (key.num_rows != 1 or tuple(key.schema.names) != wanted.keys):
        raise wrong("a key of one row", key.schema)
    return wanted


def encode_message(message: Message) -> pa.RecordBatch:
    """Write a message as Flight sends it."""
    parts = ArrowParts()
    return _sent(seal({"found": _MESSAGE.put(message, parts)}, parts))


def encode_error(error: MillraceError) -> pa.RecordBatch:
    """Write a refusal: an exception would end the stream, and come out as another one."""
    return _sent(seal({"error": wire.encode_error(error).decode()}, ArrowParts()))


def decode_message(batch: pa.RecordBatch) -> Message:
    """Read a message; an error that was sent is raised."""
    column: Any = batch.column(0)
    document, parts = unseal(column[0].as_buffer())
    if "error" in document:
        raise wire.decode_error(document["error"].encode()) or BrokerStopped(document["error"])
    message: Message = _MESSAGE.take(document["found"], parts)
    return message


def _sent(envelope: bytes) -> pa.RecordBatch:
    data = pa.py_buffer(envelope)
    offsets = pa.py_buffer(array("q", [0, data.size]))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
    return pa.RecordBatch.from_arrays([column], schema=ENVELOPES)
