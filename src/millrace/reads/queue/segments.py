"""The blocks in segment files, and the bytes that can be freed. Pure.

A segment with no live block is unlinked. In one that still has some, bytes of dead blocks are
punched out. The file system frees whole pages only, so a punch reaches into the page that a dead
block shares with dead neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from millrace.reads.queue.blocks import Block, SegmentNumber

PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Unlink:
    """Remove a segment."""

    segment: SegmentNumber


@dataclass(frozen=True, slots=True)
class Punch:
    """Give bytes of a segment back, without moving the others."""

    segment: SegmentNumber
    begin: int
    end: int


Freeing = Unlink | Punch


@dataclass(slots=True)
class _Segment:
    length: int = 0
    live_blocks: int = 0
    live_bytes: int = 0
    dead: list[tuple[int, int]] = field(default_factory=list)
    """Ranges without live blocks, in order; none touches the next."""


class Segments:
    """Keeps account of all segments of a queue."""

    def __init__(self, bytes_target: int) -> None:
        self._target = bytes_target
        self._segments: dict[SegmentNumber, _Segment] = {}
        self._last = SegmentNumber(0)
        self._length = 0
        self._freed = 0
        self.can_punch = True
        """Until a file system refuses."""

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def used_bytes(self) -> int:
        """What the segments take on disk."""
        return self._length - (self._freed if self.can_punch else 0)

    def segment_for_next(self) -> SegmentNumber:
        """The segment that the next block goes to."""
        open_one = self._segments.get(self._last)
        if open_one is None or open_one.length >= self._target:
            self._last = SegmentNumber(self._last + 1)
            self._segments[self._last] = _Segment()
        return self._last

    def on_written(self, block: Block) -> None:
        """A block was written behind all others of its segment."""
        segment = self._segments[block.segment]
        assert block.position == segment.length, (block.position, segment.length)
        segment.length += block.length
        segment.live_blocks += 1
        segment.live_bytes += block.length
        self._length += block.length

    def on_dead(self, blocks: Iterable[Block]) -> list[Freeing]:
        """These blocks are no longer needed: returns what to free."""
        touched: dict[SegmentNumber, list[Block]] = {}
        for block in blocks:
            touched.setdefault(block.segment, []).append(block)
        actions: list[Freeing] = []
        for number, dead in touched.items():
            segment = self._segments[number]
            segment.live_blocks -= len(dead)
            segment.live_bytes -= sum(block.length for block in dead)
            assert segment.live_blocks >= 0, number
            if not segment.live_blocks:
                actions.append(self._unlink(number, segment))
                continue
            runs = _runs((block.position, block.position + block.length) for block in dead)
            punches = [self._bury(number, segment, *run) for run in runs]
            actions += punches if self.can_punch else []
        return actions

    def sparse(self) -> list[SegmentNumber]:
        """If holes cannot be punched: segments with few live bytes, to be emptied."""
        if self.can_punch:
            return []
        return [
            number
            for number, segment in self._segments.items()
            if segment.live_bytes * 2 <= segment.length
            and (number != self._last or segment.length >= self._target)
        ]

    def _unlink(self, number: SegmentNumber, segment: _Segment) -> Unlink:
        del self._segments[number]
        self._length -= segment.length
        self._freed -= sum(_page_bytes(*run) for run in segment.dead)
        return Unlink(number)

    def _bury(self, number: SegmentNumber, segment: _Segment, begin: int, end: int) -> Punch:
        """Join a dead run with the dead runs beside it."""
        index = bisect_left(segment.dead, (begin, end))
        first, last = index, index
        joined_begin, joined_end = begin, end
        if index and segment.dead[index - 1][1] == begin:
            first, joined_begin = index - 1, segment.dead[index - 1][0]
        if index < len(segment.dead) and segment.dead[index][0] == end:
            last, joined_end = index + 1, segment.dead[index][1]
        self._freed -= sum(_page_bytes(*run) for run in segment.dead[first:last])
        self._freed += _page_bytes(joined_begin, joined_end)
        segment.dead[first:last] = [(joined_begin, joined_end)]
        reach_begin = begin // PAGE_BYTES * PAGE_BYTES
        reach_end = -(-end // PAGE_BYTES) * PAGE_BYTES
        return Punch(number, max(joined_begin, reach_begin), min(joined_end, reach_end))


def _runs(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that touch."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _page_bytes(begin: int, end: int) -> int:
    """How many bytes of a range are whole pages."""
    return max(0, end // PAGE_BYTES - -(-begin // PAGE_BYTES)) * PAGE_BYTES
