"""Values that hold Arrow data, as the bytes of one message and back. Pure.

An envelope is one message: a header in MessagePack, behind it the Arrow buffers that the header
refers to by number. A value is anything that msgspec can write: dataclasses, structs, texts,
numbers; and Arrow's schemas, rows, arrays and buffers anywhere in it.

Invariant: a message from the network has the type that its reader names, with numbers in their
range and rows that Arrow found valid, or it is a `UserError`. Nothing is unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from millrace.errors import BrokerStopped, MillraceError
from millrace.journal.core.number_ranges import Unsigned
from millrace.journal.core.values import Rows
from millrace.message_types import known
from millrace.transport.flight import wire
from millrace.transport.flight.wire import wrong

Value = TypeVar("Value")
Hook = tuple[Callable[[Any], Any], Callable[[pa.Buffer], Any]]
"""Makes a buffer of a value, and a value of a buffer."""
MAGIC: Final = b"MRJ2"
_HEAD: Final = struct.Struct("<4sI")
_ALIGNMENT: Final = 64
_ALIGNED: Final = 8
_SCHEMAS_MAX: Final = 1024
_NOTHING: Final = msgspec.Raw(b"\xc0")


class _Header(msgspec.Struct, array_like=True):
    sizes: list[Unsigned]
    """Of the Arrow buffers."""
    body: msgspec.Raw
    error: str | None = None
    """A refusal in place of an answer."""


def encode(value: object, hooks: Mapping[type, Hook] = {}) -> bytes:
    """Write an envelope; `hooks` write values of further types as buffers."""
    buffers = _BuffersWritten(hooks)
    try:
        body = msgspec.Raw(msgspec.msgpack.encode(value, enc_hook=buffers.add_value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise wrong("a value that can be sent", error) from error
    return _sealed(_Header([buffer.size for buffer in buffers.buffers], body), buffers.buffers)


def encode_refusal(error: MillraceError) -> bytes:
    """Write an error in place of an answer."""
    return _sealed(_Header([], _NOTHING, wire.encode_error(error).decode()), [])


def decode(
    data: pa.Buffer,
    kind: type[Value],
    what: str = "a message",
    hooks: Mapping[type, Hook] = {},
) -> Value:
    """Read an envelope that holds a value of a type; anything else is refused as not `what`."""
    header, buffers = _opened(data)
    return _value(header, _BuffersRead(hooks, buffers), kind, what)


def decode_answer(
    data: pa.Buffer,
    kind: type[Value],
    hooks: Mapping[type, Hook] = {},
) -> Value:
    """Read an answer of a type; raise the error that was sent in its place."""
    header, buffers = _opened(data)
    if header.error is not None:
        raise wire.decode_error(header.error.encode()) or BrokerStopped(header.error)
    return _value(header, _BuffersRead(hooks, buffers), kind, "an answer")


def aligned(buffer: pa.Buffer) -> pa.Buffer:
    """The same bytes where Arrow may read numbers from them."""
    if buffer.address % _ALIGNED == 0:
        return buffer
    copy = pa.allocate_buffer(buffer.size)
    np.frombuffer(copy, np.uint8)[:] = np.frombuffer(buffer, np.uint8)
    return copy


def _sealed(header: _Header, buffers: Sequence[pa.Buffer]) -> bytes:
    text = msgspec.msgpack.encode(header)
    parts = [_HEAD.pack(MAGIC, len(text)), text]
    position = _HEAD.size + len(text)
    for buffer in buffers:
        parts += [bytes(-position % _ALIGNMENT), buffer]
        position += -position % _ALIGNMENT + buffer.size
    return b"".join(parts)


def _opened(data: pa.Buffer) -> tuple[_Header, list[pa.Buffer]]:
    """The header of an envelope and its Arrow buffers; anything that is none is refused."""
    if data.size < _HEAD.size:
        raise wrong("a message", f"{data.size} bytes")
    magic, length = _HEAD.unpack_from(memoryview(data))
    position = _HEAD.size + length
    if magic != MAGIC or position > data.size:
        raise wrong("a message", bytes(memoryview(data)[: _HEAD.size]))
    try:
        header = msgspec.msgpack.decode(
            memoryview(data)[_HEAD.size : position], type=known(_Header)
        )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise wrong("a message", error) from error
    buffers = []
    for size in header.sizes:
        position += -position % _ALIGNMENT
        if position + size > data.size:
            raise wrong("a message", f"a buffer of {size} bytes at {position} of {data.size}")
        buffers.append(aligned(data.slice(position, size)))
        position += size
    return header, buffers


def _value(header: _Header, buffers: _BuffersRead, kind: type[Value], what: str) -> Value:
    try:
        return msgspec.msgpack.decode(header.body, type=known(kind), dec_hook=buffers.value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise wrong(what, error) from error


@dataclass(slots=True)
class _BuffersWritten:
    """The Arrow buffers of an envelope that is being written."""

    hooks: Mapping[type, Hook]
    buffers: list[pa.Buffer] = field(default_factory=list)
    schema: tuple[pa.Schema, int] | None = None
    """The last one with its number: a list of journals mostly has one schema."""

    def add_value(self, value: Any) -> int:  # noqa: ANN401 - whatever msgspec cannot write
        """Write a value as a buffer and return its number."""
        hook = self.hooks.get(type(value))
        if hook is not None:
            return self._add(hook[0](value))
        if isinstance(value, pa.Schema):
            return self._add_schema(value)
        if isinstance(value, pa.RecordBatch | pa.Table):
            return self._add(_stream(value))
        if isinstance(value, pa.Array | pa.ChunkedArray):
            return self._add(_stream(pa.table({"a": value})))
        if isinstance(value, pa.Buffer):
            return self._add(value)
        return index(value)  # Numpy's whole numbers; a TypeError for anything else.

    def _add(self, buffer: pa.Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _add_schema(self, schema: pa.Schema) -> int:
        if self.schema is None or not self.schema[0].equals(schema, check_metadata=True):
            self.schema = schema, self._add(schema.serialize())
        return self.schema[1]


@dataclass(slots=True)
class _BuffersRead:
    """The Arrow buffers of an envelope that is being read."""

    hooks: Mapping[type, Hook]
    buffers: list[pa.Buffer]
    schemas: dict[int, pa.Schema] = field(default_factory=dict)
    """By number: those of a list of journals are mostly one."""

    def value(self, kind: type, number: object) -> Any:  # noqa: ANN401 - of that type
        """Read the value of a type from the buffer of a number."""
        if type(number) is not int or not 0 <= number < len(self.buffers):
            raise ValueError(f"no buffer {str(number)[:80]!r} in this message")
        buffer = self.buffers[number]
        hook = self.hooks.get(kind)
        try:
            if hook is not None:
                return hook[1](buffer)
            if kind is pa.Schema:
                if number not in self.schemas:
                    self.schemas[number] = schema_of(buffer.to_pybytes())
                return self.schemas[number]
            if kind is Rows or kind is pa.RecordBatch:
                return _rows(buffer)
            if kind is pa.Array:
                return _array(_rows(buffer))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from error
        assert kind is pa.Buffer, f"no way to read {kind}"
        return buffer


@lru_cache(maxsize=_SCHEMAS_MAX)
def schema_of(data: bytes) -> pa.Schema:
    """Read a schema; the last ones are remembered."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def _stream(rows: pa.RecordBatch | pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return sink.getvalue()


def _rows(buffer: pa.Buffer) -> pa.RecordBatch | pa.Table:
    with pa.ipc.open_stream(buffer) as stream:
        batches = list(stream)
        for batch in batches:
            batch.validate(full=True)
        return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches, stream.schema)


def _array(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    if rows.num_columns != 1:
        raise ValueError(f"{rows.num_columns} columns in place of an array")
    column = rows.column(0)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
