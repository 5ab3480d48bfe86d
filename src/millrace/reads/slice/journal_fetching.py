"""How a slice reads its journals: many in one call, each a bounded piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import ManyRows, many_rows
from millrace.journal.core.values import Fetched
from millrace.reads.model.tags import Ints, Tag, journal_of, journals_of
from millrace.reads.slice.fetches import Fetch, FetchedTags, TaggedRows

_ONE_BY_ONE_MAX: Final = 8
"""So few journals are read one by one, each up to its own limit."""
_ROWS_MAX: Final = 1_000_000


def fetch(broker: Broker, request: Fetch) -> FetchedTags:
    """Read the requested journals. A journal that is missing was not reached; request it again.

    A deleted journal has no more rows; the session will stop it, too.
    """
    read = _one_by_one if len(request.tags) <= _ONE_BY_ONE_MAX else _together
    try:
        parts = list(read(broker, request))
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(
            f"a journal was truncated above the offset that is read next\n  {error}\n"
            "  to fix: rows are lost to this coordinated read; begin anew under another name"
        ) from error
    if len(parts) == 1:
        return parts[0]
    return FetchedTags(
        tags=np.concatenate([part.tags for part in parts]),
        nexts=np.concatenate([part.nexts for part in parts]),
        ends=np.concatenate([part.ends for part in parts]),
        rows=[rows for part in parts for rows in part.rows],
    )


def _one_by_one(broker: Broker, request: Fetch) -> Iterator[FetchedTags]:
    fetched: list[Fetched] = []
    for tag, name, offset in _requests(request):
        try:
            read = broker.read(
                name, offset, rows_max=_ROWS_MAX, bytes_max=request.bytes_each, isolation="raw"
            )
        except (JournalUnknown, OffsetOutOfRange) as problem:
            if isinstance(problem, OffsetOutOfRange) and not _is_gone(broker, tag, name):
                raise
            read = Fetched.failed(name, offset, problem)
        fetched.append(read)
    yield _checked(broker, request.tags, request.offsets, many_rows(fetched))


def _together(broker: Broker, request: Fetch) -> Iterator[FetchedTags]:
    left = list(_requests(request))
    while left:
        # A journal that is read under two tags is read once for each.
        batch = {name: (tag, offset) for tag, name, offset in reversed(left)}
        bytes_max = 2 * request.bytes_each * len(batch)  # No limit but that of each journal.
        rows = broker.read_many(
            ReadRequest(
                offsets={name: offset for name, (_, offset) in batch.items()},
                rows_max=_ROWS_MAX,
                bytes_max=bytes_max,
                bytes_each_max=request.bytes_each,
                isolation="raw",
                missing="tell",
            )
        )
        tags = np.array([batch[name][0] for name in rows.journals], np.int64)
        offsets = np.array([batch[name][1] for name in rows.journals], np.int64)
        fetched = _checked(broker, tags, offsets, rows)
        yield fetched
        if len(rows) < len(batch) and _is_below(fetched, bytes_max):
            yield _nothing([batch[name] for name in batch.keys() - set(rows.journals)])
        taken = {tag for tag, _ in batch.values()}
        left = [part for part in left if part[0] not in taken]


def _requests(request: Fetch) -> Iterator[tuple[Tag, str, Offset]]:
    tags, offsets = request.tags.tolist(), request.offsets.tolist()
    for tag, name, offset in zip(tags, request.names, offsets, strict=True):
        yield Tag(tag), name, Offset(offset)


def _is_gone(broker: Broker, tag: Tag, name: str) -> bool:
    """Whether a journal is there no longer, though another may have its name."""
    try:
        return broker.get(name).id != journal_of(tag)
    except JournalUnknown:
        return True


def _checked(broker: Broker, tags: Ints, offsets: Ints, rows: ManyRows) -> FetchedTags:
    """The rows that were read, without those of a later journal of the same name."""
    for number, problem in rows.problems.items():
        journal = rows.journals[number]
        is_outside = isinstance(problem, OffsetOutOfRange)
        if is_outside and not _is_gone(broker, Tag(int(tags[number])), journal):
            raise problem
    is_there = np.array(rows.ids, np.int64) == journals_of(tags)
    return FetchedTags(
        tags=tags,
        nexts=np.where(is_there, np.array(rows.nexts, np.int64), offsets),
        ends=np.where(is_there, np.array(rows.ends, np.int64), offsets),
        rows=list(_tagged(rows, tags, is_there)),
    )


def _tagged(rows: ManyRows, tags: Ints, is_there: npt.NDArray[np.bool_]) -> Iterator[TaggedRows]:
    for joined in rows.joined():
        keep = is_there[joined.whose]
        tagged = TaggedRows(joined.batches, tags[joined.whose], joined.counts)
        if keep.all():
            yield tagged
        elif keep.any():
            mask = pa.array(np.repeat(keep, joined.counts))
            kept = pa.concat_batches(joined.batches).filter(mask)
            yield TaggedRows([kept], tagged.tags[keep], joined.counts[keep])


def _nothing(parts: Sequence[tuple[Tag, Offset]]) -> FetchedTags:
    offsets = np.array([offset for _, offset in parts], np.int64)
    tags = np.array([tag for tag, _ in parts], np.int64)
    return FetchedTags(tags=tags, nexts=offsets, ends=offsets, rows=())


def _is_below(fetched: FetchedTags, bytes_max: int) -> bool:
    """Whether no limit ended the read, so that journals that are missing have no new rows."""
    rows = sum(int(part.counts.sum()) for part in fetched.rows)
    size = sum(batch.nbytes for part in fetched.rows for batch in part.batches)
    return rows < _ROWS_MAX and size < bytes_max
