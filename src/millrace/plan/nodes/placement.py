"""How rows are placed over tasks and partitions.

Invariant: two placements that are equal put equal keys into partitions of equal number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByHash:
    """Rows with equal keys in one partition."""

    keys: tuple[str, ...]
    partitions: int

    def __str__(self) -> str:
        return f"hash({', '.join(self.keys)}) into {self.partitions}"


@dataclass(frozen=True, slots=True)
class ByRange:
    """Partitions in the order of the keys; their bounds are sampled at run time.

    With `descending` the highest keys come first. The number of partitions is known only after the
    rows were measured; `partitions` is its limit.
    """

    keys: tuple[str, ...]
    descending: bool
    partitions: int

    def __str__(self) -> str:
        way = ", highest first" if self.descending else ""
        return f"range({', '.join(self.keys)}) into up to {self.partitions}{way}"


@dataclass(frozen=True, slots=True)
class Evenly:
    """Rows in turn: round robin."""

    partitions: int

    def __str__(self) -> str:
        return f"round robin into {self.partitions}"


@dataclass(frozen=True, slots=True)
class ToOne:
    """All rows in one partition, read by one task or, if broadcast, by every task."""

    broadcast: bool

    def __str__(self) -> str:
        return "broadcast" if self.broadcast else "gather"


@dataclass(frozen=True, slots=True)
class InPlace:
    """Rows stay as their tasks wrote them; one task reads the output of each."""

    def __str__(self) -> str:
        return "forward"


Placement = ByHash | ByRange | Evenly | ToOne | InPlace


def renamed(placement: Placement | None, names: Mapping[str, str]) -> Placement | None:
    """The placement under new column names; None if a key has no new name."""
    if not isinstance(placement, ByHash):
        return placement if isinstance(placement, ToOne) else None
    if not all(key in names for key in placement.keys):
        return None
    return ByHash(tuple(names[key] for key in placement.keys), placement.partitions)


def brings_together(placement: Placement | None, keys: tuple[str, ...]) -> bool:
    """Whether rows with equal `keys` are in one partition."""
    match placement:
        case ToOne(broadcast=False):
            return True
        case ByHash(keys=by):
            return bool(by) and set(by) <= set(keys)
        case _:
            return False
