"""Which rows a checkpoint makes visible: a window of clocks for each tag and producer. Pure.

A row is visible in a checkpoint when its clock is above the clock shown before and at or below the
clock shown now, and when it was not rolled back. So the rows of successive checkpoints part the
committed rows: each is visible in exactly one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from millrace.reads.model.checkpoint import Checkpoint, RolledBack, find_pairs, shown_to
from millrace.reads.model.number_tables import Table, pack, unpack
from millrace.reads.model.tags import Clocks, Ints


@dataclass(frozen=True, slots=True)
class Windows(Table):
    """For each pair, in order of tag and producer: its visible clocks, above one and up to another.

    Pairs that are not listed show nothing.
    """

    TYPES: ClassVar[dict[str, Any]] = {"above": np.uint64, "upto": np.uint64}

    tag: Ints
    producer: Ints
    above: Clocks
    upto: Clocks


@dataclass(frozen=True, slots=True)
class Visible:
    """The rows that become visible from one checkpoint to another."""

    windows: Windows
    rolled_back: RolledBack

    def to_bytes(self) -> bytes:
        """For the wire."""
        return pack([self.windows, self.rolled_back])

    @classmethod
    def from_bytes(cls, content: bytes) -> Visible:
        """From the wire."""
        windows, gone = unpack(content, [Windows, RolledBack])
        return cls(windows, gone)


def between(before: Checkpoint, now: Checkpoint) -> Visible:
    """What becomes visible from one whole checkpoint to a later one, both as `merge` gives them."""
    above = shown_to(before.shown, now.shown.tag, now.shown.producer)
    moved = now.shown.clock > above
    windows = Windows(
        now.shown.tag[moved], now.shown.producer[moved], above[moved], now.shown.clock[moved]
    )
    gone = now.rolled_back
    _, concerned = find_pairs(windows.tag, windows.producer, gone.tag, gone.producer)
    return Visible(windows, gone.take(concerned))
