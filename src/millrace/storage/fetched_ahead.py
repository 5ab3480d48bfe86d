"""Pieces of files in a store, fetched several at a time, and before their reader asks for them.

A request to a bucket takes its time, however little is read. So what a read needs is fetched at the
same time, and what its reader will need next meanwhile. A piece that cannot be fetched, or that
takes long, holds up only the read that needs it.

Invariant: no more bytes are fetched or wait to be taken than the limit. A piece that nobody fetched
is loaded by its reader, so what is dropped here costs time alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

_WAITING_MAX: Final = 4096
_STALE_TAKES: Final = 256
"""What is not taken while so many others are gives way."""


class Piece(NamedTuple):
    """A part of a file."""

    path: str
    position: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Fetching:
    content: Future[bytes]
    turn: int
    """How many pieces were taken before it was begun."""


class FetchedAhead:
    """Fetches pieces with a function that loads one. Many threads may use it."""

    def __init__(self, load: Callable[[Piece], bytes], *, at_once: int, bytes_max: int) -> None:
        self._load, self._at_once, self._bytes_max = load, at_once, bytes_max
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: OrderedDict[Piece, None] = OrderedDict()
        self._fetching: OrderedDict[Piece, _Fetching] = OrderedDict()
        """The oldest first."""
        self._bytes = self._takes = 0
        self._is_closed = False

    @property
    def nbytes(self) -> int:
        """The bytes of all pieces that are fetched or wait to be taken."""
        return self._bytes

    def need(self, pieces: Sequence[Piece]) -> None:
        """Fetch pieces that are taken now, in this order, before those that are only wanted."""
        if len(pieces) <= 1:
            return  # Its reader loads it itself.
        with self._lock:
            missing = [piece for piece in pieces if piece not in self._fetching]
            for piece in reversed(missing):
                self._waiting[piece] = None
                self._waiting.move_to_end(piece, last=False)
            needed = set(pieces)
            others = [piece for piece in self._fetching if piece not in needed]
            self._make_room(sum(piece.bytes for piece in missing), others)
            self._begin()

    def want(self, pieces: Iterable[Piece]) -> None:
        """Fetch pieces that will be taken soon, as far as there is room."""
        with self._lock:
            for piece in pieces:
                if len(self._waiting) < _WAITING_MAX and piece not in self._fetching:
                    self._waiting.setdefault(piece)
            before = self._takes - _STALE_TAKES
            stale = [piece for piece, fetching in self._fetching.items() if fetching.turn < before]
            self._make_room(self._bytes_max, stale)
            self._begin()

    def take(self, piece: Piece) -> bytes:
        """The bytes of a piece, once it is there; it is loaded now if nobody fetched it."""
        with self._lock:
            self._takes += 1
            self._waiting.pop(piece, None)
            fetching = self._fetching.pop(piece, None)
        if fetching is None:
            return self._load(piece)
        try:
            return self._content(piece, fetching.content)
        finally:
            with self._lock:
                self._bytes -= piece.bytes
                self._begin()

    def run(self, work: Callable[[], None]) -> None:
        """Do something in one of the threads, as soon as one is free; it must not raise."""
        with self._lock:
            if not self._is_closed:
                self._pool().submit(work)

    def close(self) -> None:
        """Fetch nothing more. Pieces are then loaded by their readers."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            self._make_room(self._bytes_max, list(self._fetching))
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    def _content(self, piece: Piece, content: Future[bytes]) -> bytes:
        if content.cancel():
            return self._load(piece)  # All threads are busy: this one is not.
        is_old = content.done()
        try:
            return content.result()
        except CancelledError:
            return self._load(piece)
        except Exception:
            if not is_old:
                raise
            return self._load(piece)  # It failed before it was needed: that may be over.

    def _begin(self) -> None:
        """Begin with pieces that wait, as far as there is room."""
        while self._waiting and not self._is_closed:
            piece = next(iter(self._waiting))
            if piece.bytes <= self._bytes_max:
                if self._bytes + piece.bytes > self._bytes_max:
                    return
                content = self._pool().submit(self._load, piece)
                self._fetching[piece] = _Fetching(content, self._takes)
                self._bytes += piece.bytes
            del self._waiting[piece]

    def _make_room(self, size: int, droppable: Iterable[Piece]) -> None:
        """Drop pieces that are there, or were not begun, until so much fits in."""
        for piece in droppable:
            if self._bytes + size <= self._bytes_max:
                return
            content = self._fetching[piece].content
            if content.cancel() or content.done():
                del self._fetching[piece]
                self._bytes -= piece.bytes

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix="millrace-ahead")
        return self._threads
