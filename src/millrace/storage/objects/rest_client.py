"""Sends requests to a store over HTTP, within the limits of `Config`.

Invariant: a call ends, with all tries. A cut answer is no answer, and is asked for again.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import S3Unreachable
from millrace.extras import import_for
from millrace.storage.objects.rest_requests import RestAnswer, RestRequest
from millrace.storage.objects.s3_clients import try_s

REST_PAUSE_MS: Final = 100
"""The first pause before a request is sent again; it doubles."""

_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_LOG: Final = logging.getLogger(__name__)
Authorize = Callable[[RestRequest], RestRequest]
"""Adds what proves that a request may be made."""


class RestClient:
    """Requests to one server. Safe to share between threads; connects anew after a fork."""

    def __init__(self, server: str, extra: str, config: Config, authorize: Authorize) -> None:
        """`extra` is the one that brings what is needed for this server."""
        self.server, self._config, self._authorize = server, config, authorize
        self._urllib3: Any = import_for("urllib3", extra, f"a bucket at {server}")
        self._lock = threading.Lock()
        self._pool: Any = None
        self._pid = os.getpid()
        self._ahead_ms = 0
        """How far this host's clock is ahead of the server's."""

    def send(self, request: RestRequest, what: str) -> RestAnswer:
        """Send a request until there is an answer; `what` says what fails if there is none."""
        until = time.monotonic() + ms(self._config.gone_after) / 1000
        pause_s, tries = REST_PAUSE_MS / 1000, self._config.s3_tries_max
        for number in range(tries):
            is_last = number == tries - 1 or time.monotonic() + pause_s > until
            try:
                answer = self._try(self._authorize(request), was_repeated=number > 0)
            except (self._urllib3.exceptions.HTTPError, OSError) as error:
                if is_last:
                    raise self._unreachable(what, error) from error
                _LOG.info("%s is tried again: %s", what, error)
            else:
                if is_last or answer.status not in _AGAIN:
                    return answer
                _LOG.info("%s is tried again: status %d", what, answer.status)
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all come at once
            pause_s *= 2
        raise AssertionError("the last try ends the loop")

    def ahead_ms(self) -> int:
        """How far this host's clock is ahead of the server's, as far as its answers told."""
        return self._ahead_ms

    def _try(self, request: RestRequest, *, was_repeated: bool) -> RestAnswer:
        query = f"?{urlencode(request.query)}" if request.query else ""
        said = self.pool.request(
            request.method,
            f"{self.server}{request.path}{query}",
            headers=dict(request.headers),
            body=request.body,
            redirect=False,
            retries=False,
            decode_content=False,
        )
        headers = {name.lower(): value for name, value in said.headers.items()}
        if "date" in headers:
            server_ms = int(parsedate_to_datetime(headers["date"]).timestamp() * 1000)
            self._ahead_ms = time.time_ns() // 1_000_000 - server_ms
        return RestAnswer(
            status=said.status, headers=headers, body=said.data, was_repeated=was_repeated
        )

    def _unreachable(self, what: str, error: Exception) -> S3Unreachable:
        return S3Unreachable(
            f"{what} failed: {error}\n"
            f"  found: no answer of {self.server} in {self._config.s3_tries_max} tries "
            "(Config.s3_tries_max)\n"
            "  to fix: see whether it can be reached from this host, and run this again: it goes "
            "on from\n  where it stopped"
        )

    @property
    def pool(self) -> Any:  # noqa: ANN401 - an extra has no types here
        """The connections, which a process that was forked off may not use."""
        if self._pid != os.getpid():
            self._lock, self._pool, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = self._opened()
            return self._pool

    def _opened(self) -> Any:  # noqa: ANN401 - as above
        given = {
            "maxsize": self._config.s3_calls_at_once,
            "timeout": self._urllib3.Timeout(
                connect=try_s(self._config, self._config.s3_connect_ms_max),
                read=try_s(self._config, self._config.s3_answer_ms_max),
            ),
        }
        split = urlsplit(self.server)
        proxy = getproxies().get(split.scheme)
        if proxy and not proxy_bypass(split.hostname or ""):
            return self._urllib3.ProxyManager(proxy, **given)
        return self._urllib3.PoolManager(**given)
