"""A broker in memory, for tests and light work. It keeps the whole contract, and no files."""

from __future__ import annotations

import bisect
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.config import Config
from millrace.errors import DataLost
from millrace.journal.book_broker import BookBroker, Times
from millrace.journal.book_reader import out_of_range
from millrace.journal.core.book import Book, FileContent, Journal, RowBlock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_limits import Stored
from millrace.journal.core.row_format import bare_rows
from millrace.journal.core.values import SegmentFile
from millrace.storage.store import storage_errors


@dataclass(slots=True)
class _JournalRows:
    """A journal's ranges in order."""

    nexts: list[Offset] = field(default_factory=list)
    ranges: list[Stored] = field(default_factory=list)


class MemoryBroker(BookBroker):
    """Journals in this process's memory."""

    def __init__(self, config: Config | None = None, times: Times | None = None) -> None:
        super().__init__(Book(), config or Config(), times or Times())
        self._rows: dict[JournalId, _JournalRows] = {}
        self._folder: str | None = None
        self._making_folder = threading.Lock()
        self._own_producer()

    def adoption_folder(self) -> str:
        """See `Broker.adoption_folder`: a temporary folder that goes with the broker."""
        with self._making_folder:
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="millrace-")
            return self._folder

    def direct_folder(self) -> str | None:
        """See `Broker.direct_folder`: rows are in memory."""
        return None

    def tidy(self) -> None:
        """See `Broker.tidy`: nothing waits here."""

    def close(self) -> None:
        """See `Broker.close`."""
        self._group_commit.stop("the broker was closed\n  to fix: make a new one")
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _save(self, draft: Book) -> None:
        made = [(block, _stored(block)) for block in draft.blocks]
        for block, stored in made:
            rows = self._rows.setdefault(block.journal.id, _JournalRows())
            rows.ranges.append(stored)
            rows.nexts.append(stored.next)
        for block in draft.blocks:
            if isinstance(block.content, FileContent) and os.path.exists(block.content.path):
                os.unlink(block.content.path)
        for journal in draft.truncated:
            rows = self._rows.get(journal.id, _JournalRows())
            gone = bisect.bisect_right(rows.nexts, journal.start)
            # New lists: a reader may be walking along the old ones.
            self._rows[journal.id] = _JournalRows(rows.nexts[gone:], rows.ranges[gone:])
        for journal in draft.deleted:
            self._rows.pop(journal.id, None)

    def _ranges(self, journal: Journal, offset: Offset) -> Iterable[Stored]:
        rows = self._rows.get(journal.id)
        if rows is None:
            return
        ranges, nexts = rows.ranges, rows.nexts
        number = bisect.bisect_right(nexts, offset)
        if number < len(ranges) and ranges[number].first > offset:
            now = self._book.journal(journal.name)
            raise out_of_range(now, offset)
        while number < len(ranges):
            yield ranges[number]
            number += 1

    def _load(self, journal: Journal, stored: Stored) -> Sequence[pa.RecordBatch]:
        assert isinstance(stored.content, pa.RecordBatch), journal.name
        return [stored.content]

    def _check_file(self, file: SegmentFile) -> SegmentFile:
        if not os.path.exists(file.path):
            raise DataLost(f"file {file.path} to adopt is gone\n  to fix: write it again")
        return file


def _stored(block: RowBlock) -> Stored:
    content = block.content
    if isinstance(content, FileContent):
        content = _read(content, block.journal.schema)
    assert isinstance(content, pa.RecordBatch), "nothing is announced to this broker"
    return Stored(
        first=block.first,
        next=block.next,
        rows=block.rows,
        rows_before=block.rows_before,
        kind=block.kind,
        bytes=content.nbytes,
        content=content,
    )


def _read(content: FileContent, schema: pa.Schema) -> pa.RecordBatch:
    with storage_errors(f"reading {content.path}"), open(content.path, "rb") as file:
        file.seek(content.part.position)
        data = file.read(content.part.bytes)
    return bare_rows(data, schema, content.stamp, is_keyed=content.is_keyed)
