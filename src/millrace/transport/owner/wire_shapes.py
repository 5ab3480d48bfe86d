"""Values on the wire between an owner and those who joined it, as bytes and back. Pure.

An envelope is one message: a header in JSON, behind it the Arrow bytes that the header refers to by
number. A shape says how values of one kind are written into an envelope and read back.

Invariant: whatever comes from the network is of the shape it should have, with numbers in their
range and rows that Arrow found valid, or it is a `UserError`. Nothing is unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.errors import UserError
from millrace.journal.core.values import ANYTHING, Anything

MAGIC: Final = b"MRJ1"
_HEAD: Final = struct.Struct("<4sI")
_ALIGNMENT: Final = 64
_ALIGNED: Final = 8
_SCHEMAS_MAX: Final = 1024
_ANYTHING: Final = "anything"
_INT_MIN, _INT_MAX, _UNSIGNED_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_SPAN_MAX: Final = 2**40


@dataclass(slots=True)
class ArrowParts:
    """The Arrow bytes of an envelope, while it is written or read."""

    buffers: list[pa.Buffer] = field(default_factory=list)
    _put: list[tuple[pa.Schema, int]] = field(default_factory=list)
    _taken: dict[int, pa.Schema] = field(default_factory=dict)

    def add(self, buffer: pa.Buffer) -> int:
        """Take bytes along; return the number to refer to them by."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def add_schema(self, schema: pa.Schema) -> int:
        """Take a schema along; journals that are listed mostly have that of the one before."""
        if self._put and self._put[-1][0].equals(schema, check_metadata=True):
            return self._put[-1][1]
        self._put.append((schema, self.add(schema.serialize())))
        return self._put[-1][1]

    def schema(self, number: object) -> pa.Schema:
        """The schema that a header refers to."""
        data = self.get(number)
        found = self._taken.get(data.address)
        if found is None:
            found = self._taken[data.address] = _schema(data.to_pybytes())
        return found

    def get(self, number: object) -> pa.Buffer:
        """The bytes that a header refers to."""
        if not isinstance(number, int) or not 0 <= number < len(self.buffers):
            raise wrong("a part of this message", number)
        return self.buffers[number]


def seal(header: object, parts: ArrowParts) -> bytes:
    """Write an envelope."""
    sizes = [part.size for part in parts.buffers]
    text = json.dumps({"sizes": sizes, "body": header}, separators=(",", ":")).encode()
    pieces = [_HEAD.pack(MAGIC, len(text)), text]
    at = _HEAD.size + len(text)
    for part in parts.buffers:
        pieces += [bytes(-at % _ALIGNMENT), part]
        at += -at % _ALIGNMENT + part.size
    return b"".join(pieces)


