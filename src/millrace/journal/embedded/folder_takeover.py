"""What happens when a locked folder is opened: leftovers of a dead owner are cut back.

Invariant: all that was published before is there afterwards, and nothing else of the segments that
were being written.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

from millrace.faults import fault
from millrace.journal.book_broker import Times
from millrace.journal.core.book import Book
from millrace.journal.embedded.ledger.ledger_port import Ledger, LedgerContent, Segment, Storing
from millrace.journal.embedded.row_storage import stopped
from millrace.journal.embedded.segment_disk import SegmentDisk
from millrace.storage import modes
from millrace.storage.local import LocalStore, sync_folder


def with_capped_leases(book: Book, times: Times) -> Book:
    """No lease lasts longer than it would had it been taken now: the time may have gone back."""
    now = times.wall_ns() // 1_000_000
    for name, lease in list(book.leases.all()):
        until = min(lease.expires_at_ms, now + lease.lease_ms)
        book.leases.put(name, replace(lease, expires_at_ms=until))
    return book


def make_folders(path: str) -> None:
    """Make a folder and those above it, durably."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            modes.make_folder(folder)
        sync_folder(os.path.dirname(folder))


def cut_back(
    root: str, disk: SegmentDisk, ledger: Ledger, content: LedgerContent, *, is_whole: bool
) -> None:
    """Cut segments that were being written back to what is published.

    Where commits are missing, the bytes behind that may be theirs: they are left, and the segments
    are not written to any more.
    """
    storing = Storing()
    keep: list[Segment] = []
    for segment in content.segments:
        if not is_whole:
            storing.segments.append(replace(segment, is_open=False))
            storing.clean.append(segment.id)
            continue
        if segment.id not in content.dirty:
            keep.append(segment)
            continue
        path = LocalStore(root).path(segment.file)
        fault("journal.open.before_cut")
        try:
            size = disk.size(path)
            if not segment.bytes:
                disk.remove(path)
            elif size is not None and size > segment.bytes:
                disk.cut(path, segment.bytes)
        except OSError as error:
            raise stopped(f"cutting {path} back", error) from error
        fault("journal.open.after_cut")
        storing.clean.append(segment.id)
        if not segment.bytes:
            storing.segments_gone.append(segment.id)
        elif size is None or size < segment.bytes:
            # Reads say what is lost; nothing is appended behind a hole.
            storing.segments.append(replace(segment, is_open=False))
        else:
            keep.append(segment)
    if storing.clean:
        ledger.save(Book().draft(), storing)
    content.segments[:] = keep
