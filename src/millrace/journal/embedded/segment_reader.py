"""How the embedded broker reads: ranges from its ledger, rows from there and from segments.

Invariant: no row is given away whose bytes are not those that were written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.errors import Corrupt, DataLost, JournalUnknown, MillraceError, OffsetOutOfRange
from millrace.journal.block_memory import BlockMemory
from millrace.journal.book_broker import BookBroker, Times
from millrace.journal.book_reader import out_of_range
from millrace.journal.core.book import Book, Journal
from millrace.journal.core.committed_rows import RolledBackRange
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_limits import Stored
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import (
    ALONE_BYTES,
    ManyRows,
    Packing,
    copied,
    messages,
    sliced,
)
from millrace.journal.core.values import Fetched, Isolation
from millrace.journal.embedded import many_journals
from millrace.journal.embedded.ahead_of_readers import AheadOfReaders
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InLedger, InSegment, Ledger
from millrace.journal.embedded.partly_read import PartlyRead, in_turn
from millrace.journal.embedded.read_ranges import (
    is_mixed,
    range_key,
    spot_of,
    stamped_rows,
    stored_of,
)
from millrace.journal.embedded.segment_disk import SegmentDisk
from millrace.journal.kept_ranges import KeptRanges
from millrace.storage.local import LocalStore
from millrace.storage.store import storage_errors

LEDGER: Final = "ledger.sqlite"
_ROW_BYTES_MIN: Final = 32
"""What the system fields of a row take at least."""
_PAGE_RANGES: Final = (2, 8, 16)
_PAGE_JOURNALS: Final = 4096
_INSIDE_MAX: Final = 4096
"""How many files are remembered as checked to be within the folder."""


@dataclass(slots=True)
class Locating:
    """What a reader asks for that fetches rows from files itself."""

    isolation: Isolation
    is_only: bool
    """Whether it asks for one journal."""
    rolled_back: dict[JournalId, tuple[RolledBackRange, ...]] = field(default_factory=dict)


class RangeMoved(Exception):
    """A range was merged after it was looked up, and its file is gone."""

    def __init__(self, now: AppendRange) -> None:
        super().__init__(f"offsets {now.first} to {now.next - 1} have another place")
        self.now = now
        """The range that has its rows."""


class SegmentReader(BookBroker):
    """The half of the embedded broker that reads rows."""

    def __init__(
        self, root: str, ledger: Ledger, disk: SegmentDisk, book: Book, config: Config, times: Times
    ) -> None:
        super().__init__(book, config, times)
        self._root = root
        self._ledger = ledger
        self._disk = disk
        self._inside: dict[str, str] = {}
        self._partly = PartlyRead()
        self._memory = BlockMemory()
        self._ahead = AheadOfReaders(ledger, disk.ahead, config.journal_ahead_bytes_max)
        self._kept = KeptRanges[Sequence[pa.RecordBatch]](config.journal_kept_bytes_max)

    def _ranges(self, journal: Journal, offset: Offset) -> Iterator[Stored]:
        return map(stored_of, itertools.chain.from_iterable(self._pages(journal, offset)))

    def _ranges_to_read(
        self, journal: Journal, offset: Offset, rows_max: int, bytes_max: int
    ) -> Iterator[Stored]:
        for page in self._pages(journal, offset):
            self._ahead.needs_of(page, offset, rows_max, bytes_max)
            yield from map(stored_of, page)

    def _pages(self, journal: Journal, offset: Offset) -> Iterator[Sequence[AppendRange]]:
        at, page = offset, 0
        while at < journal.end:
            count = _PAGE_RANGES[min(page, len(_PAGE_RANGES) - 1)]
            ranges = self._ledger.ranges(journal.id, at, count)
            if not ranges or not ranges[0].first <= at < ranges[0].next:
                raise self._missing(journal, at)
            yield ranges
            at, page = ranges[-1].next, page + 1

    def _load(self, journal: Journal, stored: Stored) -> Sequence[pa.RecordBatch]:
        range_ = stored.content
        assert isinstance(range_, AppendRange)
        return self._decoded(journal, range_)

    def _decoded(
        self, journal: Journal, range_: AppendRange, memory: BlockMemory | None = None
    ) -> Sequence[pa.RecordBatch]:
        try:
            data = self._checked(journal, range_, memory)
        except RangeMoved as moved:
            begin = range_.first - moved.now.first
            rows = self._decoded(journal, moved.now, memory)
            return sliced(rows, begin, range_.next - range_.first)
        if range_.kind.is_bare:
            return [stamped_rows(data, range_, journal)]
        return messages(data, self._formats.of(journal.schema).stored)

    def read_many(self, request: ReadRequest) -> ManyRows:
        """See `Broker.read_many`. Raw rows, of which nothing is left out, are joined as stored."""
        if request.is_raw:
            return self._joined(request)
        if self._ahead.is_on:
            starts = self._starts(ManyRows(), request.offsets, None)[:_PAGE_JOURNALS]
            choosing = many_journals.RangeChooser(*request.limits(self._config))
            chosen = self._choose(choosing, starts)
            self._ahead.needs(range_ for of in chosen for range_ in of.ranges)
        return super().read_many(request)

    def _fetch(
        self, name: str, offset: Offset, rows_max: int, bytes_max: int, isolation: Isolation
    ) -> Fetched:
        fetched = super()._fetch(name, offset, rows_max, bytes_max, isolation)
        if self._ahead.is_on:
            size = sum(batch.nbytes for batch in fetched.batches)
            with contextlib.suppress(JournalUnknown):  # It was deleted meanwhile.
                self._ahead.have_read(
                    [(self._book.journal(name), offset, fetched.next_offset, size)]
                )
        return fetched

    def locate(self, request: ReadRequest) -> ManyRows:
        """See `Broker.locate`."""
        return self._joined(request, Locating(request.isolation, is_only=request.is_single))

    def _joined(self, request: ReadRequest, locating: Locating | None = None) -> ManyRows:
        rows, packing = ManyRows(), Packing()
        starts = self._starts(rows, request.offsets, locating)
        choosing = many_journals.RangeChooser(*request.limits(self._config))
        for begin in range(0, len(starts), _PAGE_JOURNALS):
            page = starts[begin : begin + _PAGE_JOURNALS]
            page_chosen = self._choose(choosing, page) if not choosing.is_full() else ()
            if locating is None:
                self._need(page_chosen)
            for chosen in page_chosen:
                try:
                    if locating is None:
                        self._pack(rows, packing, chosen)
                    else:
                        self._refer(rows, packing, chosen, locating)
                except (JournalUnknown, OffsetOutOfRange) as problem:
                    rows.fail(chosen.journal.name, chosen.offset, problem)
                else:
                    self._partly.note(chosen.ranges[-1], chosen.next)
            if locating is None:
                self._ahead.have_chosen(page_chosen)
        rows.bundles = packing.bundles
        if request.missing == "raise":
            rows.raise_problem()
        return rows

    def _starts(
        self, rows: ManyRows, offsets: Mapping[str, int], locating: Locating | None
    ) -> list[tuple[Journal, Offset]]:
        """The journals that have something to read; journals with a problem are answered."""
        starts = []
        for name, offset in offsets.items():
            try:
                journal = self._book.journal(name)
                if not journal.start <= offset <= journal.end:
                    raise out_of_range(journal, Offset(offset))
            except (JournalUnknown, OffsetOutOfRange) as problem:
                rows.fail(name, Offset(offset), problem)
                continue
            if locating is not None:
                journal = self._seen(journal, locating)
            if offset < journal.end:
                starts.append((journal, Offset(offset)))
            elif locating is not None and locating.is_only:
                _answer(rows, journal, Offset(offset))
        return starts

    def _choose(
        self, choosing: many_journals.RangeChooser, starts: Sequence[tuple[Journal, Offset]]
    ) -> Sequence[many_journals.ChosenRanges]:
        # Ranges behind the limit of a journal are not even looked at.
        rows_max = choosing.bytes_each // _ROW_BYTES_MIN + 1
        known = [self._partly.find(*start, choosing.bytes_each) for start in starts]
        spans = [
            (journal.id, offset, Offset(min(journal.end, offset + rows_max)))
            for (journal, offset), range_ in zip(starts, known, strict=True)
            if range_ is None
        ]
        if not spans:
            return list(choosing.choose(starts, filter(None, known)))
        with contextlib.closing(self._ledger.ranges_of(spans)) as ranges:
            return list(choosing.choose(starts, in_turn(starts, known, ranges)))

    def _pack(self, rows: ManyRows, packing: Packing, chosen: many_journals.ChosenRanges) -> None:
        """Load the chosen ranges of a journal: small ones as stored, others decoded and cut."""
        journal = chosen.journal
        form, number = self._formats.of(journal.schema), len(rows)
        loaded: list[tuple[bytes | memoryview | list[pa.RecordBatch], int, int, int]] = []
        for range_, begin, count in self._cuts(chosen):
            content = self._packed(journal, range_, begin, count)
            loaded.append((content, range_.next - range_.first, begin, count))
        # Nothing is packed of a journal of which a range cannot be read.
        for content, total, begin, count in loaded:
            if isinstance(content, list):
                packing.add_batches(number, form, content)
            else:
                packing.add(number, form, content, rows=total, begin=begin, count=count)
        _answer(rows, journal, chosen.next)

    def _need(self, chosen: Iterable[many_journals.ChosenRanges]) -> None:
        """Have fetched what is not kept of the chosen ranges."""
        if self._ahead.is_on:
            every = (range_ for of in chosen for range_ in of.ranges)
            self._ahead.needs(range_ for range_ in every if range_key(range_) not in self._kept)

    def _packed(
        self, journal: Journal, range_: AppendRange, begin: int, count: int
    ) -> bytes | memoryview | list[pa.RecordBatch]:
        if range_.bytes < ALONE_BYTES and not range_.kind.is_bare:
            with contextlib.suppress(RangeMoved):
                return self._checked(journal, range_)
        return self._part(journal, range_, begin, count)

    def _cuts(self, chosen: many_journals.ChosenRanges) -> Iterable[tuple[AppendRange, int, int]]:
        if not chosen.ranges:
            raise self._missing(chosen.journal, chosen.offset)
        return chosen.cuts()

    def _part(
        self, journal: Journal, range_: AppendRange, begin: int, count: int
    ) -> list[pa.RecordBatch]:
        """Some rows of a range, which is kept for the reader that comes for the next ones."""
        is_last = begin + count == range_.next - range_.first
        key = range_key(range_)
        batches = self._kept.get(key, is_last=is_last)
        is_kept = batches is not None
        if batches is None:
            memory = self._memory if range_.bytes >= ALONE_BYTES else None
            batches = self._decoded(journal, range_, memory)
            is_kept = not is_last and self._kept.keep(key, batches, range_.bytes_read)
        cut = sliced(batches, begin, count)
        is_small = 2 * count < range_.next - range_.first
        return cut if is_kept or not is_small else [copied(batch) for batch in cut]

    def _seen(self, journal: Journal, locating: Locating) -> Journal:
        """A journal up to where a reader sees it."""
        if locating.isolation == "raw":
            return journal
        with self._group_commit.settled:
            now = self._book.journal(journal.name)
            locating.rolled_back[now.id] = self._book.rolled_back.get(now.id) or ()
            return replace(now, end=self._book.stable_end(now))

    def _refer(
        self,
        rows: ManyRows,
        packing: Packing,
        chosen: many_journals.ChosenRanges,
        locating: Locating,
    ) -> None:
        """Pack the chosen ranges of a journal, those in files as references to them."""
        journal, number = chosen.journal, len(rows)
        form = self._formats.of(journal.schema)
        for range_, begin, count in self._cuts(chosen):
            if isinstance(range_.where, InSegment):
                packing.add_spot(number, form, spot_of(range_), begin=begin, count=count)
            else:
                data, total = self._checked(journal, range_), range_.next - range_.first
                packing.add(number, form, data, rows=total, begin=begin, count=count)
        _answer(rows, journal, chosen.next)
        gone = locating.rolled_back.get(journal.id)
        if gone is not None and any(map(is_mixed, chosen.ranges)):
            rows.mixed[number] = gone

    def _message(self, journal: Journal, range_: AppendRange) -> bytes | memoryview | pa.Buffer:
        """The rows of a range as stored rows are sent."""
        data = self._checked(journal, range_)
        return stamped_rows(data, range_, journal).serialize() if range_.kind.is_bare else data

    def _checked(
        self, journal: Journal, range_: AppendRange, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        """The bytes of a range, as they were written."""
        data: bytes | memoryview
        if isinstance(range_.where, InLedger):
            data, name = range_.where.content, f"{LEDGER} (body {range_.where.body})"
        else:
            name = self._path(range_.where.file)
            data = self._bytes(journal, range_, name, range_.where.position, memory)
        checksum = xxhash.xxh3_64_hexdigest(data)
        if checksum != range_.checksum:
            raise Corrupt(
                f"{name}: offsets {range_.first} to {range_.next - 1} of journal {journal.name!r} "
                "are not the bytes that were written\n"
                f"  expected: {range_.checksum}, found: {checksum}\n"
                "  to fix: restore the file from a copy, or truncate the journal past these offsets"
            )
        return data

    def _path(self, file: str) -> str:
        """The path of a segment's file; a link that leads out of the folder is refused."""
        path = self._inside.get(file)
        if path is None:
            if len(self._inside) >= _INSIDE_MAX:
                self._inside.clear()
            LocalStore(self._root).path(file)
            path = self._inside[file] = os.path.join(self._root, file)
        return path

    def _bytes(
        self,
        journal: Journal,
        range_: AppendRange,
        path: str,
        position: int,
        memory: BlockMemory | None,
    ) -> bytes | memoryview:
        try:
            with storage_errors(f"reading {path}"):
                data = self._disk.read(path, position, range_.bytes, memory=memory)
        except MillraceError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._partly.forget(journal.id)
            now = self._ledger.ranges(journal.id, range_.first, 1)
            if now and now[0].first <= range_.first < now[0].next and now[0].where != range_.where:
                raise RangeMoved(now[0]) from error
            raise self._missing(journal, range_.first, path) from error
        if len(data) != range_.bytes:
            raise DataLost(
                f"{path} ends before what was published\n"
                f"  expected: {position + range_.bytes} bytes, found: {position + len(data)}\n"
                "  to fix: restore the file from a copy, or truncate the journal past these offsets"
            )
        return data

    def _missing(self, journal: Journal, offset: Offset, path: str | None = None) -> MillraceError:
        """Why a range is not there: truncated or deleted meanwhile, or lost."""
        now = self._book.journal(journal.name)
        if now.id == journal.id and offset >= now.start:
            return DataLost(
                f"rows of journal {journal.name!r} from offset {offset} on are lost\n"
                f"  not there: {path or LEDGER}\n"
                "  to fix: restore the file from a copy, or truncate the journal past them"
            )
        return out_of_range(now, offset)


def _answer(rows: ManyRows, journal: Journal, next_offset: Offset) -> None:
    rows.add(journal.name, journal.id, journal.schema, next_offset, journal.end)
