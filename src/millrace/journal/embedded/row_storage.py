"""Where rows go: into the ledger while they are few, into segment files when they are many.

A commit's rows are turned into `Storing`: ranges that stay in the ledger, and ranges that were
written to segments and synced before the ledger names them. A segment is marked dirty, durably,
before its first byte is written, so that the next opening knows which files to cut back.

Invariant: nothing that the ledger names is in a file that was not synced, nor in a folder whose
names were not; the bytes behind a segment's published length are garbage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec.structs import replace as changed

from millrace.config import Config
from millrace.errors import BrokerStopped, StorageError
from millrace.faults import fault
from millrace.journal.core.book import Book, FileContent, Journal, RowBlock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.embedded.ledger.ledger_port import (
    SHARED,
    AppendRange,
    InLedger,
    InSegment,
    Ledger,
    LedgerContent,
    Segment,
    Storing,
)
from millrace.journal.embedded.ledger_bytes import LedgerBytes
from millrace.journal.embedded.segment_disk import SegmentDisk
from millrace.journal.embedded.stored_ranges import (
    SegmentOutput,
    StoredRange,
    checksum_of,
    header_of,
    one_message,
    piece_of,
    range_of,
    waited,
)
from millrace.storage.store import storage_errors

SEGMENTS: Final = "segments"


@dataclass(slots=True)
class RowStorage:
    """Puts rows away for one broker. Used by one thread at a time."""

    root: str
    disk: SegmentDisk
    ledger: Ledger
    config: Config
    active: dict[JournalId, Segment] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    waiting: LedgerBytes = field(default_factory=lambda: LedgerBytes({}))
    adopted: dict[str, Segment] = field(default_factory=dict)
    """By file, those whose writers may add to them."""
    next_body: int = 1
    next_segment: int = 1

    @classmethod
    def of(
        cls, content: LedgerContent, root: str, disk: SegmentDisk, ledger: Ledger, config: Config
    ) -> RowStorage:
        """Go on from what a ledger holds; dirty segments must have been cut back."""
        return cls(
            root=root,
            disk=disk,
            ledger=ledger,
            config=config,
            active={segment.journal: segment for segment in content.segments if segment.is_open},
            waiting=LedgerBytes(content.waiting),
            adopted={segment.file: segment for segment in content.adopted},
            next_body=content.next_body,
            next_segment=content.next_segment,
        )

    def save(self, draft: Book, storing: Storing) -> None:
        """Store the rows of a draft, then publish them with everything else of it."""
        journals: dict[JournalId, list[RowBlock]] = {}
        for block in draft.blocks:
            journals.setdefault(block.journal.id, []).append(block)
        out: dict[JournalId, SegmentOutput] = {}
        storing.ranges += self._adopt(storing, draft.blocks)
        for id_, blocks in journals.items():
            pieces = self._together(
                [piece_of(b, b.content) for b in blocks if not isinstance(b.content, FileContent)]
            )
            size = sum(piece.range.bytes for piece in pieces)
            if self._rides(id_, size):
                storing.ranges += [self._in_ledger(piece) for piece in pieces]
            elif pieces:
                out[id_] = self._out([blocks[0].journal], header_of(blocks[0].journal), pieces)
        self._write_and_publish(draft, storing, out)

    def move_out(self, journals: Sequence[Journal]) -> None:
        """Move rows that wait in the ledger to segments."""
        out = {journal.id: self._out([journal], header_of(journal)) for journal in journals}
        moving = {id_: output for id_, output in out.items() if output.pieces}
        self._write_and_publish(Book().draft(), Storing(), moving)

    def gather(self, journals: Sequence[Journal]) -> None:
        """Move rows of many journals from the ledger to one segment that they share."""
        gathered = self._out(journals, b"")
        if gathered.pieces:
            self._write_and_publish(Book().draft(), Storing(), {SHARED: gathered})

    def replace_ranges(
        self, journal: Journal, run: Sequence[AppendRange], pieces: Sequence[StoredRange]
    ) -> None:
        """Write ranges anew, as fewer and larger ones, to a segment of the journal."""
        merged = [one_message(piece, journal) for piece in self._together(pieces)]
        out = SegmentOutput(header_of(journal), pieces=merged, moved=list(run))
        moved = sum(range_.bytes for range_ in run if isinstance(range_.where, InLedger))
        left = self.waiting.of(journal.id) - moved
        self._write_and_publish(Book().draft(), Storing(), {journal.id: out})
        if moved and left > 0:
            self.waiting.add(journal.id, left)

    def forget(self, gone: Segment) -> None:
        """A segment was taken away."""
        there = self.active.get(gone.journal)
        if there is not None and there.id == gone.id:
            del self.active[gone.journal]
        self.dirty.discard(gone.id)
        self.adopted.pop(gone.file, None)

    def _rides(self, journal: JournalId, size: int) -> bool:
        if size >= self.config.journal_small_bytes_max:
            return False
        return self.waiting.of(journal) + size <= self.config.journal_waiting_bytes_max

    def _in_ledger(self, piece: StoredRange) -> AppendRange:
        content = b"".join(piece.parts)
        self.next_body += 1
        return changed(piece.range, where=InLedger(self.next_body - 1, content))

    def _adopt(self, storing: Storing, blocks: Sequence[RowBlock]) -> list[AppendRange]:
        """Make adopted files durable where they are, each a segment of its own."""
        files: dict[str, Segment] = {}
        ranges = []
        for block in blocks:
            content = block.content
            if not isinstance(content, FileContent):
                continue
            part = content.part
            segment = files.get(content.path) or self.adopted.get(content.path)
            if segment is None:
                if not content.is_open:
                    self._sync_adopted(content.path)
                segment = self._adopted_segment(block.journal, content)
            end = part.position + part.bytes
            last = max(segment.next, block.next)
            files[content.path] = replace(segment, bytes=max(segment.bytes, end), next=last)
            made = range_of(block, part.bytes, part.checksum)
            where = InSegment(segment.id, segment.file, part.position)
            ranges.append(changed(made, where=where, stamp=content.stamp))
        storing.segments += files.values()
        if files:
            fault("journal.adopt.before_save")
        return ranges

    def _adopted_segment(self, journal: Journal, content: FileContent) -> Segment:
        """A new segment; an open file has rows of many journals."""
        number = self.next_segment
        self.next_segment += 1
        return Segment(
            id=number,
            journal=SHARED if content.is_open else journal.id,
            file=content.path,
            bytes=0,
            next=Offset(0),
            is_open=False,
            is_adopted=True,
        )

    def _sync_adopted(self, file: str) -> None:
        path = os.path.join(self.root, file)
        self._sync(path)
        folder = os.path.dirname(path)
        while len(folder) >= len(self.root):
            self._sync_folder(folder)
            folder = os.path.dirname(folder)
        fault("journal.adopt.after_sync")

    def _out(
        self, journals: Sequence[Journal], header: bytes, pieces: Sequence[StoredRange] = ()
    ) -> SegmentOutput:
        """The rows for a segment: those of these journals in the ledger, then these pieces."""
        out = SegmentOutput(header)
        for journal in journals:
            moved = list(self.ledger.waiting(journal.id))
            if not moved:
                self.waiting.drop(journal.id)  # Truncated meanwhile.
            out.moved += moved
            merged = self._together([waited(range_) for range_ in moved])
            out.pieces += [one_message(piece, journal) for piece in merged]
        out.pieces += pieces
        return out

    def _write_and_publish(
        self, draft: Book, storing: Storing, out: Mapping[JournalId, SegmentOutput]
    ) -> None:
        """Write what goes to segments together with what waited for it, then the ledger."""
        targets: dict[JournalId, Segment] = {}
        folders: dict[str, None] = {}
        try:
            targets = self._mark(out)
            for id_, output in out.items():
                storing.moved += output.moved
                storing.segments.append(self._write(targets[id_], output, storing, folders))
            # Each once for all new segments, below before above.
            for folder in sorted(folders, key=len, reverse=True):
                self._sync_folder(folder)
                fault("journal.append.after_folder_sync")
            self.ledger.save(draft, storing)
        except StorageError:
            # Nothing of it was published: what was written is cut off again.
            for segment in targets.values():
                self._cut(segment)
            raise
        self._published(storing)

    def _mark(self, out: Iterable[JournalId]) -> dict[JournalId, Segment]:
        """The segments to write to, marked dirty; new ones are named in the ledger first."""
        targets: dict[JournalId, Segment] = {}
        marking = Storing()
        for id_ in out:
            there = self.active.get(id_)
            if there is not None and not self._may_grow(there):
                # All of it is published and nothing more will be written to it.
                marking.segments.append(replace(there, is_open=False))
                marking.clean.append(there.id)
                there = None
            if there is None:
                there = self._new_segment(id_)
                marking.segments.append(there)
            if there.id not in self.dirty:
                marking.dirty.append(there.id)
            targets[id_] = there
        if marking.dirty:
            fault("journal.append.before_mark")
            self.ledger.save(Book().draft(), marking)
            self.active.update(targets)
            self.dirty.update(marking.dirty)
            self.dirty.difference_update(marking.clean)
            fault("journal.append.after_mark")
        return targets

    def _new_segment(self, journal: JournalId) -> Segment:
        number = self.next_segment
        self.next_segment += 1
        return Segment(
            id=number,
            journal=journal,
            file=f"{SEGMENTS}/{journal}/{number}.ipc",
            bytes=0,
            next=Offset(0),
            is_open=True,
        )

    def _may_grow(self, segment: Segment) -> bool:
        """Whether a segment has room and, if it is of an earlier life, is as it was published."""
        if segment.bytes >= self.config.journal_segment_bytes_target:
            return False
        if segment.id in self.dirty:
            return True
        path = os.path.join(self.root, segment.file)
        with storage_errors(f"looking at {path}"):
            size = self.disk.size(path)
            if size is not None and size > segment.bytes:
                self.disk.cut(path, segment.bytes)
        return size is not None and size >= segment.bytes

    def _together(self, pieces: Sequence[StoredRange]) -> list[StoredRange]:
        """Small ranges that follow each other, put together to larger ones."""
        out: list[StoredRange] = []
        for piece in pieces:
            last = out[-1] if out else None
            if last is not None and self._belong_together(last, piece):
                last.parts += piece.parts
                last.range = changed(
                    last.range,
                    next=piece.range.next,
                    rows=last.range.rows + piece.range.rows,
                    kind=max(last.range.kind, piece.range.kind),
                    bytes=last.range.bytes + piece.range.bytes,
                )
            else:
                out.append(piece)
        for piece in out:
            if len(piece.parts) > 1 or not piece.range.checksum:
                piece.range = changed(piece.range, checksum=checksum_of(piece.parts))
        return out

    def _belong_together(self, last: StoredRange, piece: StoredRange) -> bool:
        # Bytes that went bad keep the checksum that tells so.
        if last.range.next != piece.range.first or not (last.is_sound and piece.is_sound):
            return False
        return last.range.bytes + piece.range.bytes <= self.config.journal_range_bytes_target

    def _write(
        self, segment: Segment, out: SegmentOutput, storing: Storing, folders: dict[str, None]
    ) -> Segment:
        """Append pieces to a segment and sync it; the segment as it will be published.

        The folders whose names must be synced before that are added to `folders`.
        """
        path = os.path.join(self.root, segment.file)
        position = segment.bytes
        parts: list[bytes | memoryview] = []
        is_new = not position
        if is_new:
            parts.append(out.header)
            position += len(out.header)
        for piece in out.pieces:
            where = InSegment(segment.id, segment.file, position)
            storing.ranges.append(changed(piece.range, where=where))
            parts += piece.parts
            position += piece.range.bytes
        with storage_errors(f"writing {path}"):
            if is_new:
                folders.update(dict.fromkeys(self._make_folders(path)))
            self.disk.write(path, segment.bytes, parts)
        fault("journal.append.after_write")
        self._sync(path)
        fault("journal.append.after_sync")
        last = max([segment.next, *(piece.range.next for piece in out.pieces)])
        return replace(segment, bytes=position, next=last)

    def _make_folders(self, path: str) -> list[str]:
        """Make the folders of a new segment; those whose names must be synced."""
        own = os.path.dirname(path)
        above = os.path.dirname(own)
        folders = [own]
        if self.disk.make_folder(above):
            folders.append(self.root)
        if self.disk.make_folder(own) or len(folders) > 1:
            folders.append(above)
        return folders

    def _sync(self, path: str) -> None:
        try:
            self.disk.sync(path)
        except OSError as error:
            raise stopped(f"syncing {path}", error) from error

    def _sync_folder(self, path: str) -> None:
        try:
            self.disk.sync_folder(path)
        except OSError as error:
            raise stopped(f"syncing folder {path}", error) from error

    def _cut(self, segment: Segment) -> None:
        path = os.path.join(self.root, segment.file)
        try:
            if (self.disk.size(path) or 0) > segment.bytes:
                self.disk.cut(path, segment.bytes)
        except OSError as error:
            raise stopped(f"cutting {path} back", error) from error

    def _published(self, storing: Storing) -> None:
        """The ledger has it: go on from there."""
        for segment in storing.segments:
            if segment.is_open:
                self.active[segment.journal] = segment
            elif segment.is_adopted and segment.journal == SHARED:
                self.adopted[segment.file] = segment
        for old in storing.moved:
            if isinstance(old.where, InLedger):
                self.waiting.drop(old.journal)
        for range_ in storing.ranges:
            if isinstance(range_.where, InLedger):
                self.waiting.add(range_.journal, range_.bytes)


def stopped(doing: str, error: OSError) -> BrokerStopped:
    """Word the error for a disk that cannot be trusted any more."""
    return BrokerStopped(
        f"{doing} failed: {error}\n  nothing is written from now on, since what reached the disk "
        "is not known\n  to fix: look at the disk and the system log, then open the broker again"
    )
