"""A read of many journals: from where, and how much. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.journal.core.number_ranges import Int64, Span
from millrace.journal.core.read_limits import ReadLimits
from millrace.journal.core.values import Isolation, Missing
from millrace.limits import MIB

JOURNAL_READ_BYTES_MAX: Final = 16 * MIB
"""About how many bytes one read returns, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What `Broker.read_many` and `Broker.locate` are asked for."""

    offsets: Mapping[str, Int64]
    """Where each journal is read from, in the order in which they are read."""
    rows_max: Span | None = None
    bytes_max: Span | None = None
    """Over all journals."""
    bytes_each_max: Span | None = None
    """Of one journal."""
    isolation: Isolation = "committed"
    missing: Missing = "raise"

    @property
    def is_raw(self) -> bool:
        """Whether rows are wanted as they were stored, committed or not."""
        return self.isolation == "raw"

    @property
    def is_single(self) -> bool:
        """Whether one journal is read."""
        return len(self.offsets) == 1

    def limits(self, config: Config) -> ReadLimits:
        """How many rows and bytes the read returns, also where the caller did not say."""
        size = self.bytes_max or JOURNAL_READ_BYTES_MAX
        rows = self.rows_max or config.journal_read_rows_max
        return ReadLimits(rows, size, min(size, self.bytes_each_max or size))
