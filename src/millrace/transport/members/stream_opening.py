"""Opens streams to many members at once.

Invariant: the first error, of any stream, ends the opening; no stream waits for another's
turn to fail. Others stay open until they are closed, so that none of them seems to be the first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from millrace.config import Config
from millrace.errors import MemberLost
from millrace.transport.members.member_client import MemberClient
from millrace.transport.members.member_links import MemberLink
from millrace.transport.members.member_messages import SessionFailed, StreamMessages, StreamsOpened
from millrace.wakeup import WorkerThread, join, still_running


class StreamOpening:
    """Streams of the session (None) or of a slice to these members; begun when this is made.

    `first` is sent on each. Once a stream is open, `on_message` gets its messages, and
    `on_lost` the reason why it broke.
    """

    def __init__(
        self,
        clients: Sequence[MemberClient],
        *,
        slice_: int | None,
        says: StreamMessages,
        hears: StreamMessages,
        on_message: Callable[[int, Any], None],
        on_lost: Callable[[int, BaseException], None],
        config: Config,
        first: object | None = None,
    ) -> None:
        self.failed: int | None = None
        """The member that could not be opened, or that another one could not reach."""
        self._lost_peer: int | None = None
        self._clients = clients
        self._slice, self._says, self._hears, self._first = slice_, says, hears, first
        self._on_message = on_message
        self._on_lost = on_lost
        self._limit_ms, self._stop_ms = config.reads_open_ms_max, config.reads_stop_ms_max
        self._answers: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._links: dict[int, MemberLink] = {}
        self._opened: set[int] = set()
        self._is_over = False
        self._threads = [
            WorkerThread(partial(self._open, client), "reads-open") for client in clients
        ]
        for thread in self._threads:
            thread.start()

    def links(self) -> dict[int, MemberLink]:
        """All streams, once each is open; raises the first error."""
        until = time.monotonic() + self._limit_ms / 1000
        for _ in self._clients:
            self._wait_for_one(until)
        join(self._threads, self._limit_ms, "reads_open_ms_max")
        return dict(self._links)

    def close(self) -> None:
        """End all streams, those too that are still being opened; waiting threads get an error."""
        with self._lock:
            self._is_over = True
            links = list(self._links.values())
        for client in self._clients:
            lost = MemberLost(
                f"the stream to {client} was closed\n"
                "  to fix: open the session again; it goes on from the last checkpoint"
            )
            self._answers.put((client.number, lost))
        for link in links:
            link.close()
        # One that cannot be reached is given up on: its thread ends when Flight gives up, too.
        still_running(self._threads, self._stop_ms)

    def _wait_for_one(self, until: float) -> None:
        try:
            number, error = self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            silent = [client for client in self._clients if client.number not in self._opened]
            self.failed = silent[0].number
            raise MemberLost(
                f"no stream was open after {self._limit_ms} ms to: {', '.join(map(str, silent))}\n"
                "  limit: reads_open_ms_max\n"
                "  to fix: see that these hosts reach each other, or raise reads_open_ms_max"
            ) from None
        if error is not None:
            self.failed = number if self._lost_peer is None else self._lost_peer
            raise error

    def _open(self, client: MemberClient) -> None:
        number = client.number

        def lost(error: BaseException) -> None:
            if number in self._opened:
                self._on_lost(number, error)
            else:
                self._answers.put((number, error))

        def handle(message: object) -> None:
            if number in self._opened:
                self._on_message(number, message)
            elif isinstance(message, StreamsOpened):
                self._opened.add(number)
                self._answers.put((number, None))
            elif isinstance(message, SessionFailed):
                self._lost_peer = message.peer
                raise message.error
            else:
                self._on_message(number, message)

        try:
            link = client.open(
                self._slice, says=self._says, hears=self._hears, lost=lost, handle=handle
            )
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self._answers.put((number, error))
            return
        with self._lock:
            self._links[number] = link
            is_over = self._is_over
        if is_over:
            link.close()
        elif self._first is not None:
            link.send(self._first)
