"""How a slice reads its journals: many in one call, each a bounded piece."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.contract import Broker
from millrace.journal.values import Fetched
from millrace.reads.slice.state import Fetch
from millrace.reads.tags import Tag, journal_of

_ONE_BY_ONE_MAX: Final = 8
"""So few journals are read one by one, each up to its own limit."""
_ROWS_MAX: Final = 1_000_000


def fetch(broker: Broker, wanted: Fetch) -> dict[Tag, Fetched]:
    """Read what is asked for. A journal that is left out was not reached; ask again."""
    try:
        if len(wanted.offsets) <= _ONE_BY_ONE_MAX:
            return {
                tag: broker.read(
                    name,
                    offset,
                    rows_max=_ROWS_MAX,
                    bytes_max=wanted.bytes_each,
                    isolation="raw",
                )
                for tag, (name, offset) in wanted.offsets.items()
            }
        return _together(broker, wanted)
    except JournalUnknown as error:
        raise JournalUnknown(f"a journal was deleted while it was read\n  {error}") from error
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"a journal was truncated above where the task reads it\n  {error}\n"
            "  to fix: rows are lost to this task; begin it anew under another name"
        ) from error


def _together(broker: Broker, wanted: Fetch) -> dict[Tag, Fetched]:
    found: dict[Tag, Fetched] = {}
    left = dict(wanted.offsets)
    while left:
        # A journal that is read under two tags is read once for each.
        batch = {name: (tag, offset) for tag, (name, offset) in reversed(left.items())}
        bytes_max = wanted.bytes_each * len(batch)
        offsets = {name: offset for name, (_, offset) in batch.items()}
        read = broker.read_many(offsets, rows_max=_ROWS_MAX, bytes_max=bytes_max, isolation="raw")
        is_all = _is_below(read, bytes_max)
        for name, (tag, offset) in batch.items():
            del left[tag]
            if name in read:
                found[tag] = read[name]
            elif is_all:
                found[tag] = Fetched(
                    id=journal_of(tag),
                    journal=name,
                    schema=pa.schema([]),
                    batches=(),
                    next_offset=offset,
                    end_offset=offset,
                )
    return found


def _is_below(read: dict[str, Fetched], bytes_max: int) -> bool:
    """Whether no limit ended the read, so that what was left out has nothing new."""
    rows = sum(each.num_rows for each in read.values())
    size = sum(batch.nbytes for each in read.values() for batch in each.batches)
    whole = all(each.next_offset >= each.end_offset for each in read.values())
    return whole and rows < _ROWS_MAX and size < bytes_max
