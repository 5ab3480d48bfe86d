"""Ranges that were read and checked, kept for the reader that takes them in parts.

A reader of many journals takes a little of each at a time. Without these, it would read and check a
whole range for each part. A range is kept while a reader is inside it, and dropped when a reader
takes its last row. Above the limit the ranges that are there stay, and others are read again: if
the oldest went, readers that go round over more than the limit would never find one. A range that
was passed by for several rounds is given up then.

Invariant: kept ranges hold no more bytes than the limit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

_ROUNDS_MAX: Final = 4
"""A range that was not taken from while readers went so many times over all others may go."""
_ROUND_MIN: Final = 64


Content = TypeVar("Content")


@dataclass(slots=True)
class _Kept(Generic[Content]):
    content: Content
    bytes: int
    turn: int
    """The call in which it was last used."""


class KeptRanges(Generic[Content]):
    """Rows of ranges by where their bytes are and their checksum. Many threads may use it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._ranges: OrderedDict[Hashable, _Kept[Content]] = OrderedDict()
        """The one that was used longest ago first."""
        self._bytes = self._turn = 0

    @property
    def nbytes(self) -> int:
        """What the kept ranges take."""
        return self._bytes

    def __contains__(self, key: Hashable) -> bool:
        return key in self._ranges

    def get(self, key: Hashable, *, is_last: bool) -> Content | None:
        """The rows of a range, if it is kept; it goes if a reader takes its last row now."""
        with self._lock:
            self._turn += 1
            kept = self._ranges.get(key)
            if kept is None:
                return None
            if is_last:
                self._drop(key)
            else:
                kept.turn = self._turn
                self._ranges.move_to_end(key)
            return kept.content

    def keep(self, key: Hashable, content: Content, size: int) -> bool:
        """Keep a range of which a reader took a part; False if there is no room."""
        with self._lock:
            while self._bytes + size > self._bytes_max and self._ranges:
                oldest, kept = next(iter(self._ranges.items()))
                if self._turn - kept.turn <= _ROUNDS_MAX * max(_ROUND_MIN, len(self._ranges)):
                    return False
                self._drop(oldest)
            if self._bytes + size > self._bytes_max:
                return False
            if key not in self._ranges:
                self._ranges[key] = _Kept(content, size, self._turn)
                self._bytes += size
            return True

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._ranges.clear()
            self._bytes = 0

    def _drop(self, key: Hashable) -> None:
        self._bytes -= self._ranges.pop(key).bytes
