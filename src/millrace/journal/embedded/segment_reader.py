"""How the embedded broker reads: ranges from its ledger, rows from there and from segments.

Invariant: no row is given away whose bytes are not those that were written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.errors import Corrupt, DataLost, JournalUnknown, MillraceError, OffsetOutOfRange
from millrace.journal.book_broker import BookBroker, Times
from millrace.journal.book_reader import out_of_range, told
from millrace.journal.core.book import Book, Journal, RangeKind
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.read_limits import ReadLimits, Stored, with_stamps
from millrace.journal.core.row_bundles import Packed, Packing, messages, pack
from millrace.journal.core.values import Fetched, Isolation, Missing
from millrace.journal.embedded import many_journals
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InLedger, Ledger
from millrace.journal.embedded.segment_disk import SegmentDisk
from millrace.storage.local import LocalStore
from millrace.storage.store import storage_errors

LEDGER: Final = "ledger.sqlite"
_ROW_BYTES_MIN: Final = 32
"""What the system fields of a row take at least."""
_PAGE_RANGES: Final = (2, 8, 16)
_PAGE_JOURNALS: Final = 4096
_INSIDE_MAX: Final = 4096
"""Of how many files it is remembered that they lie within the folder."""


class SegmentReader(BookBroker):
    """The half of the embedded broker that reads rows."""

    def __init__(
        self, root: str, ledger: Ledger, disk: SegmentDisk, book: Book, config: Config, times: Times
    ) -> None:
        super().__init__(book, config, times)
        self._root = root
        self._ledger = ledger
        self._disk = disk
        self._inside: set[str] = set()

    def _ranges(self, journal: Journal, offset: Offset) -> Iterator[Stored]:
        at, page = offset, 0
        while at < journal.end:
            count = _PAGE_RANGES[min(page, len(_PAGE_RANGES) - 1)]
            ranges = self._ledger.ranges(journal.id, at, count)
            if not ranges or not ranges[0].first <= at < ranges[0].next:
                raise self._missing(journal, at)
            yield from map(_stored, ranges)
            at, page = ranges[-1].next, page + 1

    def _load(self, journal: Journal, stored: Stored) -> Sequence[pa.RecordBatch]:
        each = stored.place
        assert isinstance(each, AppendRange)
        data = self._checked(journal, each)
        if each.kind is RangeKind.BARE:
            return [_stamped(data, each, journal)]
        return messages(data, self._formats.of(journal.schema).stored)

    def read_packed(
        self,
        offsets: Mapping[str, int],
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        bytes_each_max: int | None = None,
        isolation: Isolation = "committed",
        missing: Missing = "raise",
    ) -> Packed:
        """See `BookReader`. Raw rows, of which nothing is left out, are not even decoded."""
        limits = self._limits(rows_max, bytes_max, bytes_each_max)
        if isolation != "raw":
            return pack(told(self._fetched(offsets, limits, isolation), missing), self._formats)
        packed = self._packed(offsets, limits)
        packed.heads = list(told(packed.heads, missing))
        return packed

    def _fetched(
        self, offsets: Mapping[str, int], limits: ReadLimits, isolation: Isolation
    ) -> Iterator[Fetched]:
        if isolation == "raw":
            return self._packed(offsets, limits).unpacked()
        return super()._fetched(offsets, limits, isolation)

    def _packed(self, offsets: Mapping[str, int], limits: ReadLimits) -> Packed:
        packed, packing, wanted = Packed(), Packing(), []
        for name, offset in offsets.items():
            try:
                journal = self._book.journal(name)
                if not journal.start <= offset <= journal.end:
                    raise out_of_range(journal, Offset(offset))
            except (JournalUnknown, OffsetOutOfRange) as problem:
                packed.heads.append(Fetched.failed(name, Offset(offset), problem))
            else:
                if offset < journal.end:
                    wanted.append((journal, Offset(offset)))
        choosing = many_journals.RangeChooser(*limits)
        for begin in range(0, len(wanted), _PAGE_JOURNALS):
            page = wanted[begin : begin + _PAGE_JOURNALS]
            if not choosing.is_full():
                for each in self._choose(choosing, page):
                    packed.heads.append(self._pack(packing, len(packed.heads), each))
        packed.bundles = packing.bundles
        return packed

    def _choose(
        self, choosing: many_journals.RangeChooser, wanted: Sequence[tuple[Journal, Offset]]
    ) -> Sequence[many_journals.ChosenRanges]:
        # Ranges behind the limit of a journal are not even looked at.
        rows_max = choosing.bytes_each // _ROW_BYTES_MIN + 1
        asked = [
            (journal.id, offset, Offset(min(journal.end, offset + rows_max)))
            for journal, offset in wanted
        ]
        with contextlib.closing(self._ledger.ranges_of(asked)) as ranges:
            return list(choosing.choose(wanted, ranges))

    def _pack(self, packing: Packing, place: int, chosen: many_journals.ChosenRanges) -> Fetched:
        """Load what was chosen of a journal; what is told of it, without the rows."""
        journal = chosen.journal
        try:
            if not chosen.ranges:
                raise self._missing(journal, chosen.offset)
            loaded = [self._message(journal, each) for each in chosen.ranges]
        except (JournalUnknown, OffsetOutOfRange) as problem:
            return Fetched.failed(journal.name, chosen.offset, problem)
        form = self._formats.of(journal.schema)
        for data, (each, begin, count) in zip(loaded, chosen.cuts(), strict=True):
            packing.add(place, form, data, rows=each.next - each.first, begin=begin, count=count)
        return Fetched(
            journal=journal.name,
            id=journal.id,
            schema=journal.schema,
            batches=(),
            next_offset=chosen.next,
            end_offset=journal.end,
        )

    def _message(self, journal: Journal, each: AppendRange) -> bytes | pa.Buffer:
        """The rows of a range as stored rows are sent."""
        data = self._checked(journal, each)
        return _stamped(data, each, journal).serialize() if each.kind is RangeKind.BARE else data

    def _checked(self, journal: Journal, each: AppendRange) -> bytes:
        """The bytes of a range, as they were written."""
        if isinstance(each.where, InLedger):
            data, name = each.where.content, f"{LEDGER} (body {each.where.body})"
        else:
            name = self._path(each.where.file)
            data = self._bytes(journal, each, name, each.where.position)
        found = xxhash.xxh3_64_hexdigest(data)
        if found != each.checksum:
            raise Corrupt(
                f"{name}: offsets {each.first} to {each.next - 1} of journal {journal.name!r} are "
                f"not the bytes that were written\n  expected: {each.checksum}, found: {found}\n"
                "  to fix: restore the file from a copy, or truncate the journal past these offsets"
            )
        return data

    def _path(self, file: str) -> str:
        """Where a segment's file lies; one that a link leads out of the folder is refused."""
        if file not in self._inside:
            if len(self._inside) >= _INSIDE_MAX:
                self._inside.clear()
            LocalStore(self._root).path(file)
            self._inside.add(file)
        return os.path.join(self._root, file)

    def _bytes(self, journal: Journal, each: AppendRange, path: str, position: int) -> bytes:
        try:
            with storage_errors(f"reading {path}"):
                data = self._disk.read(path, position, each.bytes)
        except MillraceError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise self._missing(journal, each.first, path) from error
        if len(data) != each.bytes:
            raise DataLost(
                f"{path} ends before what was published\n"
                f"  expected: {position + each.bytes} bytes, found: {position + len(data)}\n"
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


def _stored(each: AppendRange) -> Stored:
    return Stored(
        first=each.first,
        next=each.next,
        rows=each.rows,
        rows_before=each.rows_before,
        kind=each.kind,
        bytes=each.bytes,
        place=each,
    )


def _stamped(data: bytes, each: AppendRange, journal: Journal) -> pa.RecordBatch:
    """The rows of an adopted file with their system fields."""
    assert each.stamp is not None
    plain = pa.schema([pa.field(field.name, field.type) for field in journal.schema])
    return with_stamps(pa.ipc.read_record_batch(pa.py_buffer(data), plain), each.stamp)
