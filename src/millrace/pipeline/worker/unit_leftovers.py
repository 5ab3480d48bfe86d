"""Reads the last call record and the committed offset that earlier workers left for a unit."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.journal.broker import Broker
from millrace.pipeline.core import call_records
from millrace.pipeline.core.call_records import CallRecord, Totals, in_doubt
from millrace.pipeline.journal_tail import last_row


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLeftovers:
    """The state in which the last worker left a unit."""

    totals: Totals
    end: int
    """The end of the record of calls."""
    unsettled: CallRecord | None
    """The record of calls whose results were not published, if there are such calls."""


def look(broker: Broker, journal: str, committed: int | None) -> UnitLeftovers:
    """Read the last record of calls and judge it by the committed offset."""
    row, end = last_row(broker, journal)
    if row is None:
        return UnitLeftovers(totals=Totals(), end=end, unsettled=None)
    kept = {name: row[name] for name in call_records.SCHEMA.names}
    (last,) = call_records.from_rows(pa.Table.from_pylist([kept], call_records.SCHEMA))
    return UnitLeftovers(totals=last.totals, end=end, unsettled=in_doubt(last, committed))
