"""Connections to Flight servers, kept for the next call.

Invariant: a connection in use is never closed. Beyond the limit the longest unused one is closed
first. A forked process starts with none, as connections do not survive a fork.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow.flight as fl

from millrace.config import MIB

_LOG: Final = logging.getLogger(__name__)
_OPTIONS: Final = [
    # A pool of its own: else a new connection would inherit the waits of a broken one.
    ("grpc.use_local_subchannel_pool", 1),
    # Large frames and a large, fixed window: up to twice as fast as the defaults on loopback.
    ("grpc.http2.max_frame_size", 1 * MIB),
    ("grpc.http2.lookahead_bytes", 16 * MIB),
    ("grpc.http2.bdp_probe", 0),
]


@dataclass(slots=True)
class _Connection:
    client: fl.FlightClient
    users: int = 0
    dropped: bool = False


class Pool:
    """Open connections by address."""

    def __init__(self, connections_max: int, roots: bytes | None = None) -> None:
        self.connections_max = connections_max
        self._roots = roots
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Connection] = OrderedDict()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def connection(self, address: str) -> Iterator[fl.FlightClient]:
        """A connection to use within the block."""
        connection = self._take(address)
        try:
            yield connection.client
        finally:
            self._give_back(connection)

    def drop(self, address: str) -> None:
        """Do not use the connection to this address again."""
        with self._lock:
            connection = self._open.pop(address, None)
            if connection is not None:
                connection.dropped = True
        if connection is not None and not connection.users:
            connection.client.close()

    def close(self) -> None:
        """Close what is not in use; the rest closes when it is given back."""
        with self._lock:
            closing = [connection for connection in self._open.values() if not connection.users]
            for connection in self._open.values():
                connection.dropped = True
            self._open.clear()
        for connection in closing:
            connection.client.close()

    def _take(self, address: str) -> _Connection:
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._open = OrderedDict()
            self._pid = os.getpid()
        with self._lock:
            connection = self._open.pop(address, None)
            if connection is None:
                connection = _Connection(self._connect(address))
            self._open[address] = connection
            connection.users += 1
            return connection

    def _give_back(self, connection: _Connection) -> None:
        closing = []
        with self._lock:
            connection.users -= 1
            if connection.dropped and not connection.users:
                closing.append(connection)
            idle = [name for name, other in self._open.items() if not other.users]
            surplus = idle[: max(0, len(self._open) - self.connections_max)]
            closing += [self._open.pop(name) for name in surplus]
        for old in closing:
            old.client.close()

    def _connect(self, address: str) -> fl.FlightClient:
        _LOG.debug("connecting to %s", address)
        return fl.FlightClient(address, tls_root_certs=self._roots, generic_options=_OPTIONS)
