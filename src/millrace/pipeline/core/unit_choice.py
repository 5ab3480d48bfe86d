"""Which unit a worker takes next, and why its turn on a unit ends. Pure.

There is no scheduler: each worker ranks the units and tries to lease the best one. Steps near the
sinks come first, so that rows flow out before more flow in.

Invariant: if a unit that is not set aside has rows and nobody holds a lease, something is chosen.
A step is pushed back only by one behind it that has rows itself; following these from step to step
ends at one that nothing pushes back. A sink that waits for more rows does so only while something
in front of it can run, and never with so many rows that it pushes others back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from millrace.pipeline.core.hops import Hop, Unit
from millrace.pipeline.core.job_model import ParquetSink


class TurnEnd(StrEnum):
    """Why a turn of a worker on a unit ended."""

    OVER = "over"
    """Its time was over, there were no more rows, or the worker is to stop."""
    LOST = "lost"
    """Another worker has the unit."""
    FAILED = "failed"
    HELD = "held"
    SPENT = "spent"
    STUCK = "stuck"
    """Calls never returned: this process should make no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """What decides how rows flow."""

    backlog_rows_max: int
    sink_bytes: int
    sink_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """A unit as a worker sees it."""

    unit: Unit
    rows: int
    """That wait for it."""
    held: bool = False
    """Whether somebody has its lease."""
    waited_ms: int = 0
    """How long the worker has seen rows wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is asked about the hops of a job, worked out once."""

    hops: Mapping[str, Hop]
    before: Mapping[str, frozenset[str]]
    """The hops whose rows come to a hop, directly or through others."""

    @classmethod
    def of(cls, hops: Sequence[Hop]) -> Steps:
        """The hops of a job, in any order."""
        named = {hop.name: hop for hop in hops}
        before: dict[str, set[str]] = {name: set() for name in named}
        for hop in sorted(hops, key=lambda each: each.depth):
            for fed in hop.feeds:
                before[fed] |= before[hop.name] | {hop.name}
        return cls(hops=named, before={name: frozenset(some) for name, some in before.items()})


def rank(
    steps: Steps,
    places: Sequence[UnitState],
    limits: FlowLimits,
    *,
    aside: Collection[Unit] = (),
    warm: str | None = None,
    row_bytes: Mapping[str, float] | None = None,
) -> list[Unit]:
    """The units worth leasing, best first.

    `aside` are units that are left alone in this run. `warm` is a hop whose callable the worker
    has made already, `row_bytes` how large rows of a hop are found to be.
    """
    seen = _Seen(steps, places, limits, frozenset(aside), row_bytes or {})
    open_ = [place for place in places if seen.takes(place)]

    def order(place: UnitState) -> tuple[bool, int, int, Unit]:
        hop = steps.hops[place.unit.hop]
        return (hop.name != warm, -hop.depth, -place.rows, place.unit)

    return [place.unit for place in sorted(open_, key=order)]


class _Seen:
    """Sums over all units, for the questions about each."""

    def __init__(
        self,
        steps: Steps,
        places: Sequence[UnitState],
        limits: FlowLimits,
        aside: frozenset[Unit],
        row_bytes: Mapping[str, float],
    ) -> None:
        self.steps, self.limits, self.aside, self.row_bytes = steps, limits, aside, row_bytes
        names = steps.hops
        self.backlog = dict.fromkeys(names, 0)
        self.busy = dict.fromkeys(names, 0)
        self.units = dict.fromkeys(names, 0)
        self.runs: set[str] = set()
        for place in places:
            name = place.unit.hop
            self.backlog[name] += place.rows
            self.busy[name] += place.held
            self.units[name] += 1
            if place.held or (place.rows and place.unit not in aside):
                self.runs.add(name)

    def takes(self, place: UnitState) -> bool:
        hop = self.steps.hops[place.unit.hop]
        if not place.rows or place.held or place.unit in self.aside:
            return False
        workers = hop.options.workers
        if workers is not None and self.busy[hop.name] >= workers:
            return False
        if any(self.backlog[name] >= self.limits.backlog_rows_max for name in hop.feeds):
            return False
        return not isinstance(hop.sink, ParquetSink) or self._is_enough(hop, place)

    def _is_enough(self, hop: Hop, place: UnitState) -> bool:
        """Whether a file is worth writing: it is large, nothing more comes, or it is late."""
        rows = max(1, self.limits.backlog_rows_max // max(1, self.units[hop.name]))
        each = self.row_bytes.get(hop.name)
        if each:
            rows = min(rows, max(1, int(self.limits.sink_bytes / each)))
        more_comes = not self.runs.isdisjoint(self.steps.before[hop.name])
        return place.rows >= rows or not more_comes or place.waited_ms >= self.limits.sink_ms
