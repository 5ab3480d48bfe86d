"""The rule that makes each batch count once: what is true is the committed offset. Pure.

A worker publishes the rows of a batch and moves the unit's offset from where it stood in one
transaction, under its lease. Whatever it does not know, it decides by that offset.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

_NUMBER: Final = re.compile(r"(?:^|/)(\d+)$")


class PublishOutcome(StrEnum):
    """What became of a transaction whose answer was lost."""

    DONE = "done"
    """It was carried out."""
    AGAIN = "again"
    """It was not; asking again is safe, since it expects the old offset."""
    OVERTAKEN = "overtaken"
    """Somebody else moved on: nothing of this worker's counts."""


def what_became(*, expected: int | None, wanted: int, found: int | None) -> PublishOutcome:
    """Judge a lost answer by the unit's committed offset."""
    assert wanted != expected, "a transaction that moves nothing cannot be told by the offset"
    if found == wanted:
        return PublishOutcome.DONE
    return PublishOutcome.AGAIN if found == expected else PublishOutcome.OVERTAKEN


def kept_partition(journal: str, partitions: int) -> int:
    """Where the rows of an input journal go when no key says: always to the same partition."""
    number = _NUMBER.search(journal)
    place = int(number[1]) if number else zlib.crc32(journal.encode())
    return place % partitions


def halves(count: int) -> Sequence[tuple[int, int]]:
    """How a batch that raised is cut to find the rows that do."""
    middle = count // 2
    return ((0, middle), (middle, count))
