"""A service that charges for each call: HTTP on loopback, with a log of all calls made.

    python -m millrace.testing.paid_api --log calls.log --port 8080

`POST /caption` takes `{"id": 7, "text": "..."}` and answers `{"caption": "...", "score": 0.25}`.
The log has a line for each call, written before the answer, so it also has calls whose answer got
lost. `GET /count` returns the number of calls and of different keys.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from xxhash import xxh3_64_intdigest

KEY = "Idempotency-Key"
BODY_BYTES_MAX = 1 << 20
_END_S = 10.0


class PaidService:
    """The service in this process, on a port that is free.

    Args:
        log: a file; each call appends a line of JSON.
        delay_s: how long a call takes.
        port: on loopback; any by default.

    Example:
        >>> from millrace.testing.paid_api import PaidService, ask, calls
        >>> with PaidService("calls.log") as service:
        ...     ask(service.url, {"id": 7, "text": "a cat"}, key="row-7")["caption"]
        'about a cat'
        >>> [call["key"] for call in calls("calls.log")]
        ['row-7']
    """

    def __init__(self, log: str | os.PathLike[str], *, delay_s: float = 0.0, port: int = 0) -> None:
        """Begin to listen; `with` begins to answer."""
        self.log = os.fspath(log)
        self.delay_s = delay_s
        # Appended with one write each: lines of several processes do not mix.
        self._handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.service = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it answers.

        Example:
            >>> from millrace.testing.paid_api import PaidService
            >>> with PaidService("calls.log") as service:
            ...     service.url
            'http://127.0.0.1:...'
        """
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop answering; the log stays."""
        self._server.shutdown()
        self._thread.join(_END_S)
        self._server.server_close()
        os.close(self._handle)

    def caption(self, row: dict[str, Any], key: str) -> dict[str, Any]:
        """Charge for a call and make the answer for a row."""
        line = json.dumps({"id": row["id"], "key": key, "at": time.time()}) + "\n"
        os.write(self._handle, line.encode())
        time.sleep(self.delay_s)
        return answer_to(row)


class _Server(ThreadingHTTPServer):
    service: PaidService
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base's
        """Say nothing about clients that are gone before their answer: they may be killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/count":
            made = calls(self.server.service.log)
            self._answer(200, {"calls": len(made), "keys": len({call["key"] for call in made})})
        else:
            self._answer(404, {"error": f"no {self.path}; known: GET /count, POST /caption"})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != "/caption" or not 0 < size <= BODY_BYTES_MAX:
            self.close_connection = True
            self._answer(400, {"error": "send a row as JSON to /caption"})
            return
        try:
            row = json.loads(self.rfile.read(size))
            answer = self.server.service.caption(row, self.headers.get(KEY) or "")
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, {"error": f"not a row with an id: {error!r}"})
            return
        self._answer(200, answer)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base
        """Say nothing: the log is what counts."""


def answer_to(row: dict[str, Any]) -> dict[str, Any]:
    """The answer for a row, always the same for the same row."""
    return {"caption": f"about {row.get('text', row['id'])}", "score": score(row["id"])}


def score(row_id: object) -> float:
    """The score of a row, between 0 and 1."""
    return xxh3_64_intdigest(json.dumps(row_id).encode()) % 100 / 100


def calls(log: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All calls that a log knows of, in order."""
    try:
        with open(log, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def ask(url: str, row: dict[str, Any], key: str = "") -> dict[str, Any]:
    """Call the service for a row, as a user's function would."""
    request = urllib.request.Request(  # noqa: S310 - the user's own address
        f"{url}/caption",
        data=json.dumps(row).encode(),
        headers={"Content-Type": "application/json", KEY: key},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        result: dict[str, Any] = json.load(answer)
    return result


def main() -> None:
    """Serve until interrupted."""
    options = argparse.ArgumentParser(description="a paid API that counts its calls")
    options.add_argument("--log", required=True, help="a file that gets a line for each call")
    options.add_argument("--port", type=int, default=0, help="on loopback; any by default")
    options.add_argument("--delay-ms", type=int, default=100, help="how long a call takes")
    given = options.parse_args()
    with PaidService(given.log, delay_s=given.delay_ms / 1000, port=given.port) as service:
        sys.stdout.write(service.url + "\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
