"""Carries bytes between a client that showed the token and Flight, in a thread of its own.

Invariant: it holds one buffer for each direction and no more, and passes on no message beyond the
limit. A connection that stands still within a message is cut.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Final

from millrace.config import KIB
from millrace.transport.flight.message_sizes import MessageSizes, TooLarge

_BUFFER_BYTES: Final = 256 * KIB
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Ended(Exception):
    """One side has closed the connection."""


class _Flow:
    """One direction: bytes that were received and are not sent yet."""

    def __init__(
        self, source: socket.socket, target: socket.socket, sizes: MessageSizes | None = None
    ) -> None:
        self._source = source
        self._target = target
        self._sizes = sizes
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.unsent = self._buffer[:0]

    def move(self) -> None:
        """Send what is unsent, else receive and send, as far as that needs no wait."""
        while True:
            if not self.unsent:
                try:
                    size = self._source.recv_into(self._buffer)
                except _NOT_NOW:
                    return
                if not size:
                    raise _Ended
                self.unsent = self._buffer[:size]
                if self._sizes is not None:
                    self._sizes.on_bytes(self.unsent)
            self.send()
            # TLS may hold more that it has received already, of which `poll` knows nothing.
            if self.unsent or not (
                isinstance(self._source, ssl.SSLSocket) and self._source.pending()
            ):
                return

    def send(self) -> None:
        """Send what is unsent, as far as that needs no wait."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self._target.send(self.unsent) :]
        except _NOT_NOW:
            return


class Relay:
    """One connection. `run` returns when it has ended; `cut` ends it from another thread."""

    def __init__(
        self,
        client: socket.socket,
        flight: socket.socket,
        *,
        received: bytes,
        sizes: MessageSizes,
        silent_ms_max: int,
    ) -> None:
        """`received` are the client's first bytes, which were read to admit it."""
        self._client = client
        self._flight = flight
        self._sizes = sizes
        self._silent_ms_max = silent_ms_max
        self._up = _Flow(client, flight, sizes)
        self._up.unsent = memoryview(received)
        self._down = _Flow(flight, client)

    def run(self) -> None:
        """Carry bytes until either side ends, stands still, or sends what is too large."""
        with contextlib.suppress(_Ended, TooLarge, OSError, ValueError):
            self._carry()

    def cut(self) -> None:
        """End the connection now."""
        for side in (self._client, self._flight):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(side, socket.SHUT_RDWR)

    def close(self, *, shut: bool = True) -> None:
        """Close both sides; with `shut` the connection ends for every process that has it."""
        for side in (self._client, self._flight):
            if shut:
                close_socket(side)
            else:
                side.close()

    def _carry(self) -> None:
        up, down = self._up, self._down
        client, flight = self._client.fileno(), self._flight.fileno()
        poll = select.poll()
        up.move()
        while True:
            _watch(poll, client, receives=not up.unsent, sends=bool(down.unsent))
            _watch(poll, flight, receives=not down.unsent, sends=bool(up.unsent))
            ready = dict(poll.poll(self._silent_ms_max))
            if not ready and (up.unsent or down.unsent or self._sizes.is_within_message):
                return
            # What is unsent waits for its target, else the source has something.
            if (flight if up.unsent else client) in ready:
                up.move()
            if (client if down.unsent else flight) in ready:
                down.move()


def close_socket(side: socket.socket) -> None:
    """Close, and say so to the other end even if a forked process has the socket as well."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(side, socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        side.close()


def _watch(poll: select.poll, number: int, *, receives: bool, sends: bool) -> None:
    """Wait for what is needed only: a side that hung up would else be ready for ever."""
    if receives or sends:
        poll.register(number, (select.POLLIN if receives else 0) | (select.POLLOUT if sends else 0))
    else:
        with contextlib.suppress(KeyError):
            poll.unregister(number)
