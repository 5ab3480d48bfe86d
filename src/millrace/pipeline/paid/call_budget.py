"""What the calls of a step may still cost, over all workers and runs. Pure.

A unit holds a part of its step's budget: what its calls have cost, and for each call without an
outcome what calls cost on average. Changes of these parts are rows of the budget journal. They are
appended in the transaction that records the calls, and only if the journal still ends where it was
read: two workers never take the same part.
Invariant: the last total of the journal is the sum of what all units hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.pipeline.paid.call_records import BUDGET_SCHEMA, Held, Totals
from millrace.pipeline.paid.limits_and_budget import Budget
from millrace.pipeline.paid.spend import NANO_USD

_NAMES = ("calls", "tokens", "nano_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShare:
    """A change of what a unit holds, and the sum over all units behind it."""

    at_us: int
    change: Held
    total: Held

    def as_row(self) -> dict[str, int]:
        """The row of the budget journal."""
        row = {name: getattr(self.change, name) for name in _NAMES}
        return (
            {"at_us": self.at_us}
            | row
            | {f"total_{name}": getattr(self.total, name) for name in _NAMES}
        )


@dataclass(frozen=True, slots=True)
class BudgetTail:
    """The end of a budget journal, as a worker last read it."""

    last: BudgetShare | None
    end: int


def to_rows(shares: tuple[BudgetShare, ...]) -> pa.RecordBatch:
    """Shares as rows of their journal."""
    return pa.RecordBatch.from_pylist([share.as_row() for share in shares], BUDGET_SCHEMA)


def from_row(row: dict[str, int]) -> BudgetShare:
    """A row of the journal as a share; also of one that only counted calls."""
    total = {name: row.get(f"total_{name}", 0) for name in _NAMES}
    if "total" in row:
        total["calls"] = row["total"]
    return BudgetShare(
        at_us=row["at_us"],
        change=Held(**{name: row.get(name, 0) for name in _NAMES}),
        total=Held(**total),
    )


def cost_of_calls(totals: Totals) -> Held:
    """What the calls of a unit have cost, and their number."""
    spend = totals.spend
    return Held(calls=totals.calls, tokens=spend.tokens, nano_usd=spend.nano_usd)


class Wallet:
    """The part of a budget that one unit holds."""

    def __init__(self, budget: Budget, held: Held, last: BudgetShare | None) -> None:
        """`held`: by the unit's last record. `last`: the last row of the budget journal."""
        self._budget, self.held, self.last = budget, held, last
        self.guess = Held()
        """What a call is thought to cost as long as no call of the step has ended."""

    @property
    def _total(self) -> Held:
        return Held() if self.last is None else self.last.total

    def estimate(self, totals: Totals, outstanding: int) -> Held:
        """What a call costs on average, or by a guess as long as no call has ended."""
        ended, spend = totals.calls - outstanding, totals.spend
        if ended > 0:
            return Held(tokens=spend.tokens // ended, nano_usd=spend.nano_usd // ended)
        calls = self._total.calls
        if calls > 0:
            return Held(tokens=self._total.tokens // calls, nano_usd=self._total.nano_usd // calls)
        return self.guess

    def allows(self, totals: Totals, outstanding: int) -> int | None:
        """How many more calls may be recorded; None if there is no limit for now."""
        estimate, costs = self.estimate(totals, outstanding), cost_of_calls(totals)
        others = self._total.minus(self.held)
        allowed: list[int] = []
        if self._budget.calls is not None:
            allowed.append(self._budget.calls - others.calls - costs.calls)
        usd = self._budget.usd
        limits = {"tokens": self._budget.tokens, "nano_usd": usd and round(usd * NANO_USD)}
        for name, limit in limits.items():
            if limit is None:
                continue
            each = getattr(estimate, name)
            left = limit - getattr(others, name) - getattr(costs, name) - each * outstanding
            if left <= 0:
                allowed.append(0)
            elif each:
                allowed.append(left // each)
        return max(0, min(allowed)) if allowed else None

    def share(self, totals: Totals, outstanding: int, now_us: int) -> BudgetShare | None:
        """The change that makes the unit hold what it needs; None if it holds that already."""
        estimate = self.estimate(totals, outstanding)
        change = cost_of_calls(totals).plus(estimate.times(outstanding)).minus(self.held)
        if change == Held():
            return None
        at_us = max(now_us, 0 if self.last is None else self.last.at_us)
        return BudgetShare(at_us=at_us, change=change, total=self._total.plus(change))

    def on_published(self, share: BudgetShare | None, last: BudgetShare | None) -> None:
        """A share was published with the record."""
        if share is not None:
            self.held = self.held.plus(share.change)
        self.last = last
