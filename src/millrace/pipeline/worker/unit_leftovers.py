"""Looks at what a worker before this one left of a unit: its last record and its offset."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.journal.broker import Broker
from millrace.pipeline.core import call_records
from millrace.pipeline.core.call_records import CallRecord, Totals, in_doubt
from millrace.pipeline.worker.journal_tail import last_row


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLeftovers:
    """How a unit was left."""

    totals: Totals
    end: int
    """Of the record of calls."""
    unsettled: CallRecord | None
    """The record of calls of which no result was published, if there are such."""


def look(broker: Broker, journal: str, committed: int | None) -> UnitLeftovers:
    """Read the last record of calls and judge it by the committed offset."""
    row, end = last_row(broker, journal)
    if row is None:
        return UnitLeftovers(totals=Totals(), end=end, unsettled=None)
    kept = {name: row[name] for name in call_records.SCHEMA.names}
    (last,) = call_records.from_rows(pa.Table.from_pylist([kept], call_records.SCHEMA))
    return UnitLeftovers(totals=last.totals, end=end, unsettled=in_doubt(last, committed))
