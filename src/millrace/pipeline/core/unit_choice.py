"""Which unit a worker takes next, and why its turn on a unit ends. Pure.

There is no scheduler: each worker ranks the units and tries to lease the best one. Steps near the
sinks come first, so that rows flow out before more flow in.

Invariant: if a unit that is not set aside has rows and nobody holds a lease, something is chosen.
A step is pushed back only by one behind it that has rows itself; following these from step to step
ends at one that nothing pushes back. Rows that look something up wait for their table only while a
step in front of it can run. A sink that waits for more rows does so only while something in front
of it can run, and never with so many rows that it pushes others back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from millrace.pipeline.core.hops import Hop, Unit
from millrace.pipeline.state.state_operators import TABLE_SIDE


class TurnEnd(StrEnum):
    """Why a turn of a worker on a unit ended."""

    OVER = "over"
    """Its time was over, there were no more rows, or the worker is to stop."""
    LOST = "lost"
    """Another worker has the unit."""
    FAILED = "failed"
    HELD = "held"
    SPENT = "spent"
    WAITING = "waiting"
    """A provider works on a batch of the unit; until it has ended there is nothing to do."""
    STUCK = "stuck"
    """Calls never returned: this process should make no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Limits that decide how rows flow."""

    backlog_rows_max: int
    sink_bytes: int
    sink_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """A unit as a worker sees it."""

    unit: Unit
    rows: int
    """The number of rows that wait for it."""
    is_leased: bool = False
    """Whether a worker holds its lease."""
    waited_ms: int = 0
    """How long the worker has seen rows wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The hops of a job and their order, calculated once."""

    hops: Mapping[str, Hop]
    before: Mapping[str, frozenset[str]]
    """The hops whose rows come to a hop, directly or through others."""
    tables: Mapping[str, frozenset[str]]
    """By hop that looks rows up: the hops whose rows come to its table."""

    @classmethod
    def of(cls, hops: Sequence[Hop]) -> Steps:
        """The hops of a job, in any order."""
        named = {hop.name: hop for hop in hops}
        before: dict[str, set[str]] = {name: set() for name in named}
        for hop in sorted(hops, key=lambda hop: hop.depth):
            for fed in hop.feeds:
                before[fed] |= before[hop.name] | {hop.name}
        tables = {
            hop.name: before[hop.keyed[TABLE_SIDE].name] | {hop.keyed[TABLE_SIDE].name}
            for hop in hops
            if hop.looks_up
        }
        return cls(
            hops=named,
            before={name: frozenset(some) for name, some in before.items()},
            tables={name: frozenset(some) for name, some in tables.items()},
        )


def rank(
    steps: Steps,
    states: Sequence[UnitState],
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
    sums = _UnitSums(steps, states, limits, frozenset(aside), row_bytes or {})
    open_ = [state for state in states if sums.takes(state)]

    def order(state: UnitState) -> tuple[bool, int, int, Unit]:
        hop = steps.hops[state.unit.hop]
        return (hop.name != warm, -hop.depth, -state.rows, state.unit)

    return [state.unit for state in sorted(open_, key=order)]


def pushed_back(steps: Steps, states: Sequence[UnitState], limits: FlowLimits) -> frozenset[str]:
    """The steps that have rows and are left alone, since one behind them has too many."""
    sums = _UnitSums(steps, states, limits, frozenset(), {})
    return frozenset(
        name for name, hop in steps.hops.items() if sums.backlog[name] and sums.is_pushed_back(hop)
    )


class _UnitSums:
    """Sums over all units, for the decision about each unit."""

    def __init__(
        self,
        steps: Steps,
        states: Sequence[UnitState],
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
        for state in states:
            name = state.unit.hop
            self.backlog[name] += state.rows
            self.busy[name] += state.is_leased
            self.units[name] += 1
            if state.is_leased or (state.rows and state.unit not in aside):
                self.runs.add(name)
        self.waits = {name for name in steps.tables if any(self._fills(name, s) for s in states)}

    def takes(self, state: UnitState) -> bool:
        hop = self.steps.hops[state.unit.hop]
        if not state.rows or state.is_leased or state.unit in self.aside:
            return False
        workers = hop.options.workers
        if workers is not None and self.busy[hop.name] >= workers:
            return False
        if self.is_pushed_back(hop) or self.waits_for_table(hop, state.unit):
            return False
        return not hop.gathers or self._is_enough(hop, state)

    def waits_for_table(self, hop: Hop, unit: Unit) -> bool:
        """Whether rows that look something up wait: rows of the table are on their way."""
        return hop.name in self.waits and hop.side_of(unit.journal) != TABLE_SIDE

    def is_pushed_back(self, hop: Hop) -> bool:
        return any(self.backlog[name] >= self.limits.backlog_rows_max for name in hop.feeds)

    def _is_enough(self, hop: Hop, state: UnitState) -> bool:
        """Whether a file or batch is worth making: it is large, or late, or nothing more comes."""
        rows = max(1, self.limits.backlog_rows_max // max(1, self.units[hop.name]))
        row_size = self.row_bytes.get(hop.name)
        if row_size:
            rows = min(rows, max(1, int(self.limits.sink_bytes / row_size)))
        more_comes = not self.runs.isdisjoint(self.steps.before[hop.name])
        return state.rows >= rows or not more_comes or state.waited_ms >= self.limits.sink_ms

    def _fills(self, name: str, state: UnitState) -> bool:
        """Whether a unit brings rows to the table of a step that looks rows up."""
        unit, hop = state.unit, self.steps.hops[state.unit.hop]
        if unit.hop not in self.steps.tables[name] and (
            unit.hop != name or hop.side_of(unit.journal) != TABLE_SIDE
        ):
            return False
        goes_on = state.is_leased or unit not in self.aside
        return bool(state.rows) and goes_on and not self.is_pushed_back(hop)
