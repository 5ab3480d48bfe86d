"""The calls of one producer to its broker: numbered, so that one that comes late does nothing."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from millrace.errors import Conflict
from millrace.journal.broker import Broker
from millrace.journal.core.call_numbers import CallNumber, DecidedCalls
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import Appended, Lease


class NumberedCalls:
    """Appends stamped rows of a producer. Used by one thread at a time."""

    def __init__(self, broker: Broker, producer: ProducerId, lease: Lease | None) -> None:
        self._broker, self._producer, self._lease = broker, producer, lease
        self._count = 0
        self._mark: DecidedCalls | None = None

    def append(self, journal: str, stamped: pa.RecordBatch) -> Appended:
        """One more call; an earlier one that is still on its way is late then."""
        self._count += 1
        call = CallNumber(
            producer=self._producer,
            life=0 if self._lease is None else self._lease.epoch,
            number=self._count,
            mark=self._mark,
        )
        append = self._broker.append_stamped
        try:
            return append(journal, stamped, lease=self._lease, call=call)
        except Conflict:
            # The owner may have forgotten this producer, and cannot tell whether the call is late.
            mark = self._broker.standing(self._producer).mark
            if mark is None or mark == self._mark:
                raise
            self._mark = mark
        return append(journal, stamped, lease=self._lease, call=replace(call, mark=mark))
