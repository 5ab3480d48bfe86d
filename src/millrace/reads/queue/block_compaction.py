"""Which remainders of blocks are written again, and which of them together. Pure.

A transaction that stays open for long leaves a few rows in each of many old blocks. They are moved
on, so that they pin no disk. Blocks that follow each other within their binding become one; it
keeps the lowest lsn, so the order of the binding's rows does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.reads.queue.block_directory import Directory
from millrace.reads.queue.blocks import Block, Lsn
from millrace.reads.queue.queue_limits import QueueLimits

MOVE_FACTOR: Final = 2
"""A block is moved when it has this many times as many rows as are left to be read."""
_SMALL: Final = 4
"""A block this many times below the target is small."""
JOINED_MAX: Final = 64
"""How many blocks that stay are looked at with a release, to make larger ones of small ones."""
_GROWTH: Final = 2
"""A block that was left alone joins others unless it is this many times as large: so a row is
moved a few times, not with each of its neighbours."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """A block with few rows left."""

    block: Block
    live_rows: int

    @property
    def size(self) -> int:
        """About how many bytes are left."""
        return self.block.length * self.live_rows // self.block.rows


def is_worth_moving(block: Block, live_rows: int) -> bool:
    """Whether a block is much larger than its remaining rows."""
    return live_rows * MOVE_FACTOR <= block.rows


def is_small(block: Block, limits: QueueLimits) -> bool:
    """Whether a block is worth becoming one with its neighbours."""
    return block.length * _SMALL <= limits.block_bytes_target


def groups(
    remainders: list[Remainder], directory: Directory, bytes_target: int
) -> list[list[Block]]:
    """Groups of blocks that become one block, each in the order of its lsn."""
    out: list[list[Block]] = []
    seen: set[Lsn] = set()
    size = 0
    for remainder in sorted(remainders, key=lambda left: (left.block.binding, left.block.lsn)):
        block = remainder.block
        last = out[-1][-1] if out else None
        if last is not None and directory.before(block) is last and _fit(last, block):  # noqa: SIM102
            if size + remainder.size <= bytes_target:
                out[-1].append(block)
                seen.add(block.lsn)
                size += remainder.size
                continue
        earlier, size = _small_before(remainder, directory, seen, bytes_target)
        out.append([*earlier, block])
        seen |= {joined.lsn for joined in out[-1]}
    return out


def _small_before(
    remainder: Remainder, directory: Directory, seen: set[Lsn], bytes_target: int
) -> tuple[list[Block], int]:
    """The small blocks just before a remainder, which join it; and their common size."""
    size, joining = remainder.size, [remainder.block]
    while (before := directory.before(joining[0])) is not None:
        joined = size + before.length
        is_small = before.length <= _GROWTH * size and joined <= bytes_target
        if before.lsn in seen or not is_small or not _fit(before, remainder.block):
            break
        joining.insert(0, before)
        size = joined
    return joining[:-1], size


def _fit(block: Block, other: Block) -> bool:
    return block.binding == other.binding and block.schema.equals(other.schema, check_metadata=True)
