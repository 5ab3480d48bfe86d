"""The last row of a journal that only its own job writes: all that counts of totals."""

from __future__ import annotations

from typing import Any, Final

import pyarrow.compute as pc

from millrace.journal.broker import Broker
from millrace.journal.core.row_format import OFFSET

_FEW_OFFSETS: Final = 8


def last_row(broker: Broker, journal: str) -> tuple[dict[str, Any] | None, int]:
    """The last committed row, if there is one, and the offset that the next row will get.

    ACKs follow rows, so a few offsets are read, and more only if none of them was a row.
    """
    end = int(broker.end_offset(journal, isolation="raw"))
    start = int(broker.start_offset(journal))
    back = _FEW_OFFSETS
    while True:
        begin = max(start, end - back)
        rows = broker.read(journal, begin).stored()
        rows = rows.filter(pc.less(rows[OFFSET], end))  # Others may have gone on meanwhile.
        if rows.num_rows:
            last: dict[str, Any] = rows.slice(rows.num_rows - 1).to_pylist()[0]
            return last, end
        if begin == start:
            return None, end
        back *= _FEW_OFFSETS


def cut_to_last_row(broker: Broker, journal: str) -> None:
    """Remove all rows in front of the last one."""
    row, _ = last_row(broker, journal)
    if row is not None:
        broker.truncate_before(journal, row[OFFSET])
