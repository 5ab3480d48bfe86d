"""Where rows go with a ledger that is a log: every file is written once, whole, and never grows.

Nothing is marked before it is written, and nothing is cut back: a file that no record names is a
leftover, whose name no other owner uses.

Invariant: all that a record names is durable before the record is added.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace.faults import fault
from millrace.journal.core.book import Book, FileContent
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.embedded.ledger.ledger_port import Segment, Storing
from millrace.journal.embedded.row_storage import SEGMENTS, RowStorage
from millrace.journal.ledger_log.store_disk import StoreDisk
from millrace.journal.row_files import ADOPTED


@dataclass(slots=True)
class WholeFileStorage(RowStorage):
    """Puts rows away in files of a folder. Used by one thread at a time."""

    def _mark(self, out: Iterable[JournalId]) -> dict[JournalId, Segment]:
        return {journal: self._new_segment(journal) for journal in out}

    def _new_segment(self, journal: JournalId) -> Segment:
        number = self.next_segment
        self.next_segment += 1
        return Segment(
            id=number,
            journal=journal,
            file=f"{SEGMENTS}/{journal}/{self.ledger.epoch}-{number}.ipc",
            bytes=0,
            next=Offset(0),
            is_open=False,
        )

    def _cut(self, segment: Segment) -> None:
        """Leave what was written: its name is not used again."""


@dataclass(slots=True)
class BucketStorage(WholeFileStorage):
    """The same in a bucket; files to adopt are uploaded from a folder of this host."""

    adoption: str = ""

    def save(self, draft: Book, storing: Storing) -> None:
        """See `RowStorage.save`."""
        assert isinstance(self.disk, StoreDisk)
        try:
            self._upload_adopted(self.disk, draft)
            # Not by super(): a class with slots is made anew, and its methods know the first one.
            WholeFileStorage.save(self, draft, storing)
        except MillraceError:
            self.disk.forget()
            raise

    def _upload_adopted(self, disk: StoreDisk, draft: Book) -> None:
        """Put the files of this host that a draft adopts, all at the same time."""
        contents = [block.content for block in draft.blocks]
        names = {
            os.path.basename(content.path)
            for content in contents
            if isinstance(content, FileContent) and not content.is_open
        }
        here = [name for name in names if os.path.exists(os.path.join(self.adoption, name))]
        if here:
            disk.upload(self.adoption, sorted(here), ADOPTED)

    def _sync_adopted(self, file: str) -> None:
        del file  # Put before.
        fault("journal.adopt.after_sync")
