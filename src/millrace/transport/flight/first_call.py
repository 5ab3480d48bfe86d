"""The first call on a connection, read up to its headers (HTTP/2, RFC 9113). Pure.

The gate sends `SETTINGS` before Flight knows of the connection, as a client waits for them. Flight
did not ask for them, so the reader removes the client's answer to them.

Invariant: the reader keeps no more bytes than the caller's limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.transport.flight.hpack import Headers, NotHeaders, decode_headers

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"
HEADER_BYTES: Final = 9
DATA_FRAME, HEADERS_FRAME, PRIORITY_FRAME, RESET_FRAME, SETTINGS_FRAME = 0, 1, 2, 3, 4
PING_FRAME, GOAWAY_FRAME, WINDOW_FRAME, CONTINUATION_FRAME = 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_BEFORE_HEADERS: Final = (PRIORITY_FRAME, SETTINGS_FRAME, PING_FRAME, WINDOW_FRAME)
_PRIORITY_BYTES: Final = 5
_UNAUTHENTICATED: Final = 16


class NotACall(Exception):
    """The bytes are not the beginning of a call, or there are too many."""


@dataclass(frozen=True, slots=True)
class FirstCall:
    """The headers of a call, and all bytes received so far, for Flight."""

    stream: int
    headers: Headers
    received: bytes


class FirstCallReader:
    """Put bytes in as they come, until there is a `FirstCall`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._received = bytearray()
        self._at = len(PREFACE)
        self._block: bytes | None = None
        self._stream = 0
        self._headers: Headers | None = None
        self._is_acknowledged = False

    def on_bytes(self, data: bytes) -> FirstCall | None:
        """Take the next bytes in. None as long as headers are missing."""
        self._received += data
        begin = bytes(self._received[: len(PREFACE)])
        if not PREFACE.startswith(begin):
            raise NotACall("not HTTP/2")
        while self._headers is None or not self._is_acknowledged:
            frame = self._received[self._at : self._at + HEADER_BYTES]
            end = self._at + HEADER_BYTES + int.from_bytes(frame[:3], "big")
            if len(frame) < HEADER_BYTES or len(self._received) < end:
                if max(len(self._received), end) > self._bytes_max:
                    raise NotACall(f"more than {self._bytes_max} bytes before the headers' end")
                return None
            self._at = self._on_frame(frame[3], frame[4], bytes(frame[5:]), end)
        return FirstCall(self._stream, self._headers, bytes(self._received))

    def _on_frame(self, kind: int, flags: int, stream: bytes, end: int) -> int:
        """Look at a whole frame; where the next begins."""
        begin = self._at
        if kind == SETTINGS_FRAME and flags & ACK and not self._is_acknowledged:
            del self._received[begin:end]
            self._is_acknowledged = True
            return begin
        if self._headers is not None:
            return end
        number = int.from_bytes(stream, "big") & 0x7FFFFFFF
        payload = bytes(self._received[begin + HEADER_BYTES : end])
        if self._block is None and kind == HEADERS_FRAME and number:
            self._stream = number
            self._block = _unpadded(payload, flags)
        elif self._block is not None and kind == CONTINUATION_FRAME and number == self._stream:
            self._block += payload
        elif self._block is not None or kind not in _BEFORE_HEADERS:
            raise NotACall(f"a frame of kind {kind} before the headers' end")
        if self._block is not None and flags & END_HEADERS and number:
            try:
                self._headers = decode_headers(self._block)
            except NotHeaders as error:
                raise NotACall(str(error)) from error
        return end


def refusal(stream: int, reason: str) -> bytes:
    """The answer to a call that is not let in: the same as Flight's own, and the end."""
    fields = [("content-type", "application/grpc"), ("grpc-status", str(_UNAUTHENTICATED))]
    block = b"\x88" + b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in [*fields, ("grpc-message", reason)]
    )
    return (
        _frame(HEADERS_FRAME, END_STREAM | END_HEADERS, stream, block)
        + _frame(RESET_FRAME, 0, stream, bytes(4))
        + _frame(GOAWAY_FRAME, 0, 0, stream.to_bytes(4, "big") + bytes(4))
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _unpadded(payload: bytes, flags: int) -> bytes:
    padding = 0
    if flags & PADDED:
        padding, payload = payload[0] if payload else 0, payload[1:]
    if flags & PRIORITY:
        payload = payload[_PRIORITY_BYTES:]
    if padding > len(payload):
        raise NotACall("headers with more padding than bytes")
    return payload[: len(payload) - padding]
