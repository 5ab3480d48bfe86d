"""How a slice reads its journals: many in one call, each a bounded piece."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.values import Fetched
from millrace.reads.model.tags import Tag, journal_of
from millrace.reads.slice.slice_state import Fetch

_ONE_BY_ONE_MAX: Final = 8
"""So few journals are read one by one, each up to its own limit."""
_ROWS_MAX: Final = 1_000_000
_NO_COLUMNS: Final = pa.schema([])


def fetch(broker: Broker, request: Fetch) -> dict[Tag, Fetched]:
    """Read the requested journals. A journal that is missing was not reached; request it again.

    A deleted journal has no more rows; the session will stop it, too.
    """
    try:
        if len(request.offsets) <= _ONE_BY_ONE_MAX:
            return _one_by_one(broker, request)
        return _together(broker, request)
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"a journal was truncated above the offset that is read next\n  {error}\n"
            "  to fix: rows are lost to this coordinated read; begin anew under another name"
        ) from error


def _one_by_one(broker: Broker, request: Fetch) -> dict[Tag, Fetched]:
    fetched: dict[Tag, Fetched] = {}
    for tag, (name, offset) in request.offsets.items():
        try:
            read = broker.read(
                name, offset, rows_max=_ROWS_MAX, bytes_max=request.bytes_each, isolation="raw"
            )
            fetched[tag] = _checked(broker, tag, read)
        except JournalUnknown:
            fetched[tag] = _nothing(tag, name, offset)
        except OffsetOutOfRange:
            if not _is_gone(broker, tag, name):
                raise
            fetched[tag] = _nothing(tag, name, offset)
    return fetched


def _together(broker: Broker, request: Fetch) -> dict[Tag, Fetched]:
    fetched: dict[Tag, Fetched] = {}
    left = dict(request.offsets)
    while left:
        # A journal that is read under two tags is read once for each.
        batch = {name: (tag, offset) for tag, (name, offset) in reversed(left.items())}
        bytes_max = 2 * request.bytes_each * len(batch)  # No limit but that of each journal.
        read = broker.read_many(
            {name: offset for name, (_, offset) in batch.items()},
            rows_max=_ROWS_MAX,
            bytes_max=bytes_max,
            bytes_each_max=request.bytes_each,
            isolation="raw",
            missing="tell",
        )
        is_all = len(read) == len(batch) or _is_below(read, bytes_max)
        for name, (tag, offset) in batch.items():
            del left[tag]
            if name in read:
                fetched[tag] = _checked(broker, tag, read[name])
            elif is_all:
                fetched[tag] = _nothing(tag, name, offset)
    return fetched


def _is_gone(broker: Broker, tag: Tag, name: str) -> bool:
    """Whether a journal is there no longer, though another may have its name."""
    try:
        return broker.get(name).id != journal_of(tag)
    except JournalUnknown:
        return True


def _checked(broker: Broker, tag: Tag, fetched: Fetched) -> Fetched:
    """The rows that were read, if the journal is not a later one of the same name."""
    is_outside = isinstance(fetched.problem, OffsetOutOfRange)
    if fetched.problem is not None and is_outside and not _is_gone(broker, tag, fetched.journal):
        raise fetched.problem
    if fetched.problem is not None or fetched.id != journal_of(tag):
        return _nothing(tag, fetched.journal, fetched.next_offset)
    return fetched


def _nothing(tag: Tag, name: str, offset: Offset) -> Fetched:
    return Fetched(
        id=journal_of(tag),
        journal=name,
        schema=_NO_COLUMNS,
        batches=(),
        next_offset=offset,
        end_offset=offset,
    )


def _is_below(read: dict[str, Fetched], bytes_max: int) -> bool:
    """Whether no limit ended the read, so that journals that are missing have no new rows."""
    rows = sum(fetched.num_rows for fetched in read.values())
    size = sum(batch.nbytes for fetched in read.values() for batch in fetched.batches)
    return rows < _ROWS_MAX and size < bytes_max
