"""Listens for a Flight server and lets in connections whose first call shows the token.

Flight itself listens on a socket in a folder of this user, and hears of a connection only when it
was let in: pyarrow gives a server no limits, and reads a whole call before anything looks at it.

Invariant: a connection that has not shown the token costs a few kilobytes and no thread, and for a
limited time. With no room for another, the one that has waited longest without a token goes first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from millrace.config import Config
from millrace.limits import KIB
from millrace.transport.flight.first_call import (
    PREFACE,
    SETTINGS,
    FirstCall,
    FirstCallReader,
    refusal,
)
from millrace.transport.flight.hpack import Headers
from millrace.transport.flight.message_sizes import MessageSizes
from millrace.transport.flight.relay import Relay, close_socket
from millrace.wakeup import WorkerThread, join

SERVER_UNPROVEN_BYTES_MAX: Final = 64 * KIB
"""Most bytes that a connection may send before it has shown the token."""

_BACKLOG: Final = 512
_FILES_PER_CONNECTION: Final = 3
"""The client's, the gate's to Flight, and Flight's own."""
_FILES_KEPT: Final = 256
"""For everything else in the process."""
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_FILES_WAIT_S: Final = 0.05
_CONNECT_S: Final = 1.0
"""How long Flight may take to be there; it listens in the same process."""
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(eq=False, slots=True)
class _Unproven:
    """A connection that has not shown the token."""

    socket: socket.socket
    address: str
    deadline: float
    reader: FirstCallReader
    is_shaking_hands: bool
    left_bytes: int
    """How many it may still send."""
    is_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedPort:
    """The Flight server behind a gate."""

    flight: str
    """The path of Flight's own socket."""
    refusal: Callable[[Headers], str | None]
    """Why a call with these headers is not let in; None if it is."""
    message_bytes_max: int
    tls: ssl.SSLContext | None = field(default=None, repr=False)


