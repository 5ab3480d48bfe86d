"""Small ranges that follow each other, put together in the background to large ones.

A journal to which many processes publish little has many small ranges, in files of all of them. A
reader would ask for each. So a run of them is read, and written as few large messages to a segment
of the journal. The ranges are replaced in one save; what was in files of others is unused then.

Invariant: a range is replaced only by the same rows, and only if it is still there when they are
saved. Bytes that went bad stay where they are, with the checksum that tells so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
from msgspec.structs import replace as changed

from millrace.config import Config
from millrace.errors import DataLost, JournalUnknown, OffsetOutOfRange, StorageError
from millrace.faults import fault
from millrace.journal.core.book import Journal, RangeKind
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InSegment, Ledger
from millrace.journal.embedded.row_storage import RowStorage
from millrace.journal.embedded.stored_ranges import StoredRange

Load = Callable[[Journal, AppendRange], bytes | pa.Buffer]
Find = Callable[[JournalId], Journal | None]
"""Gives a journal as it is now; None if it is gone."""
Between = Callable[[Callable[[], object]], object]
"""Does something between commits."""
_PAGE_RANGES: Final = 1024
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class RangeMerger:
    """Merges ranges of one broker. Used by one thread at a time."""

    ledger: Ledger
    stores: RowStorage
    load: Load
    config: Config
    damaged: set[JournalId] = field(default_factory=set)
    """Journals with bytes that cannot be read: they are left as they are."""

    def merge(self, find: Find, between: Between) -> bool:
        """Merge what is worth it, and save it between commits; whether anything was merged."""
        left, has_merged = self.config.journal_merge_bytes_max, False
        ids = self.ledger.with_small_ranges(self._small, self.config.journal_merge_ranges_min)
        for id_ in ids:
            journal = find(id_)
            if journal is None or id_ in self.damaged:
                continue
            for run in self._runs(journal):
                if left <= 0:
                    return has_merged
                pieces = self._read(journal, run)
                if not pieces:
                    break
                fault("journal.merge.after_read")
                between(partial(self._replace, find, run, pieces))
                fault("journal.merge.after_save")
                left -= sum(range_.bytes for range_ in run)
                has_merged = True
        return has_merged

    @property
    def _small(self) -> int:
        return self.config.journal_range_bytes_target // 2

    def _runs(self, journal: Journal) -> Iterator[list[AppendRange]]:
        ranges = small_runs(
            self._ranges(journal), self._small, self.config.journal_segment_bytes_target // 4
        )
        least = self.config.journal_merge_ranges_min
        # What is in the ledger alone is moved out when there is enough of it.
        return (run for run in ranges if sum(map(_is_in_file, run)) >= least)

    def _ranges(self, journal: Journal) -> Iterator[AppendRange]:
        at = journal.start
        while at < journal.end:
            ranges = self.ledger.ranges(journal.id, at, _PAGE_RANGES)
            if not ranges:
                return
            yield from ranges
            at = ranges[-1].next

    def _read(self, journal: Journal, run: Sequence[AppendRange]) -> list[StoredRange]:
        try:
            return [_piece(range_, self.load(journal, range_)) for range_ in run]
        except (JournalUnknown, OffsetOutOfRange):
            return []  # Truncated meanwhile.
        except (DataLost, StorageError) as error:
            _log.warning("ranges of journal %r are not merged: %s", journal.name, error)
            self.damaged.add(journal.id)
            return []

    def _replace(
        self, find: Find, run: Sequence[AppendRange], pieces: Sequence[StoredRange]
    ) -> None:
        journal = find(run[0].journal)
        if journal is not None and self._is_there(run):
            self.stores.replace_ranges(journal, run, pieces)

    def _is_there(self, run: Sequence[AppendRange]) -> bool:
        """Whether nothing of it was truncated or moved since it was read."""
        first = run[0]
        there = self.ledger.ranges(first.journal, first.first, len(run))
        return list(there) == list(run)


def small_runs(
    ranges: Iterable[AppendRange], small: int, bytes_max: int
) -> Iterator[list[AppendRange]]:
    """Ranges below a size that follow each other, up to so many bytes at a time."""
    run: list[AppendRange] = []
    size, end = 0, Offset(0)
    for range_ in ranges:
        is_small = range_.bytes < small
        if run and (not is_small or range_.first != end or size + range_.bytes > bytes_max):
            yield run
            run, size = [], 0
        if is_small:
            run.append(range_)
            size += range_.bytes
        end = range_.next
    if run:
        yield run


def _is_in_file(range_: AppendRange) -> bool:
    return isinstance(range_.where, InSegment)


def _piece(range_: AppendRange, data: bytes | pa.Buffer) -> StoredRange:
    """A range with its rows as they are stored, with their system fields."""
    kind = range_.kind
    if range_.stamp is not None:
        is_plain = range_.stamp.flag is Flag.OUTSIDE
        kind = RangeKind.PLAIN if is_plain else RangeKind.MIXED
    content = memoryview(data)
    bare = changed(range_, kind=kind, bytes=content.nbytes, checksum="", stamp=None)
    return StoredRange(bare, [content])
