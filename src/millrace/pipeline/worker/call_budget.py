"""How many calls may still be made, and when, over all workers of a step.

Each taking is a row of the step's budget journal, appended in the transaction that records the
intent, and only if the journal ends where it was read: two workers never take the same place.
Clocks may differ and jump: a wait is never longer than what was really reserved when it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.journal.broker import Broker
from millrace.pipeline.core.call_records import BUDGET_SCHEMA
from millrace.pipeline.core.job_model import StepOptions
from millrace.pipeline.worker.journal_tail import last_row


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShare:
    """A place in the budget: rows for its journal, and when each call may be made."""

    calls: int
    total: int
    at_us: int
    first_us: int
    """When the first of these calls may be made."""
    slot_us: int

    def rows(self) -> pa.RecordBatch:
        """The row that takes it."""
        row = {"at_us": self.at_us, "calls": self.calls, "total": self.total}
        return pa.RecordBatch.from_pylist([row | {"slot_us": self.slot_us}], BUDGET_SCHEMA)

    def wait_us(self, call: int, now_us: int, rate: float | None) -> int:
        """How long the call of this number is still to wait."""
        if rate is None:
            return 0
        due = self.first_us + int(call * 1_000_000 / rate)
        # A clock that went back since: no longer than was reserved.
        return max(0, min(due - now_us, due - self.at_us))


def take(
    last: BudgetShare | None, options: StepOptions, wanted: int, now_us: int, *, whole: bool = False
) -> BudgetShare | None:
    """Take up to so many calls; None if the budget is used up. `whole`: all of them or none."""
    total = last.total if last is not None else 0
    left = wanted if options.max_calls is None else min(wanted, options.max_calls - total)
    if left <= 0 or (whole and left < wanted):
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
    """Calls that were taken and not made."""
    return BudgetShare(
        calls=-calls,
        total=last.total - calls,
        at_us=max(now_us, last.at_us),
        first_us=now_us,
        slot_us=last.slot_us,
    )


@dataclass(slots=True)
class Budget:
    """The end of a step's budget journal as this worker knows it."""

    broker: Broker
    journal: str
    options: StepOptions
    last: BudgetShare | None = None
    end: int = 0
    is_known: bool = False

    def refresh(self) -> None:
        """Read what others took."""
        self.is_known = True
        row, self.end = last_row(self.broker, self.journal)
        self.last = None
        if row is not None:
            self.last = BudgetShare(
                calls=row["calls"],
                total=row["total"],
                at_us=row["at_us"],
                first_us=row["at_us"],
                slot_us=row["slot_us"],
            )

    def now_holds(self, taken: BudgetShare, end: int) -> None:
        """This worker's own taking is the last one."""
        self.last, self.end = taken, end
