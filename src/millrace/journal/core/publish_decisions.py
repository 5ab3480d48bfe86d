"""What a transaction writes: offsets, clocks, flags and ACKs, decided on a draft of the book. Pure.

Rows for one journal commit themselves. Rows for several are CONTINUE rows, and an ACK in each of
these journals ends them under one clock and names all the others.

Invariant: a producer's clocks rise over all journals, even if time goes back; the clock of an ACK
is above that of every row it commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from millrace.errors import Conflict, UserError
from millrace.journal.core import decisions, sequencing
from millrace.journal.core.adopt_decisions import (
    check_not_taken,
    own_producer,
    put_block,
    same_journal,
)
from millrace.journal.core.book import (
    OWN_PRODUCER,
    AnnouncedContent,
    Book,
    FileContent,
    Journal,
    RangeKind,
)
from millrace.journal.core.clocks import BEFORE_ALL, Clock, next_clock
from millrace.journal.core.committed_rows import RolledBackRange, stamps_of
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import (
    Flag,
    ProducerId,
    Stamp,
    ack_row,
    give_offsets,
    stamp_rows,
)
from millrace.journal.core.sequencing import RowEffect
from millrace.journal.core.values import Appended, Lease, Publish, Published, SegmentFile
from millrace.journal.core.write_grants import AnnouncedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRows:
    """Rows that were found to fit their journal."""

    journal: str
    id: JournalId
    batch: pa.RecordBatch
    keys: pa.Array | None
    timestamps: pa.Array | None
    expected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFiles:
    """Files that were found to fit their journal."""

    journal: str
    id: JournalId
    files: tuple[SegmentFile, ...]
    expected: int | None = None


Part = CheckedRows | CheckedFiles | AnnouncedRows
Content = CheckedRows | AnnouncedRows | tuple[SegmentFile, int]


def publish(
    book: Book,
    request: Publish,
    parts: Sequence[Part],
    *,
    now_ns: int,
    range_bytes: int,
    again_is_fine: bool = False,
) -> Published:
    """Carry out a transaction whose parts were prepared."""
    answer = answered(book, request)
    if answer is not None:
        return answer
    if request.lease is not None:
        decisions.check_lease(book, request.lease)
    producer = request.producer
    if producer is None:
        producer = ProducerId(book.count(OWN_PRODUCER))
    writing = _Writing(book, producer, now_ns, range_bytes)
    journals = _by_journal(book, parts)
    several = sum(1 for parts_of in journals.values() if _has_rows(parts_of)) > 1
    appended = {
        name: writing.rows(book.journal(name), parts_of, Flag.CONTINUE if several else Flag.OUTSIDE)
        for name, parts_of in journals.items()
    }
    if several:
        appended = writing.acks(appended)
    for commit in request.commits:
        decisions.commit(book, commit, again_is_fine=again_is_fine)
    done = Published(producer=producer, clock=writing.last_used(), appended=appended)
    writing.finish(request.sequence, done)
    return done


def append_stamped(
    book: Book, name: str, id_: JournalId, rows: pa.RecordBatch, lease: Lease | None = None
) -> Appended:
    """Store rows that bring their own stamps; duplicates are dropped, errors refuse them all."""
    if lease is not None:
        decisions.check_lease(book, lease)
    journal = same_journal(book, name, id_)
    if (rows[0].to_numpy() == book.count(OWN_PRODUCER)).any():
        raise own_producer(name)
    kept, sequenced = _sequenced(book, journal, rows)
    batch = give_offsets(kept, journal.end)
    stamps = stamps_of(batch)
    acks = int((stamps.flags == Flag.ACK).sum())
    done = Appended(
        journal=name,
        first_offset=journal.end,
        rows=batch.num_rows,
        next_offset=Offset(journal.end + batch.num_rows),
    )
    if not batch.num_rows:
        return done
    gone = _rolled_back(book, journal, stamps, sequenced.outcomes)
    if gone:
        book.rolled_back.put(journal.id, (*(book.rolled_back.get(journal.id) or ()), *gone))
    book.put_sequences(journal.id, sequenced.states)
    for producer in sequenced.states:
        highest = Clock(int(stamps.clocks[stamps.producers == producer].max()))
        known = book.producer(producer)
        book.producers.put(producer, replace(known, clock=max(known.clock, highest)))
    kind = RangeKind.MIXED if (stamps.flags != Flag.OUTSIDE).any() else RangeKind.PLAIN
    put_block(book, journal, batch, batch.num_rows - acks, kind)
    return done


def answered(book: Book, request: Publish) -> Published | None:
    """The answer that a publish with this number got before, if it is the last one."""
    if request.sequence is None:
        return None
    if request.producer is None:
        raise UserError("a sequence without a producer\n  to fix: give both")
    known = book.producer(request.producer)
    if known.sequence is None or request.sequence > known.sequence:
        return None
    if request.sequence == known.sequence:
        assert known.answer is not None
        return replace(known.answer, repeated=True)
    raise Conflict(
        f"producer {request.producer} published sequence {request.sequence} before\n"
        f"  its last one: {known.sequence}\n  to fix: go on with {known.sequence + 1}"
    )


def _by_journal(book: Book, parts: Sequence[Part]) -> dict[str, list[Part]]:
    journals: dict[str, list[Part]] = {}
    for part in parts:
        journal = same_journal(book, part.journal, part.id)
        if part.expected not in (None, journal.end):
            raise Conflict(
                f"journal {journal.name!r} does not end where expected\n"
                f"  expected: {part.expected}, found: {journal.end}\n"
                "  to fix: look whether your rows are there already, then expect what was found"
            )
        journals.setdefault(part.journal, []).append(part)
    return journals


def _has_rows(parts: Sequence[Part]) -> bool:
    return any(_count(part) for part in parts)


def _count(part: Part) -> int:
    if isinstance(part, CheckedRows):
        return int(part.batch.num_rows)
    if isinstance(part, AnnouncedRows):
        return part.rows
    return sum(piece.rows for file in part.files for piece in file.ranges)


@dataclass(slots=True)
class _Writing:
    """A transaction while its rows get offsets and clocks."""

    book: Book
    producer: ProducerId
    now_ns: int
    range_bytes: int
    used: Clock | None = None

    def last_used(self) -> Clock:
        return BEFORE_ALL if self.used is None else self.used

    def rows(self, journal: Journal, parts: Sequence[Part], flag: Flag) -> Appended:
        first = journal.end
        for part in parts:
            for content, count in self._contents(part):
                journal = self._store(journal, content, count, flag)
        if journal.end != first:
            self._move_on(journal, self.last_used())
        return Appended(
            journal=journal.name,
            first_offset=first,
            rows=journal.end - first,
            next_offset=journal.end,
        )

    def acks(self, appended: Mapping[str, Appended]) -> dict[str, Appended]:
        """End the transaction in each journal it has rows in, all under one clock."""
        clock = self._clocks(1)
        ids = {name: self.book.journal(name).id for name, done in appended.items() if done.rows}
        everyone = np.sort(np.fromiter(ids.values(), np.int64, len(ids)))
        out = dict(appended)
        for name, id_ in ids.items():
            journal = self.book.journal(name)
            others = np.delete(everyone, np.searchsorted(everyone, id_))
            ack = ack_row(
                journal.schema,
                offset=journal.end,
                producer=self.producer,
                clock=clock,
                hints=others,
            )
            journal = put_block(self.book, journal, ack, 0, RangeKind.MIXED)
            self._move_on(journal, clock)
            out[name] = replace(appended[name], next_offset=journal.end)
        return out

    def finish(self, sequence: int | None, done: Published) -> None:
        if self.used is None and sequence is None:
            return
        known = self.book.producer(self.producer)
        clock = known.clock if self.used is None else self.used
        kept = replace(known, clock=clock)
        if sequence is not None:
            kept = replace(kept, sequence=sequence, answer=done)
        self.book.producers.put(self.producer, kept)

    def _clocks(self, count: int) -> Clock:
        """The first of some clocks that rise by one."""
        last = self.book.producer(self.producer).clock if self.used is None else self.used
        first = next_clock(last, self.now_ns) if self.used is None else Clock(last + 1)
        self.used = Clock(first + count - 1)
        return first

    def _contents(self, part: Part) -> Iterator[tuple[Content, int]]:
        match part:
            case CheckedRows():
                yield from self._pieces(part)
            case CheckedFiles():
                yield from self._files(part)
            case AnnouncedRows():
                yield from [(part, part.rows)] if part.rows else []

    def _pieces(self, part: CheckedRows) -> Iterator[tuple[CheckedRows, int]]:
        """Rows cut so that a range has about the size it should."""
        total = part.batch.num_rows
        step = max(1, self.range_bytes * total // max(1, part.batch.nbytes))
        for begin in range(0, total, step):
            piece = replace(
                part,
                batch=part.batch.slice(begin, step),
                keys=None if part.keys is None else part.keys.slice(begin, step),
                timestamps=None if part.timestamps is None else part.timestamps.slice(begin, step),
            )
            yield piece, piece.batch.num_rows

    def _files(self, part: CheckedFiles) -> Iterator[tuple[tuple[SegmentFile, int], int]]:
        for file in part.files:
            check_not_taken(self.book, file, part.journal)
            self.book.adopted.put(file.path, max(1, file.bytes))
            for number, piece in enumerate(file.ranges):
                if piece.rows:
                    yield (file, number), piece.rows

    def _store(
        self,
        journal: Journal,
        content: Content,
        count: int,
        flag: Flag,
    ) -> Journal:
        state = self.book.sequence(journal.id, self.producer)
        if state.open is not None:
            raise UserError(
                f"producer {self.producer} has an open transaction in journal {journal.name!r}\n"
                "  to fix: end it with an ACK first, or write with another producer"
            )
        stamp = Stamp(
            first_offset=journal.end,
            producer=self.producer,
            first_clock=self._clocks(count),
            flag=flag,
        )
        kind = RangeKind.PLAIN if flag is Flag.OUTSIDE else RangeKind.MIXED
        if isinstance(content, CheckedRows):
            keys, times = content.keys, content.timestamps
            batch = stamp_rows(content.batch, stamp, keys=keys, timestamps=times)
            return put_block(self.book, journal, batch, count, kind)
        if isinstance(content, AnnouncedRows):
            announced = AnnouncedContent(part=content.part, rows=count, stamp=stamp)
            return put_block(self.book, journal, announced, count, kind)
        file, number = content
        bare = FileContent.of(file, file.ranges[number], stamp)
        return put_block(self.book, journal, bare, count, bare.kind)

    def _move_on(self, journal: Journal, clock: Clock) -> None:
        """All the rows so far are committed as of this clock."""
        self.book.put_sequences(journal.id, {self.producer: sequencing.Sequence(clock)})


def _sequenced(
    book: Book, journal: Journal, rows: pa.RecordBatch
) -> tuple[pa.RecordBatch, sequencing.Sequenced]:
    """The rows that are no duplicates, and what they do, counted from the journal's end."""
    states = book.sequences.get(journal.id) or {}
    first = sequencing.sequence_rows(stamps_of(give_offsets(rows, journal.end)), states)
    bad = np.flatnonzero(np.isin(first.outcomes, sequencing.ERRORS))
    if len(bad):
        first_bad = int(bad[0])
        row = rows.slice(first_bad, 1).select([0, 1, 2]).to_pylist()[0]
        what = RowEffect(int(first.outcomes[first_bad])).name.lower().replace("_", " ")
        raise UserError(
            f"row {first_bad} for journal {journal.name!r} {what}: {row}\n"
            f"  its producer stands at {states.get(ProducerId(row['_mr_producer']))}\n"
            "  to fix: end the open transaction with an ACK at or above its highest clock"
        )
    fresh = first.outcomes != RowEffect.DUPLICATE
    if fresh.all():
        return rows, first
    kept = rows.filter(pa.array(fresh))
    return kept, sequencing.sequence_rows(stamps_of(give_offsets(kept, journal.end)), states)


def _rolled_back(
    book: Book,
    journal: Journal,
    stamps: sequencing.RowStamps,
    outcomes: sequencing.Bytes,
) -> list[RolledBackRange]:
    """The transactions that ACKs among these rows rolled back."""
    states = book.sequences.get(journal.id) or {}
    begins = {p: s.open.begin for p, s in states.items() if s.open is not None}
    gone = []
    for row in np.flatnonzero(np.isin(outcomes, (RowEffect.BEGINS, RowEffect.ROLLS_BACK))).tolist():
        producer = ProducerId(int(stamps.producers[row]))
        offset = Offset(int(stamps.offsets[row]))
        if outcomes[row] == RowEffect.BEGINS:
            begins[producer] = offset
        else:
            gone.append(RolledBackRange(producer, begins[producer], offset))
    return gone
