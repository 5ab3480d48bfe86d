"""The messages between a follower and the owner of journals, as bytes and back. Pure.

A stream carries envelopes, one a row: rows of any of the journals followed, or where the follower
is. A Flight stream has one schema, and journals have many.
"""

from __future__ import annotations

import pyarrow as pa

from millrace.errors import MillraceError
from millrace.journal.core.values import Fetched
from millrace.reads.live.follow_requests import (
    AskAgain,
    FollowEnded,
    FollowerBeat,
    FollowRequest,
    FollowStarted,
    Message,
)
from millrace.transport.flight.arrow_envelope import decode, decode_answer, encode, encode_refusal
from millrace.transport.flight.byte_batches import byte_batch, byte_values
from millrace.transport.flight.wire import wrong
from millrace.transport.owner.fetched_rows import OneFetched

_Sent = FollowStarted | OneFetched | FollowerBeat | AskAgain | FollowEnded


def encode_request(request: FollowRequest) -> bytes:
    """Write what a follower asks for."""
    return encode(request)


def decode_request(data: pa.Buffer) -> FollowRequest:
    """Read a follower's request; refuse bytes that are none."""
    request = decode(data, FollowRequest, "a request to follow journals")
    key = request.key
    if key is not None and (key.num_rows != 1 or tuple(key.schema.names) != request.keys):
        raise wrong("a key of one row", key.schema)
    return request


def encode_message(message: Message) -> pa.RecordBatch:
    """Write a message as Flight sends it."""
    sent = OneFetched.of(message) if isinstance(message, Fetched) else message
    return byte_batch(pa.py_buffer(encode(sent)))


def encode_error(error: MillraceError) -> pa.RecordBatch:
    """Write a refusal: an exception would end the stream, and come out as another one."""
    return byte_batch(pa.py_buffer(encode_refusal(error)))


def decode_message(batch: pa.RecordBatch) -> Message:
    """Read a message; raise the error that was sent in its place."""
    message: _Sent = decode_answer(next(byte_values(batch)), _Sent)  # type: ignore[arg-type]
    return message.fetched() if isinstance(message, OneFetched) else message
