"""An HTTP proxy before a store that fails at random: busy answers, cut connections, cut bodies."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

HOST = "127.0.0.1"
BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
FAULTS = ("busy", "reset before", "reset after", "cut", "slow")


@dataclass
class FaultyProxy:
    """Passes requests on; a share of them meets a fault. Requests are counted by kind."""

    target: int
    share: float = 0.0
    faults: tuple[str, ...] = FAULTS
    seed: int = 0
    in_a_row_max: int = 2
    """So many requests of one path fail in a row at most: a client that tries again gets on."""
    hide: re.Pattern[bytes] | None = None
    """Entries of listings, as XML, that are left out, as if they were not there yet."""
    seen: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    bytes_got: int = 0
    """Of the bodies of all GETs."""
    port: int = 0
    _failed: Counter[str] = field(default_factory=Counter)
    counting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        proxy = self
        chance = random.Random(self.seed)  # noqa: S311 - a seed replays it

        class Handler(_Forward):
            owner = proxy
            dice = chance

        server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        server.daemon_threads = True
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def draw(self, dice: random.Random, what: str) -> str | None:
        """The fault of a request, if it is to meet one."""
        with self.counting:
            if dice.random() >= self.share or self._failed[what] >= self.in_a_row_max:
                self._failed[what] = 0
                return None
            self._failed[what] += 1
            fault = dice.choice(self.faults)
            self.met[fault] += 1
            return fault


class _Forward(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultyProxy
    dice: random.Random

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def _forward(self) -> None:
        body = self._body()
        path, _, query = self.path.partition("?")
        is_list = "list-type=2" in query or "comp=list" in query
        self.owner.seen["LIST" if is_list else self.command] += 1
        fault = self.owner.draw(self.dice, f"{self.command} {path}")
        if fault == "slow":
            time.sleep(0.3)
        if fault == "reset before":
            self.close_connection = True
            return
        if fault == "busy":
            self._answer(503, {"Content-Type": "application/xml", "Retry-After": "0"}, BUSY)
            return
        status, headers, data = self._asked(body)
        if self.owner.hide is not None and is_list:
            data = self.owner.hide.sub(b"", data)
        if fault == "reset after":
            self.close_connection = True
            return
        whole = len(data)
        cut = fault == "cut" and self.command == "GET" and whole > 1
        self._answer(status, headers, data[: whole // 2] if cut else data, length=whole)
        if cut:
            self.close_connection = True

    def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(HOST, self.owner.target, timeout=60)
        with closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in ("transfer-encoding", "expect"):
                    connection.putheader(name, value)
            if body and "Content-Length" not in self.headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            # Azurite writes names of headers in lower case.
            headers = {name.title(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(
        self, status: int, headers: dict[str, str], data: bytes, length: int | None = None
    ) -> None:
        with self.owner.counting:
            self.owner.bytes_got += len(data) if self.command == "GET" else 0
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        told = headers.get("Content-Length", "0") if self.command == "HEAD" else None
        if status != http.HTTPStatus.NO_CONTENT:
            size = len(data) if length is None else length
            self.send_header("Content-Length", told or str(size))
        self.end_headers()
        with contextlib.suppress(OSError):  # The client may have gone.
            self.wfile.write(b"" if self.command == "HEAD" else data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815 - the library's names
