"""How many calls of a step may still be made, and when, over all workers. Pure.

Each share is a row of the step's budget journal. It is appended in the transaction that records the
intent, and only if the journal still ends where it was read: two workers never take the same share.
Clocks may differ and jump: a wait is never longer than the time that the share reserved.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.pipeline.core.call_records import BUDGET_SCHEMA
from millrace.pipeline.core.job_model import StepOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShare:
    """Some calls of the budget, and when each of them may be made."""

    calls: int
    total: int
    at_us: int
    first_us: int
    """When the first of these calls may be made."""
    slot_us: int
    """When the next share begins."""

    def rows(self) -> pa.RecordBatch:
        """The row of the budget journal that reserves this share."""
        row = {"at_us": self.at_us, "calls": self.calls, "total": self.total}
        return pa.RecordBatch.from_pylist([row | {"slot_us": self.slot_us}], BUDGET_SCHEMA)

    def wait_us(self, call: int, now_us: int, rate: float | None) -> int:
        """How long the call of this number still waits."""
        if rate is None:
            return 0
        due = self.first_us + int(call * 1_000_000 / rate)
        # A clock that went back since: no longer than was reserved.
        return max(0, min(due - now_us, due - self.at_us))


@dataclass(frozen=True, slots=True)
class BudgetTail:
    """The end of a budget journal, as a worker last read it."""

    last: BudgetShare | None
    end: int


def take(
    last: BudgetShare | None, options: StepOptions, calls: int, now_us: int
) -> BudgetShare | None:
    """Take up to `calls` calls; None if the budget is used up."""
    total = last.total if last is not None else 0
    left = calls if options.max_calls is None else min(calls, options.max_calls - total)
    if left <= 0:
        return None
    ahead = 0
    if last is not None and options.rate is not None:
        ahead = max(0, last.slot_us - max(now_us, last.at_us))
    first = now_us + ahead
    span = 0 if options.rate is None else int(left * 1_000_000 / options.rate)
    return BudgetShare(
        calls=left, total=total + left, at_us=now_us, first_us=first, slot_us=first + span
    )


def give_back(last: BudgetShare, calls: int, now_us: int) -> BudgetShare:
    """Return calls that were taken and not made."""
    return BudgetShare(
        calls=-calls,
        total=last.total - calls,
        at_us=max(now_us, last.at_us),
        first_us=now_us,
        slot_us=last.slot_us,
    )
