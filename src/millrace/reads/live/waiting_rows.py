"""The rows that wait for a follower, as numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

SubscriberId = NewType("SubscriberId", int)


@dataclass(frozen=True, slots=True)
class RowsSize:
    """The size of some rows."""

    rows: int
    bytes: int


@dataclass(slots=True)
class Channel:
    """The bytes that wait for one follower, over all rings that it reads in.

    Rings have locks of their own, so each writes to its own entry and no sum is shared.
    """

    moved_ms: int
    """When rows were last taken out of it, or put into it with none waiting."""
    waiting: dict[SubscriberId, int] = field(default_factory=dict)
    """Bytes, for each of its subscribers that has some."""

    def bytes(self) -> int:
        """How much waits."""
        return sum(list(self.waiting.values()))

    def put(self, subscriber_id: SubscriberId, bytes_: int, now_ms: int) -> None:
        """Set the bytes that wait for one of its subscribers."""
        if not self.waiting:
            self.moved_ms = now_ms
        self.waiting[subscriber_id] = bytes_

    def take(self, subscriber_id: SubscriberId, left: int, now_ms: int) -> None:
        """A subscriber took rows; `left` bytes still wait."""
        self.moved_ms = now_ms
        if left:
            self.waiting[subscriber_id] = left
        else:
            self.leave(subscriber_id)

    def leave(self, subscriber_id: SubscriberId) -> None:
        """Forget a subscriber: no bytes wait for it any more."""
        self.waiting.pop(subscriber_id, None)