def unseal(data: pa.Buffer) -> tuple[Any, ArrowParts]:
    """Read an envelope; what is not one is refused."""
    if data.size < _HEAD.size:
        raise wrong("a message", f"{data.size} bytes")
    magic, length = _HEAD.unpack_from(memoryview(data))
    at = _HEAD.size + length
    if magic != MAGIC or at > data.size:
        raise wrong("a message", bytes(memoryview(data)[: _HEAD.size]))
    try:
        document = json.loads(bytes(memoryview(data)[_HEAD.size : at]))
        sizes, body = document["sizes"], document["body"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise wrong("a message", error) from error
    parts = ArrowParts()
    for size in _many_whole(sizes):
        at += -at % _ALIGNMENT
        if size < 0 or at + size > data.size:
            raise wrong("a message", f"a part of {size} bytes at {at} of {data.size}")
        parts.add(aligned(data.slice(at, size)))
        at += size
    return body, parts


@dataclass(frozen=True, slots=True)
class WireShape:
    """How values of one kind travel: `put` writes one, `take` reads and checks one."""

    put: Callable[[Any, ArrowParts], Any]
    take: Callable[[Any, ArrowParts], Any]


def wrong(expected: str, found: object) -> UserError:
    """Word the refusal of a value."""
    return UserError(f"not {expected}: {str(found)[:80]!r}\n  to fix: give {expected}")


def _checked(check: Callable[[Any], Any]) -> WireShape:
    return WireShape(lambda value, _: check(value), lambda value, _: check(value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise wrong("a text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise wrong("a text", repr(value)) from error
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong("true or false", value)
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise wrong("a number of at least 0", value)
    return float(value)


def between(least: int, most: int) -> WireShape:
    """Whole numbers in a range; numpy's are taken, too."""
    what = f"a whole number from {least} to {most}"

    def check(value: Any) -> int:  # noqa: ANN401 - anything may come
        try:
            found = index(value)
        except TypeError as error:
            raise wrong(what, value) from error
        if isinstance(value, bool) or not least <= found <= most:
            raise wrong(what, value)
        return found

    return _checked(check)


TEXT: Final = _checked(_text)
FLAG: Final = _checked(_flag)
NUMBER: Final = _checked(_number)
WHOLE: Final = between(_INT_MIN, _INT_MAX)
CLOCK: Final = between(0, _UNSIGNED_MAX)
SPAN: Final = between(0, _SPAN_MAX)
NOTHING: Final = WireShape(lambda _value, _: None, lambda _value, _: None)


def one_of(*texts: str) -> WireShape:
    """One of these texts."""

    def check(value: object) -> object:
        if value not in texts:
            raise wrong(" or ".join(texts), value)
        return value

    return _checked(check)


def maybe(shape: WireShape) -> WireShape:
    """A value or None."""
    return WireShape(
        lambda value, parts: None if value is None else shape.put(value, parts),
        lambda value, parts: None if value is None else shape.take(value, parts),
    )


def many(shape: WireShape) -> WireShape:
    """Values in order; they come back as a tuple."""

    def take(value: object, parts: ArrowParts) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong("a list", value)
        return tuple(shape.take(each, parts) for each in value)

    return WireShape(lambda values, parts: [shape.put(each, parts) for each in values], take)


def texts_or_text() -> WireShape:
    """A text or several."""
    some = many(TEXT)
    return WireShape(
        lambda value, parts: (TEXT if isinstance(value, str) else some).put(value, parts),
        lambda value, parts: (TEXT if isinstance(value, str) else some).take(value, parts),
    )


def table(shape: WireShape) -> WireShape:
    """Values by name, in order."""

    def put(value: Mapping[str, Any], parts: ArrowParts) -> dict[str, Any]:
        return {_text(key): shape.put(each, parts) for key, each in value.items()}

    def take(value: object, parts: ArrowParts) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong("values by name", value)
        return {_text(key): shape.take(each, parts) for key, each in value.items()}

    return WireShape(put, take)


def pair(first: WireShape, second: WireShape) -> WireShape:
    """Two values."""

    def take(value: object, parts: ArrowParts) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004 - a pair
            raise wrong("two values", value)
        return first.take(value[0], parts), second.take(value[1], parts)

    return WireShape(lambda two, parts: [first.put(two[0], parts), second.put(two[1], parts)], take)


def record(kind: type, fields: Mapping[str, WireShape]) -> WireShape:
    """A dataclass, its fields in this order."""
    shapes = list(fields.items())

    def put(value: object, parts: ArrowParts) -> list[Any]:
        if not isinstance(value, kind):
            raise wrong(f"a {kind.__name__}", value)
        return [shape.put(getattr(value, name), parts) for name, shape in shapes]

    def take(value: object, parts: ArrowParts) -> Any:  # noqa: ANN401 - of `kind`
        if not isinstance(value, list) or len(value) != len(shapes):
            raise wrong(f"a {kind.__name__}", value)
        given = zip(shapes, value, strict=True)
        return kind(**{name: shape.take(each, parts) for (name, shape), each in given})

    return WireShape(put, take)


def either(kinds: Mapping[type, WireShape]) -> WireShape:
    """One of several dataclasses, told apart by its name."""
    named = {kind.__name__: shape for kind, shape in kinds.items()}

    def put(value: object, parts: ArrowParts) -> list[Any]:
        shape = kinds.get(type(value))
        if shape is None:
            raise wrong(" or ".join(named), value)
        return [type(value).__name__, shape.put(value, parts)]

    def take(value: object, parts: ArrowParts) -> Any:  # noqa: ANN401 - one of `kinds`
        if not isinstance(value, list) or len(value) != 2 or value[0] not in named:  # noqa: PLR2004
            raise wrong(" or ".join(named), value)
        return named[value[0]].take(value[1], parts)

    return WireShape(put, take)


def _put_expected(value: object, parts: ArrowParts) -> object:
    return _ANYTHING if isinstance(value, Anything) else maybe(WHOLE).put(value, parts)


def _take_expected(value: object, parts: ArrowParts) -> object:
    return ANYTHING if value == _ANYTHING else maybe(WHOLE).take(value, parts)


EXPECTED: Final = WireShape(_put_expected, _take_expected)


@lru_cache(maxsize=_SCHEMAS_MAX)
def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _put_schema(value: object, parts: ArrowParts) -> int:
    if not isinstance(value, pa.Schema):
        raise wrong("an Arrow schema", value)
    return parts.add_schema(value)


def _take_schema(value: object, parts: ArrowParts) -> pa.Schema:
    try:
        return parts.schema(value)
    except (pa.ArrowException, OSError) as error:
        raise wrong("an Arrow schema", error) from error


SCHEMA: Final = WireShape(_put_schema, _take_schema)


def _put_rows(value: object, parts: ArrowParts) -> int:
    if not isinstance(value, pa.RecordBatch | pa.Table):
        raise wrong("a RecordBatch or Table", value)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as stream:
        stream.write(value)
    return parts.add(sink.getvalue())


def _take_rows(value: object, parts: ArrowParts) -> pa.RecordBatch | pa.Table:
    try:
        with pa.ipc.open_stream(parts.get(value)) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            return (
                batches[0] if len(batches) == 1 else pa.Table.from_batches(batches, stream.schema)
            )
    except (pa.ArrowException, OSError) as error:
        raise wrong("rows", error) from error


ROWS: Final = WireShape(_put_rows, _take_rows)


def _put_array(value: object, parts: ArrowParts) -> int:
    if not isinstance(value, pa.Array | pa.ChunkedArray):
        raise wrong("an Arrow array", value)
    return _put_rows(pa.table({"a": value}), parts)


def _take_array(value: object, parts: ArrowParts) -> pa.Array | pa.ChunkedArray:
    found = _take_rows(value, parts)
    if found.num_columns != 1:
        raise wrong("an Arrow array", found.schema)
    return found.column(0)


ARRAY: Final = WireShape(_put_array, _take_array)


def _many_whole(value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise wrong("a message", value)
    return value


def aligned(buffer: pa.Buffer) -> pa.Buffer:
    """The same bytes where Arrow may read numbers from them."""
    if buffer.address % _ALIGNED == 0:
        return buffer
    copy = pa.allocate_buffer(buffer.size)
    np.frombuffer(copy, np.uint8)[:] = np.frombuffer(buffer, np.uint8)
    return copy
