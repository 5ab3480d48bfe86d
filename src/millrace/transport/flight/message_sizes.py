"""How large the messages of calls are, read from frames as they pass. Pure.

Invariant: a message longer than the limit is noticed at its first five bytes, before it is sent.
"""

from __future__ import annotations

from typing import Final

from millrace.transport.flight.first_call import (
    DATA_FRAME,
    END_STREAM,
    HEADER_BYTES,
    HEADERS_FRAME,
    PADDED,
    RESET_FRAME,
)

_PREFIX_BYTES: Final = 5


class TooLarge(Exception):
    """A message beyond the limit, or in a form that hides how large it is."""


class MessageSizes:
    """Watches what a client sends after the preface. Put bytes in as they come."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._header = b""
        self._frame_left = 0
        self._stream: int | None = None
        """Of the frame that is passing, if it is one of data."""
        self._ends_stream = False
        self._left: dict[int, int] = {}
        """What is missing of the message that is passing, by stream."""
        self._prefix: dict[int, bytes] = {}
        """The begin of a message's first five bytes, by stream."""

    @property
    def is_within_message(self) -> bool:
        """Whether a message or a frame has begun and not ended."""
        return bool(self._left or self._prefix or self._frame_left or self._header)

    def on_bytes(self, data: memoryview) -> None:
        """Watch the next bytes pass."""
        at, end = 0, len(data)
        while at < end:
            if not self._frame_left:
                at = self._begin_frame(data, at)
                continue
            size = min(self._frame_left, end - at)
            if self._stream is not None:
                self._on_data(self._stream, data[at : at + size])
            at += size
            self._frame_left -= size
            if not self._frame_left:
                self._end_frame()

    def _begin_frame(self, data: memoryview, at: int) -> int:
        needed = HEADER_BYTES - len(self._header)
        header = self._header + bytes(data[at : at + needed])
        if len(header) < HEADER_BYTES:
            self._header = header
            return len(data)
        self._header = b""
        self._frame_left = int.from_bytes(header[:3], "big")
        kind, flags = header[3], header[4]
        stream = int.from_bytes(header[5:], "big") & 0x7FFFFFFF
        self._stream = stream if kind == DATA_FRAME else None
        self._ends_stream = kind == DATA_FRAME and bool(flags & END_STREAM)
        if kind == DATA_FRAME and flags & PADDED:
            raise TooLarge("a frame with padding")
        if kind == RESET_FRAME or (kind == HEADERS_FRAME and flags & END_STREAM):
            self._forget(stream)
        if not self._frame_left:
            self._end_frame()
        return at + needed

    def _end_frame(self) -> None:
        if self._stream is not None and self._ends_stream:
            self._forget(self._stream)

    def _forget(self, stream: int) -> None:
        self._left.pop(stream, None)
        self._prefix.pop(stream, None)

    def _on_data(self, stream: int, data: memoryview) -> None:
        left = self._left.pop(stream, 0)
        while True:
            if left >= len(data):
                if left > len(data):
                    self._left[stream] = left - len(data)
                return
            data = data[left:]
            prefix = self._prefix.pop(stream, b"")
            needed = _PREFIX_BYTES - len(prefix)
            prefix, data = prefix + bytes(data[:needed]), data[needed:]
            if len(prefix) < _PREFIX_BYTES:
                self._prefix[stream] = prefix
                return
            left = int.from_bytes(prefix[1:], "big")
            if prefix[0]:
                raise TooLarge("a compressed message")
            if left > self._bytes_max:
                raise TooLarge(f"a message of {left} bytes; the limit is {self._bytes_max}")
