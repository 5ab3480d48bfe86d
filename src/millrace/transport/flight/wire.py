"""What all Flight services share on the wire: headers, limits, small messages, errors. Pure.

Invariant: a message from the network has the type that its reader names, or it is a `UserError`.
Nothing is unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from millrace import errors
from millrace.errors import MillraceError, UserError
from millrace.message_types import known

TOKEN_HEADER: Final = "authorization"  # noqa: S105 - a header's name
ENDING: Final = "this server is ending"
"""What a server says that takes no more calls. The call was not begun."""

# Flight turns an error with a long text into one of another class.
_ERROR_BYTES_MAX: Final = 1000
_SHOWN_CHARS_MAX: Final = 160

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MessageLimit:
    """How many bytes one message to a server may have, and the name of that limit."""

    name: str
    bytes_max: int

    def check(self, size: int, to_fix: str = "send it in pieces") -> None:
        """Refuse a larger message."""
        if size > self.bytes_max:
            raise UserError(
                f"a message of {size} bytes is too large\n"
                f"  limit: {self.bytes_max} ({self.name})\n  to fix: {to_fix}"
            )


class WireMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of small messages in JSON: these fields of these types, and no others."""

    def to_json(self) -> bytes:
        """Write the message."""
        return msgspec.json.encode(self)


def from_json(data: bytes | None, kind: type[Value], what: str) -> Value:
    """Read a message of a type, refusing anything else as not `what`."""
    try:
        return msgspec.json.decode(data or b"", type=known(kind))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise wrong(what, error) from error


def wrong(expected: str, received: object) -> UserError:
    """Word the refusal of a message."""
    return UserError(
        f"not {expected}: {str(received)[:_SHOWN_CHARS_MAX]}\n"
        "  to fix: use the same version of Millrace on both sides"
    )


class _SentError(msgspec.Struct):
    code: Any
    text: Any


def encode_error(error: MillraceError) -> bytes:
    """Write an error, short enough to keep its kind on the way."""
    text = str(error)
    while len(text.encode()) > _ERROR_BYTES_MAX:
        text = text[: len(text) * 9 // 10].rstrip("\u2026") + "\u2026"
    return msgspec.json.encode(_SentError(type(error).__name__, text))


def decode_error(data: bytes | None) -> MillraceError | None:
    """The error that a server sent; None if these bytes are not from one of our servers."""
    try:
        sent = msgspec.json.decode(data or b"", type=known(_SentError))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    kind = getattr(errors, str(sent.code), MillraceError)
    if not (isinstance(kind, type) and issubclass(kind, MillraceError)):
        kind = MillraceError
    return kind(str(sent.text))
