"""A small HTTP/1.1 server on one event loop: whole bodies, lasting connections, event streams.

Only for stand-ins on loopback: hundreds of slow answers at once need no thread each.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

BODY_BYTES_MAX: Final = 256 << 20
_HEAD_BYTES_MAX: Final = 64 << 10
_END_S: Final = 10.0
_REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as JSON; `ValueError` if it is no object."""
        value = json.loads(self.body)
        if not isinstance(value, dict):
            raise ValueError("the body is no object")  # noqa: TRY004 - as for other wrong bodies
        return value


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One response."""

    body: Any = None
    """JSON, or bytes as they are."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[str] | None = None
    """Server-sent events in place of a body, each whole."""


Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class HttpServer:
    """Answers with a handler, in a thread of its own, on a port that is free."""

    def __init__(self, handler: Handler, *, port: int = 0) -> None:
        """Begin to answer with `with`."""
        self._handler, self._asked_port = handler, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="stand-in", daemon=True)
        self._listens = threading.Event()
        self._ended: asyncio.Future[None] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listens.wait(_END_S):
            raise TimeoutError("the stand-in did not begin to listen")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop answering; requests under way get no answer."""
        assert self._ended is not None
        self._loop.call_soon_threadsafe(self._ended.set_result, None)
        self._thread.join(_END_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(
            self._connected, "127.0.0.1", self._asked_port, limit=_HEAD_BYTES_MAX, backlog=1024
        )
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._ended
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                answer = await self._answered(request)
                writer.write(_written(answer))
                await writer.drain()
                for event in answer.events or ():
                    writer.write(event.encode())
                    await writer.drain()
                if answer.events is not None:
                    break  # The end of the stream is the end of the connection.
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # A client that was killed.
        except asyncio.CancelledError:
            pass  # The server ends.
        finally:
            writer.close()

    async def _answered(self, request: HttpRequest) -> HttpAnswer:
        try:
            return await self._handler(request)
        except (ValueError, KeyError, TypeError) as error:
            said = {"type": "invalid_request_error", "message": f"not understood: {error!r}"}
            return HttpAnswer({"type": "error", "error": said}, 400)


async def _read(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    address = urlsplit(target)
    return HttpRequest(
        method,
        unquote(address.path),
        dict(parse_qsl(address.query)),
        headers,
        await _read_body(reader, headers),
    )


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        size = int(headers.get("content-length") or 0)
        if size > BODY_BYTES_MAX:
            raise ConnectionError("the body is too long")
        return await reader.readexactly(size)
    pieces = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if len(pieces) + size > BODY_BYTES_MAX:
            raise ConnectionError("the body is too long")
        pieces += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return bytes(pieces)


def _written(answer: HttpAnswer) -> bytes:
    """The head of a response, and its body."""
    headers = dict(answer.headers)
    data = b""
    if answer.events is not None:
        headers |= {"Content-Type": "text/event-stream", "Connection": "close"}
    else:
        is_plain = isinstance(answer.body, bytes)
        data = answer.body if is_plain else json.dumps(answer.body).encode()
        kind = "application/octet-stream" if is_plain else "application/json"
        headers = {"Content-Type": kind, **headers, "Content-Length": str(len(data))}
    lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Said')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data
