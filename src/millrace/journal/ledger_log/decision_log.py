"""The port of a decision log: numbered records that are added once, and snapshots. Pure.

Records have the numbers 1, 2, 3, ... without a gap. A snapshot of number n holds the effect of all
records up to n.

Invariant: of many who add a record of one number exactly one succeeds. A record that begins an
epoch is never removed, so an old owner finds its next number taken however long it slept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Added:
    """The record is in the log, durably."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The number has a record already."""

    content: bytes | None
    """None: it was there, and the next owner has removed it since."""


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The state as of a record."""

    number: int
    content: bytes


class DecisionLog(Protocol):
    """Where decisions are kept. `add` is called by one thread at a time, the rest by any."""

    @property
    def name(self) -> str:
        """Where it is, as people know it."""

    def prepare(self) -> None:
        """See that the log can be kept here; make what it needs."""

    def add(self, number: int, content: bytes) -> Added | Taken:
        """Add a record, durably, unless the number is taken.

        Raises `StorageError` or `PeerGone` if it was not added, and never will be; `BrokerStopped`
        if that is not known.
        """

    def read(self, number: int) -> bytes | None:
        """A record; None if there is none."""

    def numbers(self, first: int) -> Sequence[int]:
        """The numbers of the records that there are, from this one on, in order."""

    def read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes | None]]:
        """Records in the order given, several at a time where that is worth it."""

    def put_snapshot(self, snapshot: LogSnapshot) -> None:
        """Keep a snapshot, over one of the same number."""

    def snapshots(self) -> Sequence[int]:
        """The numbers of the snapshots that there are, in order."""

    def read_snapshot(self, number: int) -> bytes | None:
        """A snapshot; None if there is none."""

    def trim(self, before: int, *, keep: Collection[int]) -> None:
        """Remove snapshots and records below a number, without the records to keep."""

    def close(self) -> None:
        """Close its connections."""
