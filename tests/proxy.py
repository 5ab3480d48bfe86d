"""A bad way between two processes: a proxy that delays what it passes on and cuts connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class CuttingProxy:
    """Passes bytes on to a server and cuts each connection after some; None: never.

    The last of the cuts holds for all further connections. What a server sends arrives `delay_s`
    later, and so does what it is sent; bytes keep their order. While `flowing` is not set, nothing
    arrives, and nobody is told.
    """

    def __init__(
        self,
        address: str,
        cuts: list[int | None],
        delay_s: float = 0.0,
        socket_file: str | None = None,
    ) -> None:
        """Stand before a host and port or, with a file for a socket here, before such a file."""
        host, _, port = address.rpartition(":")
        self.target = (host.rpartition("/")[2], int(port)) if socket_file is None else address
        self.cuts = cuts
        self.delay_s = delay_s
        self.connections = 0
        self._ends: list[socket.socket] = []
        self.flowing = threading.Event()
        self.flowing.set()
        if socket_file is None:
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"grpc://127.0.0.1:{self.listener.getsockname()[1]}"
        else:
            self.listener = socket.create_server(socket_file, family=socket.AF_UNIX)
            self.address = socket_file
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more."""
        self.listener.close()

    def cut_all(self) -> None:
        """Cut the connections that there are."""
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            cut = self.cuts[min(self.connections, len(self.cuts) - 1)]
            self.connections += 1
            try:
                server = self._connected()
            except OSError:
                client.close()
                continue
            self._ends += (client, server)
            for source, sink, limit in ((client, server, None), (server, client, cut)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, limit), daemon=True
                ).start()

    def _connected(self) -> socket.socket:
        if not isinstance(self.target, str):
            return socket.create_connection(self.target)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(self.target)
        except OSError:
            made.close()
            raise
        return made

    def _pass_on(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                time.sleep(self.delay_s)
                self.flowing.wait()
                data = data if limit is None else data[: limit - passed]
                sink.sendall(data)
                passed += len(data)
                if limit is not None and passed >= limit:
                    break
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
