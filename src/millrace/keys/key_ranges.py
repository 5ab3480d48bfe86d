"""Ranges of the 32-bit key space, as members of a coordinated read share it.

Invariant: bounds are inclusive, so the whole space is one range and no range is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import UserError

KEY_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The keys from `begin` to `end`, both included.

    Example:
        >>> mr.tile(2)[0]
        KeyRange(begin=0, end=2147483647)
    """

    begin: int
    end: int

    def __post_init__(self) -> None:
        """Refuse ranges that are empty or outside the space."""
        if not 0 <= self.begin <= self.end <= KEY_MAX:
            raise UserError(
                f"key range {self.begin} to {self.end} is empty or outside 0 to {KEY_MAX}"
                "\n  to fix: give begin <= end within 32 bits"
            )

    def __str__(self) -> str:
        return f"{self.begin:08x}-{self.end:08x}"

    def contains(self, key: int) -> bool:
        """Whether `key` is in this range."""
        return self.begin <= key <= self.end

    def mask(self, keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which of `keys` are in this range."""
        return (keys >= self.begin) & (keys <= self.end)

    def overlap(self, other: KeyRange) -> KeyRange | None:
        """The keys in both ranges, or None."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        return KeyRange(begin, end) if begin <= end else None


WHOLE: Final = KeyRange(0, KEY_MAX)


def tile(members: int) -> tuple[KeyRange, ...]:
    """Cut the whole space into `members` ranges without gaps, even to within one key.

    Example:
        >>> from millrace.keys import tile
        >>> [str(key_range) for key_range in tile(2)]
        ['00000000-7fffffff', '80000000-ffffffff']
    """
    if not 1 <= members <= KEY_MAX + 1:
        raise UserError(f"cannot cut keys into {members} ranges\n  to fix: give 1 or more")
    cuts = [member * (KEY_MAX + 1) // members for member in range(members + 1)]
    return tuple(KeyRange(begin, end - 1) for begin, end in pairwise(cuts))


def unsigned(hashes: pa.Int32Array) -> npt.NDArray[np.uint32]:
    """Key hashes as positions in the key space: the same bits, without a sign."""
    keys: npt.NDArray[np.uint32] = hashes.to_numpy().view(np.uint32)
    return keys
