"""Memory for rows on their way to a reader, in large blocks that are used again.

A page that is touched first is cleared by the kernel, which may take longer than reading rows into
it, and a virtual machine may have to get it from its host as well. So memory that is not used any
more serves the next rows, and blocks ask for huge pages.

Invariant: a piece belongs to one holder until nothing refers to it.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from millrace.limits import MIB

BLOCK_BYTES: Final = 4 * MIB
"""A larger piece has a block of its own, of a multiple of this."""
_ALIGNMENT: Final = 64


@dataclass(slots=True)
class _Block:
    """A block, and the spans of it that are free, in order."""

    memory: memoryview
    free: list[tuple[int, int]]
    pieces: dict[int, weakref.ref[memoryview]] = field(default_factory=dict)
    """By where they begin."""

    def take(self, size: int) -> int | None:
        """Where a piece begins now; None: there is no room."""
        for place, (begin, end) in enumerate(self.free):
            if end - begin >= size:
                if end - begin == size:
                    del self.free[place]
                else:
                    self.free[place] = (begin + size, end)
                return begin
        return None

    def give_back(self, begin: int, end: int) -> None:
        """A span is free again, and becomes one with those beside it."""
        del self.pieces[begin]
        place = bisect_left(self.free, (begin, end))
        if place < len(self.free) and self.free[place][0] == end:
            end = self.free.pop(place)[1]
        if place and self.free[place - 1][1] == begin:
            begin = self.free.pop(place - 1)[0]
            place -= 1
        self.free.insert(place, (begin, end))


class BlockMemory:
    """Gives out pieces of blocks. Many threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[int, _Block] = {}
        self._last = 0
        self._unused: deque[tuple[int, int, int]] = deque()
        """Spans to which nothing refers any more; noted without the lock, in any thread."""

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks."""
        return sum(len(block.memory) for block in self._blocks.values())

    def piece(self, size: int) -> memoryview:
        """Memory that is not cleared, until nothing refers to it."""
        whole = max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT
        with self._lock:
            self._take_back()
            number, begin = self._place(whole)
            block = self._blocks[number]
            piece = block.memory[begin : begin + size]
            unused, span = self._unused, (number, begin, begin + whole)
            block.pieces[begin] = weakref.ref(piece, lambda _: unused.append(span))
            return piece

    def trim(self) -> None:
        """Give back the blocks that are not used."""
        with self._lock:
            self._take_back()
            for number in [n for n, block in self._blocks.items() if not block.pieces]:
                del self._blocks[number]

    def _place(self, size: int) -> tuple[int, int]:
        for number, block in self._blocks.items():
            begin = block.take(size)
            if begin is not None:
                return number, begin
        self._last += 1
        length = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        block = self._blocks[self._last] = _Block(_mapped(length), [(size, length)])
        if size == length:
            block.free.clear()
        return self._last, 0

    def _take_back(self) -> None:
        while self._unused:
            number, begin, end = self._unused.popleft()
            self._blocks[number].give_back(begin, end)


def _mapped(length: int) -> memoryview:
    block = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(block)
