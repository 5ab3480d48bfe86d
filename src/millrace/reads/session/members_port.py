"""The members of a session as the session sees them: threads, processes or Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.session_messages import ToSession, ToSlice
from millrace.reads.slice.outbox import SentSoFar


@dataclass(frozen=True, slots=True)
class MemberUsage:
    """What a member takes and has sent."""

    disk_bytes: int
    """Of its queue."""
    sent: tuple[SentSoFar, ...]
    """By its slice, to each queue."""


class Members(Protocol):
    """The members of a session, wherever they run."""

    def send(self, slice_: int, message: ToSlice) -> None:
        """Send a message to a slice."""

    def read(self, member: int, visible: Visible) -> Iterator[pa.RecordBatch]:
        """The visible rows of a member's queue, in order."""

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        """Let every queue free the rows that are shown."""

    def set_disk_limit(self, *, is_on: bool) -> None:
        """Have every queue keep to its disk limit, or accept rows beyond it."""


class RunningMembers(Members, Protocol):
    """Members that are started and stopped for a session."""

    def start(self) -> None:
        """Start every member and open every stream between them."""

    def usage(self) -> list[MemberUsage]:
        """What each member takes on disk and has sent."""

    def close(self) -> None:
        """Stop every member and remove its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersRequest:
    """The members that a session needs, and its callbacks for their messages."""

    read: CoordinatedRead
    count: int
    epoch: int
    """Of the session's lease."""
    folder: str
    on_message: Callable[[int, ToSession], None]
    on_failure: Callable[[int | None, BaseException], None]


MakeMembers = Callable[[MembersRequest], RunningMembers]
