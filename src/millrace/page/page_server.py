"""Runs the server of the pages: in this thread for the command, in another one for a notebook."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.applications import Starlette

from millrace.errors import UserError
from millrace.page.page_app import PageSource, page_app
from millrace.page.page_gate import TOKEN, is_loopback, new_token
from millrace.page.warm_up import warm_up
from millrace.wakeup import WorkerThread

_START_S_MAX: Final = 30.0
_SHUTDOWN_S: Final = 1
_WAITING_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class PagePlace:
    """Where pages are served."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        """The address to open, with the token if there is one."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/" + (f"?{TOKEN}={self.token}" if self.token else "")


class WebServer:
    """A server that listens from the start. `run` or `start` it, and `close` it."""

    def __init__(
        self,
        make_app: Callable[[str | None], Starlette],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        """`make_app` gets the token that requests show; None for loopback alone."""
        self._socket = _listening(host, port)
        given = self._socket.getsockname()[1]
        needed = token or (None if is_loopback(host) else new_token())
        self.place = PagePlace(host, given, needed)
        config = uvicorn.Config(
            make_app(needed),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._thread: WorkerThread | None = None

    def run(self) -> None:
        """Serve until a signal ends it."""
        try:
            self._server.run([self._socket])
        finally:
            self.close()

    def start(self) -> None:
        """Serve from a thread; returns when pages can be asked for."""
        self._thread = WorkerThread(lambda: self._server.run([self._socket]), "millrace-pages")
        self._thread.start()
        until = time.monotonic() + _START_S_MAX
        while not self._server.started:
            if time.monotonic() > until or not self._thread.is_alive():
                raise UserError(
                    f"nothing is served at {self.place.url}\n"
                    "  found: the server did not start\n  to fix: choose another port"
                )
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_START_S_MAX)
            self._thread = None
        self._socket.close()


class PageServer(WebServer):
    """A server of pages."""

    def __init__(
        self, source: PageSource, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        self._source = source
        super().__init__(self._warm, host, port, token)

    def _warm(self, needed: str | None) -> Starlette:
        app = page_app(self._source, needed)
        warm_up(app, needed)
        return app

    def close(self) -> None:
        """Stop serving."""
        self._source.stopping.set()
        super().close()
        self._source.workspace.close()


def _listening(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_WAITING_MAX)
    except OSError as error:
        made.close()
        raise UserError(
            f"nothing can be served at {host}:{port}\n  found: {error}\n"
            "  to fix: give another --port, or 0 for any free one"
        ) from error
    return made
