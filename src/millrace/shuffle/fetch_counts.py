"""What fetches from other hosts did, added up over tasks: a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from millrace.text import counted, human_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCounts:
    """What was fetched from agents of other hosts.

    Example:
        >>> from millrace.shuffle.fetch_counts import FetchCounts
        >>> two = FetchCounts(bytes=10, calls=1, hosts=("a",)) + FetchCounts(bytes=5, hosts=("b",))
        >>> two.bytes, two.hosts
        (15, ('a', 'b'))
    """

    bytes: int = 0
    ranges: int = 0
    """Partitions of map outputs that arrived whole."""
    calls: int = 0
    """Streams that were opened; a cut one is opened again."""
    waits: int = 0
    """How often a reader had to wait for bytes that were not there yet."""
    waited_s: float = 0.0
    queued_bytes_max: int = 0
    """The most bytes that one read had asked for ahead and its reader had not taken yet."""
    hosts: tuple[str, ...] = ()
    """The folders that bytes came from, each once."""

    def __add__(self, other: Self) -> Self:
        return type(self)(
            bytes=self.bytes + other.bytes,
            ranges=self.ranges + other.ranges,
            calls=self.calls + other.calls,
            waits=self.waits + other.waits,
            waited_s=self.waited_s + other.waited_s,
            queued_bytes_max=max(self.queued_bytes_max, other.queued_bytes_max),
            hosts=tuple(sorted({*self.hosts, *other.hosts})),
        )

    def __bool__(self) -> bool:
        return bool(self.calls or self.waits)

    def __str__(self) -> str:
        fetched = f"{human_bytes(self.bytes)} in {counted(self.ranges, 'range')}"
        how = f"{counted(len(self.hosts), 'host')}, {counted(self.calls, 'call')}"
        return f"fetched {fetched} from {how}; {counted(self.waits, 'wait')}, {self.waited_s:.2f} s"

    def since(self, before: Self) -> Self:
        """What was added; the hosts and the most that was queued are those so far."""
        return type(self)(
            bytes=self.bytes - before.bytes,
            ranges=self.ranges - before.ranges,
            calls=self.calls - before.calls,
            waits=self.waits - before.waits,
            waited_s=self.waited_s - before.waited_s,
            queued_bytes_max=self.queued_bytes_max,
            hosts=self.hosts,
        )

    def encode(self) -> dict[str, Any]:
        """As JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> Self:
        """Undo `encode`."""
        return cls(**{**values, "hosts": tuple(values.get("hosts", ()))})
