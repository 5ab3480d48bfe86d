"""JSON documents on disk: written with a checksum, and checked when they are read.

A sealed document ends with the field `checksum`: the XXH3-64 of all bytes before the comma in front
of that field. Documents of earlier versions have none and are read all the same.

Invariant: `load` returns what was written or raises. A damaged file is `Corrupt`, a file of another
version is a `FormatError`; both name the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from millrace.errors import Corrupt, FormatError, MillraceError
from millrace.message_types import known
from millrace.names import shown

CHECKSUM: Final = "checksum"
WORKSPACE: Final = "workspace"
"""The field that says to which workspace a file belongs."""
_WHOLE_MAX: Final = 2**64 - 1
_SEAL: Final = re.compile(rb',\s*"checksum":\s*"([0-9a-f]{16})"\s*\}\s*\Z')
_SEAL_BYTES_MAX: Final = 64
_MALFORMED: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
    OSError,
    pa.ArrowException,
)

Value = TypeVar("Value")


class Document:
    """The fields of a document, each taken as the type it must have; a `ValueError` otherwise."""

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise TypeError(f"it holds {shown(fields)}, expected an object")
        self.fields: Mapping[str, Any] = fields

    def text(self, name: str) -> str:
        """A text."""
        value = self.fields[name]
        if not isinstance(value, str):
            raise _unexpected(name, value, "a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text, or null; also null if it is not there."""
        return None if self.fields.get(name) is None else self.text(name)

    def whole(self, name: str) -> int:
        """A whole number from 0 to 2**64 - 1."""
        return _whole(name, self.fields[name])

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        values = self.items(name)
        # There may be very many, and hardly ever is one of them wrong.
        if set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= _WHOLE_MAX:
            return tuple(values)
        return tuple(_whole(name, value) for value in values)

    def items(self, name: str) -> list[Any]:
        """A list."""
        value = self.fields[name]
        if not isinstance(value, list):
            raise _unexpected(name, value, "a list")
        return value

    def documents(self, name: str) -> list[Document]:
        """A list of objects."""
        return [Document(item) for item in self.items(name)]

    def table(self, name: str) -> Mapping[str, Any]:
        """An object; an empty one if it is not there."""
        value = self.fields.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _unexpected(name, value, "an object")
        return value


def seal(fields: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """A document's bytes, with the checksum of all bytes before it."""
    assert fields, "a document has fields"
    separators = (",", ":") if indent is None else None
    text = json.dumps(fields, indent=indent, separators=separators)
    body = text.removesuffix("}").rstrip().encode()
    between = b",\n " if indent else b","
    digest = xxhash.xxh3_64_hexdigest(body).encode()
    return body + between + b'"checksum":"' + digest + (b'"\n}' if indent else b'"}')


def load(
    data: bytes,
    read: Callable[[Document], Value],
    *,
    where: str,
    what: str,
    to_fix: str,
    version: int | None = None,
    workspace: str | None = None,
) -> Value:
    """Read a document.

    Args:
        data: the bytes of the file.
        read: makes the value of the document's fields; raises on what cannot be.
        where: the path of the file, which errors name.
        what: what the file is, as "a manifest".
        to_fix: what to do about a damaged one.
        version: the version that the document must have; None if it has none.
        workspace: to which workspace the file must belong, if it says so.
    """
    with decoding(where, what, to_fix):
        document = Document(json.loads(data))
        _check_seal(data, document)
        if version is not None:
            recorded = document.fields.get("version", version)
            if recorded != version or isinstance(recorded, bool):
                raise FormatError(
                    f"{where} has version {shown(recorded)}, "
                    f"this Millrace reads version {version}\n"
                    "  to fix: use the Millrace that wrote it, or a newer one"
                )
        _check_workspace(document, workspace)
        return read(document)


class AddressHint(msgspec.Struct, frozen=True):
    """A file that says where a server answered last."""

    address: str

    def to_json(self) -> bytes:
        """Write the file."""
        return msgspec.json.encode(self)


def hint(data: bytes | None, kind: type[Value]) -> Value | None:
    """Read a file that is only a hint; None if it is missing or not understood."""
    try:
        return msgspec.json.decode(data or b"", type=known(kind))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


@contextmanager
def decoding(where: str, what: str, to_fix: str) -> Iterator[None]:
    """Every error while stored bytes are decoded becomes `Corrupt` with their path."""
    try:
        yield
    except MillraceError:
        raise
    except _MALFORMED as error:
        raise damaged(where, what, error, to_fix) from error


def damaged(where: str, what: str, problem: object, to_fix: str) -> Corrupt:
    """The error for a file that is not what was written."""
    name = f"{type(problem).__name__}: " if isinstance(problem, KeyError) else ""
    return Corrupt(
        f"{where} cannot be read as {what}\n  found: {name}{problem}\n  to fix: {to_fix}"
    )


def _check_seal(data: bytes, document: Document) -> None:
    if CHECKSUM not in document.fields:
        return
    tail = max(0, len(data) - _SEAL_BYTES_MAX)
    sealed = _SEAL.search(data, tail)
    if sealed is None:
        raise ValueError("its checksum does not stand at its end")
    digest = xxhash.xxh3_64_hexdigest(data[: sealed.start()])
    if digest.encode() != sealed[1]:
        raise ValueError(f"its bytes have checksum {digest}, it says {sealed[1].decode()}")


def _check_workspace(document: Document, workspace: str | None) -> None:
    named = document.fields.get(WORKSPACE)
    if named is not None and workspace is not None and named != workspace:
        raise ValueError(f"it belongs to workspace {shown(named)}, this is {workspace}")


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _WHOLE_MAX:
        raise _unexpected(name, value, "a whole number from 0 to 2**64 - 1")
    return value


def _unexpected(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name} is {shown(value)}, expected {expected}")
