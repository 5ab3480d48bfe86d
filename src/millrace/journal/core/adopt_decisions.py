"""What becomes of rows that are in files already, decided on a draft of the book. Pure.

Invariant: the bytes of a file are taken once. A file that is removed gives no more rows.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from millrace.errors import Conflict, FormatError, UserError
from millrace.journal.core import decisions, sequencing
from millrace.journal.core.book import (
    GONE,
    OWN_PRODUCER,
    AnnouncedContent,
    Book,
    FileContent,
    Journal,
    RangeKind,
    RowBlock,
)
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.core.sequencing import RowEffect
from millrace.journal.core.values import Appended, Lease, SegmentFile, StampedFile
from millrace.journal.core.write_grants import AnnouncedRows, StampedRun


def check_not_taken(book: Book, file: SegmentFile, journal: str) -> None:
    """Refuse rows of a file that are in a journal already, or whose file is removed."""
    taken = book.adopted.get(file.path) or 0
    if file.is_open:
        if file.ranges and file.ranges[0].position < taken:
            raise FormatError(
                f"rows of file {file.path} for journal {journal!r} cannot be taken\n"
                f"  found: position {file.ranges[0].position}, and "
                + ("it is removed" if taken == GONE else f"{taken} bytes are taken")
                + "\n  to fix: write the rows to another file"
            )
    elif taken:
        raise Conflict(
            f"file {file.path} was adopted before\n"
            f"  to fix: look whether its rows are in journal {journal!r}"
        )


def check_ranges(file: SegmentFile) -> None:
    """Refuse ranges that do not lie one behind the other within their file."""
    at = 0
    for piece in file.ranges:
        if piece.position < at or piece.bytes <= 0 or piece.rows < 0:
            break
        at = piece.position + piece.bytes
    else:
        if at <= file.bytes:
            return
    raise UserError(
        f"ranges of file {file.path} do not lie behind each other within {file.bytes} bytes\n"
        f"  found: {[(piece.position, piece.bytes, piece.rows) for piece in file.ranges][:4]}\n"
        "  to fix: run the same version of Millrace everywhere"
    )


def adopt_stamped(book: Book, name: str, rows: StampedFile, lease: Lease | None) -> Appended:
    """Take rows that one producer has stamped; nothing happens if all of them are there."""
    run = StampedRun(producer=rows.producer, first_clock=rows.first_clock, flag=rows.flag)
    count = sum(piece.rows for piece in rows.file.ranges)
    journal = _next_run(book, name, rows.id, run, count, lease)
    if journal is None:
        return _nothing(book.journal(name))
    check_not_taken(book, rows.file, name)
    book.adopted.put(rows.file.path, max(1, rows.file.bytes))
    begin, clock = journal.end, run.first_clock
    for piece in rows.file.ranges:
        content = FileContent.of(rows.file, piece, run.stamp(journal.end, clock))
        journal = put_block(book, journal, content, piece.rows, content.kind)
        clock = Clock(clock + piece.rows)
    return Appended(journal=name, first_offset=begin, rows=count, next_offset=journal.end)


def announce_stamped(
    book: Book, rows: AnnouncedRows, run: StampedRun, lease: Lease | None
) -> Appended:
    """The same for rows that their writer has and will store."""
    journal = _next_run(book, rows.journal, rows.id, run, rows.rows, lease)
    if journal is None:
        return _nothing(book.journal(rows.journal))
    begin = journal.end
    stamp = run.stamp(begin, run.first_clock)
    content = AnnouncedContent(part=rows.part, rows=rows.rows, stamp=stamp)
    kind = RangeKind.PLAIN if run.flag is Flag.OUTSIDE else RangeKind.MIXED
    journal = put_block(book, journal, content, rows.rows, kind)
    return Appended(
        journal=rows.journal, first_offset=begin, rows=rows.rows, next_offset=journal.end
    )


def _nothing(journal: Journal) -> Appended:
    return Appended(journal=journal.name, first_offset=journal.end, rows=0, next_offset=journal.end)


def _next_run(
    book: Book, name: str, id_: JournalId, run: StampedRun, count: int, lease: Lease | None
) -> Journal | None:
    """Move a producer on by rows that it stamped; their journal, None if all of them are there."""
    if lease is not None:
        decisions.check_lease(book, lease)
    journal = same_journal(book, name, id_)
    if run.producer == book.count(OWN_PRODUCER):
        raise own_producer(name)
    first, last = run.first_clock, Clock(run.first_clock + count - 1)
    state = book.sequence(journal.id, run.producer)
    begins, ends = (sequencing.outcome(run.flag, clock, state) for clock in (first, last))
    if not count or ends is RowEffect.DUPLICATE:
        return None
    if begins is RowEffect.DUPLICATE:
        raise FormatError(
            f"some of the rows for journal {name!r} are there already\n"
            f"  found: clocks {first} to {last}, and its producer stands at {state}\n"
            "  to fix: send the rows"
        )
    if begins in sequencing.ERRORS:
        raise UserError(
            f"rows for journal {name!r} {begins.name.lower().replace('_', ' ')}: clock {first}\n"
            f"  its producer stands at {state}\n"
            "  to fix: end the open transaction with an ACK at or above its highest clock"
        )
    after = sequencing.advance(state, begins, last, journal.end)
    book.put_sequences(journal.id, {run.producer: after})
    known = book.producer(run.producer)
    book.producers.put(run.producer, replace(known, clock=max(known.clock, last)))
    return journal


def own_producer(name: str) -> UserError:
    """The error for rows that bring the broker's own producer."""
    return UserError(
        f"rows for {name!r} carry the broker's own producer\n"
        "  to fix: ask the broker for a producer by name"
    )


def same_journal(book: Book, name: str, id_: JournalId) -> Journal:
    """The journal that a request was prepared for."""
    journal = book.journal(name)
    if journal.id != id_:
        raise Conflict(
            f"journal {name!r} was deleted and made again meanwhile\n"
            "  to fix: read where it stands now, and publish again"
        )
    return journal


def put_block(
    book: Book,
    journal: Journal,
    content: pa.RecordBatch | FileContent | AnnouncedContent,
    rows: int,
    kind: RangeKind,
) -> Journal:
    """Add a range at the end of a journal; `rows` leaves ACKs out."""
    match content:
        case FileContent():
            count = content.part.rows
        case AnnouncedContent():
            count = content.rows
        case _:
            count = content.num_rows
    after = replace(journal, end=Offset(journal.end + count), rows=journal.rows + rows)
    block = RowBlock(
        journal=journal,
        first=journal.end,
        next=after.end,
        rows=rows,
        rows_before=journal.rows,
        kind=kind,
        content=content,
    )
    book.blocks.append(block)
    book.journals.put(journal.name, after)
    return after
