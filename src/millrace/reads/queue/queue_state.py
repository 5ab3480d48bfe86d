"""How a queue handles a message: takes it, lets it wait, joins small ones. Pure.

Messages are taken in the order they came. While the disk is full, rows wait, and so do all later
messages of the same stream. A flush that has no waiting message before it is always answered:
the commit that follows it frees the disk.

Invariant: a stream's rows are stored in its order, and a binding's rows in the order they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

import pyarrow as pa

from millrace.reads.model.tags import TAG, binding_of
from millrace.reads.queue.queue_limits import BUFFERED_BLOCKS_MAX, QueueLimits
from millrace.reads.queue.queue_messages import (
    Flush,
    Flushed,
    Message,
    QueueRows,
    Reply,
    RowsAccepted,
)


@dataclass(frozen=True, slots=True)
class StoreBlock:
    """Write rows of one binding and schema as one block."""

    binding: int
    batches: list[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class StreamReply:
    """Send a reply to a stream."""

    stream: int
    reply: Reply


Action = StoreBlock | StreamReply


@dataclass(slots=True)
class _Stream:
    number: int = 0
    """The number of its last message with rows."""
    waiting: int = 0
    held_bytes: int = 0
    is_ended: bool = False


@dataclass(slots=True)
class _Buffer:
    """Rows of one binding that are not worth a block yet."""

    schema: pa.Schema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    streams: set[int] = field(default_factory=set)


class Intake:
    """Decides for all streams of a queue."""

    def __init__(self, limits: QueueLimits, streams: int) -> None:
        self._limits = limits
        self._streams = [_Stream() for _ in range(streams)]
        self._waiting: deque[tuple[int, Message]] = deque()
        self._buffers: dict[int, _Buffer] = {}
        self.buffered_bytes = 0

    @property
    def held_messages(self) -> int:
        """How many messages wait for room."""
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        """How many bytes of rows wait for room."""
        return sum(stream.held_bytes for stream in self._streams)

    def on_message(self, number: int, message: Message, *, is_full: bool) -> list[Action]:
        """A message came on a stream."""
        stream = self._streams[number]
        assert not stream.is_ended, f"stream {number} goes on after its end"
        if isinstance(message, QueueRows):
            assert message.number == stream.number + 1, (number, message.number, stream.number)
            stream.number = message.number
        must_wait = stream.waiting or (
            isinstance(message, QueueRows) and (is_full or self._waiting)
        )
        if not must_wait:
            return self._take(number, message)
        self._waiting.append((number, message))
        stream.waiting += 1
        stream.held_bytes += _size(message)
        limit = self._limits.held_bytes_max
        assert stream.held_bytes <= limit, (number, stream.held_bytes, limit)
        return []

    def on_room(self) -> list[Action]:
        """There is room: take the message that has waited longest."""
        if not self._waiting:
            return []
        number, message = self._waiting.popleft()
        self._streams[number].waiting -= 1
        self._streams[number].held_bytes -= _size(message)
        return self._take(number, message)

    def on_end(self, number: int) -> list[Action]:
        """A stream has ended: take all its messages, even without room."""
        stream = self._streams[number]
        messages = [message for owner, message in self._waiting if owner == number]
        self._waiting = deque(entry for entry in self._waiting if entry[0] != number)
        stream.waiting, stream.held_bytes, stream.is_ended = 0, 0, True
        return [action for message in messages for action in self._take(number, message)]

    def _take(self, stream: int, message: Message) -> list[Action]:
        match message:
            case QueueRows(number, batch):
                stored = self._buffer(stream, batch) if batch.num_rows else []
                return [*stored, StreamReply(stream, RowsAccepted(number))]
            case Flush(cycle):
                keys = [key for key, buffer in self._buffers.items() if stream in buffer.streams]
                return [*self._store(keys), StreamReply(stream, Flushed(cycle))]
            case _:
                assert_never(message)

    def _buffer(self, stream: int, batch: pa.RecordBatch) -> list[Action]:
        """Add rows to the buffer of their binding; store it if it is large enough."""
        binding = int(binding_of(batch.column(TAG)[0].as_py()))
        actions: list[Action] = []
        buffer = self._buffers.get(binding)
        if buffer is not None and not buffer.schema.equals(batch.schema, check_metadata=True):
            actions += self._store([binding])
            buffer = None
        if buffer is None:
            buffer = self._buffers[binding] = _Buffer(batch.schema)
        size = batch.nbytes
        buffer.batches.append(batch)
        buffer.rows += batch.num_rows
        buffer.size += size
        buffer.streams.add(stream)
        self.buffered_bytes += size
        limits = self._limits
        if buffer.rows >= limits.block_rows_target or buffer.size >= limits.block_bytes_target:
            actions += self._store([binding])
        elif self.buffered_bytes > BUFFERED_BLOCKS_MAX * limits.block_bytes_target:
            actions += self._store([max(self._buffers, key=lambda key: self._buffers[key].size)])
        return actions

    def _store(self, bindings: Iterable[int]) -> list[Action]:
        actions: list[Action] = []
        for binding in bindings:
            buffer = self._buffers.pop(binding)
            self.buffered_bytes -= buffer.size
            actions.append(StoreBlock(binding, buffer.batches))
        return actions


def _size(message: Message) -> int:
    return int(message.batch.nbytes) if isinstance(message, QueueRows) else 0
