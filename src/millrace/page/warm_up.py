"""Does before a server's address is printed what the first page of its kind would do alone.

Modules are loaded, templates compiled, and the engines of tables and of SQL used once. Then the
application is asked for its first page, so that the workspace's ledger is read once, too.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from starlette.types import ASGIApp, Message

from millrace.engine.questions.table_question import ask
from millrace.page import templating
from millrace.wakeup import WorkerThread

_WAIT_S_MAX: Final = 10.0
"""A first page that takes longer goes on being made while the address is printed."""


def warm_up(app: ASGIApp, token: str | None) -> None:
    """Return when first pages are as quick as later ones."""
    # A notebook's own thread runs a loop already.
    thread = WorkerThread(lambda: _use_once(app, token), "millrace-warm-up")
    thread.start()
    thread.ended.wait(_WAIT_S_MAX)


def _use_once(app: ASGIApp, token: str | None) -> None:
    templating.compile_all()
    rows = pa.table({"k": ["a", "b"], "n": [1, 2]})
    pc.quantile(rows["n"], q=[0.5])
    rows.filter(pc.field("n") > 1).sort_by("n")
    rows.group_by("k", use_threads=False).aggregate([("n", "sum"), ("n", "max")])
    ask("SELECT k, sum(n) FROM runs GROUP BY 1", {"runs": ()}, lambda *_: rows)
    asyncio.run(_first_page(app, token))


async def _first_page(app: ASGIApp, token: str | None) -> None:
    """Ask the application for its first page, as a browser would; what it says does not count."""
    headers = [(b"host", b"127.0.0.1")]
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Message) -> None:
        pass

    await app(scope, receive, send)
