"""Decides which ranges are fetched next from which host, and when their bytes are handed out. Pure.

Ranges are admitted in the order in which their reader wants them. Each host has a queue of its own,
so a slow host holds up its own ranges and those behind them in order, and no other host's fetch.

Invariant: no more bytes are admitted and not yet handed out than the limit allows, except for a
single range that is larger than it. The range that the reader wants next is always admitted, so a
reader that waits is waiting for a fetch that is under way or queued.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from millrace.ids import FolderId

_REFILL_SHARE: Final = 2
"""Ranges are admitted again when this part of the limit is free: small ones travel together."""


@dataclass(slots=True)
class _Host:
    waiting: deque[int] = field(default_factory=deque)
    is_busy: bool = False


class HostQueues:
    """The ranges of one read, by their numbers: 0, 1, 2 and so on."""

    def __init__(self, *, bytes_max: int, ranges_max: int) -> None:
        self._bytes_max, self._ranges_max = bytes_max, ranges_max
        self._hosts: dict[FolderId, _Host] = {}
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._next = 0

    @property
    def bytes(self) -> int:
        """Admitted and not handed out yet."""
        return self._bytes

    def wants_more(self) -> bool:
        """Whether it is time to offer further ranges."""
        return not self._sizes or (
            self._bytes <= self._bytes_max // _REFILL_SHARE
            and len(self._sizes) <= self._ranges_max // _REFILL_SHARE
        )

    def admit(self, folder: FolderId, size: int) -> int | None:
        """Queue the next range for its host; its number, None if there is no room now."""
        is_full = self._bytes + size > self._bytes_max or len(self._sizes) >= self._ranges_max
        if self._sizes and is_full:
            return None
        number, self._next = self._next, self._next + 1
        self._sizes[number] = size
        self._bytes += size
        self._hosts.setdefault(folder, _Host()).waiting.append(number)
        return number

    def begin(self) -> tuple[FolderId, list[int]] | None:
        """A host that is free and all that waits for it, first the host wanted earliest."""
        ready = [f for f, host in self._hosts.items() if host.waiting and not host.is_busy]
        if not ready:
            return None
        folder = min(ready, key=lambda folder: self._hosts[folder].waiting[0])
        host = self._hosts[folder]
        numbers = list(host.waiting)
        host.waiting.clear()
        host.is_busy = True
        return folder, numbers

    def hosts_ready(self) -> int:
        """How many hosts could be asked now."""
        return sum(bool(host.waiting) and not host.is_busy for host in self._hosts.values())

    def on_end(self, folder: FolderId) -> None:
        """The fetch from a host ended, well or not."""
        self._hosts[folder].is_busy = False

    def on_taken(self, number: int) -> None:
        """The reader is done with a range: its bytes make room."""
        self._bytes -= self._sizes.pop(number)
