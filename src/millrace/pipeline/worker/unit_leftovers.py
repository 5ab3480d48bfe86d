"""Reads the last call record and the committed offset that earlier workers left for a unit."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

from millrace.errors import JournalUnknown
from millrace.journal.broker import Broker
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.paid import call_records
from millrace.pipeline.paid.call_records import CallRecord, Held, Totals, in_doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLeftovers:
    """The state in which the last worker left a unit."""

    totals: Totals
    held: Held
    end: int
    """The end of the record of calls."""
    last: CallRecord | None
    """The last record, if calls or results of it were not published, or not in their order."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether calls may have been made whose results were not published."""
        return in_doubt(self.last, None) is not None


@dataclass(frozen=True, slots=True)
class EarlierJournals:
    """Where versions that counted no dollars kept a unit's calls, and the budget of its step."""

    calls: str
    budget: str


def look(
    broker: Broker, journal: str, before: EarlierJournals, committed: int | None
) -> UnitLeftovers:
    """Read the last record of calls and judge it by the committed offset."""
    row, end = last_row(broker, journal)
    last = _earlier(broker, before) if row is None else call_records.from_row(row)
    if last is None:
        return UnitLeftovers(totals=Totals(), held=Held(), end=end, last=None)
    unsettled = in_doubt(last, committed)
    has_ranges = any(range_end > (committed or 0) for _, range_end in last.published)
    return UnitLeftovers(
        totals=last.totals,
        held=last.held,
        end=end,
        last=last if unsettled is not None or has_ranges else None,
    )


def _earlier(broker: Broker, before: EarlierJournals) -> CallRecord | None:
    """The last record of an earlier version; its calls are in the step's budget, if it had one."""
    row = _last_known(broker, before.calls)
    if row is None:
        return None
    last = call_records.from_row(row)
    if _last_known(broker, before.budget) is None:
        return last
    return replace(last, held=Held(calls=last.totals.calls))


def _last_known(broker: Broker, journal: str) -> dict[str, Any] | None:
    with contextlib.suppress(JournalUnknown):
        return last_row(broker, journal)[0]
    return None
