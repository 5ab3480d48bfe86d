"""The limits of a queue, and the order of its bindings. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.limits import MIB

READS_BATCH_BYTES_TARGET: Final = 8 * MIB
"""The same in bytes."""

READS_BATCH_ROWS_TARGET: Final = 65_536
"""How many staged rows are put in order at a time."""

READS_HELD_BYTES_MAX: Final = 256 * MIB
"""Most bytes of one stream that a full queue holds; above a sender's window and one message."""

READS_BLOCK_ROWS_TARGET: Final = 8_192
"""How many rows are enough for a block."""

PAIRS_MAX: Final = 64
"""Of so many pairs of tag and producer in a block its clocks are known; of more, a sample."""
BUFFERED_BLOCKS_MAX: Final = 4
"""How many blocks' worth of rows are put together at a time, over all bindings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Sizes of one member's queue."""

    disk_bytes_max: int
    """Above this, messages are held back and not answered."""
    segment_bytes_target: int
    block_bytes_target: int
    block_rows_target: int
    held_bytes_max: int
    """Of one stream: a sender's window and one message. More means that it kept to no window."""
    batch_rows_target: int
    """How many rows are put in order at a time when a checkpoint is read; and bytes."""
    batch_bytes_target: int

    @classmethod
    def of(cls, config: Config) -> QueueLimits:
        """From the configuration."""
        return cls(
            disk_bytes_max=config.reads_disk_bytes_max,
            segment_bytes_target=config.reads_segment_bytes_target,
            block_bytes_target=config.reads_block_bytes_target,
            block_rows_target=READS_BLOCK_ROWS_TARGET,
            held_bytes_max=READS_HELD_BYTES_MAX,
            batch_rows_target=READS_BATCH_ROWS_TARGET,
            batch_bytes_target=READS_BATCH_BYTES_TARGET,
        )


@dataclass(frozen=True, slots=True)
class BindingOrder:
    """The order of a binding's rows among others: higher priority, then clock plus delay."""

    priority: int = 0
    delay: int = 0
    """In units of clocks."""