class Gate:
    """Listens as soon as it is made."""

    def __init__(self, host: str, port: int, behind: GuardedPort, config: Config) -> None:
        self._behind = behind
        self._config = config
        self._listener = _listener(host, port)
        self.port = int(self._listener.getsockname()[1])
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._unproven: dict[_Unproven, None] = {}  # The one that has waited longest first.
        self._lock = threading.Lock()
        self._relays: dict[Relay, WorkerThread] = {}
        self._is_closing = False
        _gates.add(self)
        self._thread = WorkerThread(self._run, "millrace-gate")
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Connections that were let in go on."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        join([self._thread], self._config.thread_stop_ms_max, "thread_stop_ms_max")

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            relays = dict(self._relays)
        for relay in relays:
            relay.cut()
        join(relays.values(), self._config.thread_stop_ms_max, "thread_stop_ms_max")

    def _run(self) -> None:
        try:
            while not self._is_closing:
                for key, _ in self._selector.select(self._wait_s()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Unproven) and key.data in self._unproven:
                        self._on_ready(key.data)
                self._expire()
        finally:
            self._selector.close()
            for side in (self._listener, self._wake, self._waker):
                close_socket(side)
            for unproven in self._unproven:
                close_socket(unproven.socket)

    def _wait_s(self) -> float | None:
        oldest = next(iter(self._unproven), None)
        return None if oldest is None else max(0.0, oldest.deadline - time.monotonic())

    def _expire(self) -> None:
        now = time.monotonic()
        for unproven in [waiting for waiting in self._unproven if waiting.deadline <= now]:
            self._drop(unproven)

    def _accept(self) -> None:
        try:
            client, address = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_FILES and not self._drop_oldest():
                time.sleep(_NO_FILES_WAIT_S)
            return
        if not self._make_room(address[0]):
            close_socket(client)
            return
        self._begin(client, address[0])

    def _begin(self, client: socket.socket, address: str) -> None:
        tls = self._behind.tls
        try:
            client.settimeout(0)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if tls is not None:
                client = tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
            else:
                client.send(SETTINGS)
        except OSError:
            close_socket(client)
            return
        bytes_max = SERVER_UNPROVEN_BYTES_MAX
        unproven = _Unproven(
            client,
            address,
            deadline=time.monotonic() + self._config.server_proof_ms_max / 1000,
            reader=FirstCallReader(bytes_max),
            is_shaking_hands=tls is not None,
            left_bytes=2 * bytes_max,
        )
        self._unproven[unproven] = None
        self._selector.register(client, selectors.EVENT_READ, unproven)

    def _make_room(self, address: str) -> bool:
        """Whether there is room for a connection from there, perhaps in place of another."""
        alike = [unproven for unproven in self._unproven if unproven.address == address]
        if len(alike) >= self._config.server_unproven_per_address_max:
            self._drop(alike[0])
        count = len(self._unproven) + len(self._relays)
        return count < _connections_max(self._config) or self._drop_oldest()

    def _drop_oldest(self) -> bool:
        oldest = next(iter(self._unproven), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, unproven: _Unproven) -> None:
        self._forget(unproven)
        close_socket(unproven.socket)

    def _forget(self, unproven: _Unproven) -> None:
        del self._unproven[unproven]
        self._selector.unregister(unproven.socket)

    def _on_ready(self, unproven: _Unproven) -> None:
        try:
            if unproven.is_shaking_hands:
                self._shake_hands(unproven)
            if not unproven.is_shaking_hands:
                self._read(unproven)
        except _NOT_NOW:
            return
        except Exception:  # noqa: BLE001 - the other connections have to go on
            if unproven in self._unproven:
                self._drop(unproven)

    def _shake_hands(self, unproven: _Unproven) -> None:
        client = unproven.socket
        assert isinstance(client, ssl.SSLSocket)
        events = selectors.EVENT_READ
        try:
            client.do_handshake()
            client.send(SETTINGS)
            unproven.is_shaking_hands = False
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            events |= selectors.EVENT_WRITE
        self._selector.modify(client, events, unproven)

    def _read(self, unproven: _Unproven) -> None:
        """Read what has come; `recv` ends this by an exception when there is no more."""
        while unproven in self._unproven:
            data = unproven.socket.recv(SERVER_UNPROVEN_BYTES_MAX)
            unproven.left_bytes -= len(data)
            if not data or unproven.left_bytes < 0:
                self._drop(unproven)
            elif not unproven.is_refused:
                call = unproven.reader.on_bytes(data)
                if call is not None:
                    self._decide(unproven, call)

    def _decide(self, unproven: _Unproven, call: FirstCall) -> None:
        reason = self._behind.refusal(call.headers)
        if reason is None:
            self._let_in(unproven, call)
            return
        unproven.is_refused = True
        unproven.socket.send(refusal(call.stream, reason))
        # What the client still sends is read, as it would else not hear the answer.
        unproven.socket.shutdown(socket.SHUT_WR)

    def _let_in(self, unproven: _Unproven, call: FirstCall) -> None:
        sizes = MessageSizes(self._behind.message_bytes_max)
        sizes.on_bytes(memoryview(call.received)[len(PREFACE) :])
        flight = socket.socket(socket.AF_UNIX)
        try:
            flight.settimeout(_CONNECT_S)
            flight.connect(self._behind.flight)
            flight.settimeout(0)
        except OSError:
            flight.close()
            raise
        relay = Relay(
            unproven.socket,
            flight,
            received=call.received,
            sizes=sizes,
            silent_ms_max=self._config.server_silent_ms_max,
        )
        thread = WorkerThread(partial(self._carry, relay), "millrace-relay")
        self._forget(unproven)
        with self._lock:
            self._relays[relay] = thread
        try:
            thread.start()
        except RuntimeError:  # The system has no more threads.
            self._carried(relay)

    def _carry(self, relay: Relay) -> None:
        relay.run()
        self._carried(relay)

    def _carried(self, relay: Relay) -> None:
        relay.close()
        with self._lock:
            self._relays.pop(relay, None)

    def _forget_after_fork(self) -> None:
        """Keep no connection of the parent's open; its threads are not here."""
        relays, unproven = list(self._relays), list(self._unproven)
        for side in [self._listener, *(waiting.socket for waiting in unproven)]:
            side.close()
        for relay in relays:
            relay.close(shut=False)


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def _after_fork() -> None:
    for gate in list(_gates):
        gate._forget_after_fork()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)


def _listener(host: str, port: int) -> socket.socket:
    (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port that was left a moment ago counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except OSError:
        listener.close()
        raise
    return listener


def _connections_max(config: Config) -> int:
    """As many as the configuration says, or as the process may open files for."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return config.server_connections_max
    possible = max(1, (files_max - _FILES_KEPT) // _FILES_PER_CONNECTION)
    return min(config.server_connections_max, possible)
