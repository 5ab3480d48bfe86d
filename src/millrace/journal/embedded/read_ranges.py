"""What readers make of the ranges that the ledger gives. Pure."""

from __future__ import annotations

import pyarrow as pa

from millrace.journal.core.book import Journal, RangeKind
from millrace.journal.core.read_limits import Stored
from millrace.journal.core.row_bundles import FileSpot
from millrace.journal.core.row_format import Flag, bare_rows
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InLedger, InSegment


def range_key(range_: AppendRange) -> tuple[object, ...]:
    """Where the bytes of a range are, and which bytes they are."""
    where = range_.where
    place = (where.body, 0) if isinstance(where, InLedger) else (where.file, where.position)
    return (*place, range_.checksum, range_.first)


def spot_of(range_: AppendRange) -> FileSpot:
    """Where a reader finds the bytes of a range in a file."""
    assert isinstance(range_.where, InSegment)
    return FileSpot(
        file=range_.where.file,
        position=range_.where.position,
        bytes=range_.bytes,
        rows=range_.next - range_.first,
        checksum=range_.checksum,
        stamp=range_.stamp,
        is_keyed=range_.kind is RangeKind.KEYED,
    )


def is_mixed(range_: AppendRange) -> bool:
    """Whether some rows of a range may not be committed."""
    if range_.stamp is not None:
        return range_.stamp.flag is not Flag.OUTSIDE
    return range_.kind is not RangeKind.PLAIN


def stored_of(range_: AppendRange) -> Stored:
    """A range as reads are cut."""
    return Stored(
        first=range_.first,
        next=range_.next,
        rows=range_.rows,
        rows_before=range_.rows_before,
        kind=range_.kind,
        bytes=range_.bytes_read,
        content=range_,
    )


def stamped_rows(data: bytes | memoryview, range_: AppendRange, journal: Journal) -> pa.RecordBatch:
    """The rows of an adopted file with their system fields."""
    assert range_.stamp is not None
    is_keyed = range_.kind is RangeKind.KEYED
    return bare_rows(data, journal.schema, range_.stamp, is_keyed=is_keyed)
