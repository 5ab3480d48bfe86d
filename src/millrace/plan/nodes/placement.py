"""How rows lie over tasks. Values only.

Invariant: two placements that are equal put equal keys into partitions of equal number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.text import counted


@dataclass(frozen=True, slots=True)
class ByHash:
    """Rows with equal keys in one partition."""

    keys: tuple[str, ...]
    partitions: int

    def __str__(self) -> str:
        return f"hash({', '.join(self.keys)}) into {self.partitions}"


@dataclass(frozen=True, slots=True)
class ByRange:
    """Partitions that follow one another in the order of the keys; bounds are sampled at run time.

    With `descending` the highest keys come first. How many partitions there are is known when the
    rows were measured; `partitions` is the most.
    """

    keys: tuple[str, ...]
    descending: bool
    partitions: int

    def __str__(self) -> str:
        way = ", highest first" if self.descending else ""
        return f"range({', '.join(self.keys)}) into up to {self.partitions}{way}"


@dataclass(frozen=True, slots=True)
class Evenly:
    """Rows dealt out in turn."""

    partitions: int

    def __str__(self) -> str:
        return f"round robin into {self.partitions}"


@dataclass(frozen=True, slots=True)
class ToOne:
    """All rows in one partition: gathered by one task, or read whole by every task."""

    broadcast: bool

    def __str__(self) -> str:
        return "broadcast" if self.broadcast else "gather"


@dataclass(frozen=True, slots=True)
class InPlace:
    """Rows stay as their tasks wrote them: one task reads on from each."""

    def __str__(self) -> str:
        return "forward"


Placement = ByHash | ByRange | Evenly | ToOne | InPlace


def renamed(placement: Placement | None, names: Mapping[str, str]) -> Placement | None:
    """The same placement under new names of columns; None if a key has no name any more."""
    if not isinstance(placement, ByHash):
        return placement if isinstance(placement, ToOne) else None
    if not all(key in names for key in placement.keys):
        return None
    return ByHash(tuple(names[key] for key in placement.keys), placement.partitions)


def brings_together(placement: Placement | None, keys: tuple[str, ...]) -> bool:
    """Whether rows that agree in `keys` lie together."""
    match placement:
        case ToOne(broadcast=False):
            return True
        case ByHash(keys=by):
            return bool(by) and set(by) <= set(keys)
        case _:
            return False


def partitions_of(placement: Placement | None) -> int | None:
    """In how many partitions rows come; None if that is known only at run time."""
    match placement:
        case ByHash(partitions=partitions) | Evenly(partitions=partitions):
            return partitions
        case ToOne():
            return 1
        case _:
            return None


def placement_text(placement: Placement | None) -> str:
    """A placement in words, for a plan's text."""
    count = partitions_of(placement)
    return "as files are cut" if count is None else counted(count, "partition")
