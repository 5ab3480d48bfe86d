"""Which journals were made and deleted lately, so that a reader of very many looks at those alone.

The version counts journals that were made or deleted. The book keeps it, so it means the same to
the next owner, which remembers no changes and lists all journals.

Invariant: the answer for a remembered version names every journal that was made or deleted after
it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from millrace.journal.core.book import NEXT_JOURNAL, VERSION, Book, Journal
from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.values import ChangedJournals


@dataclass(frozen=True, slots=True)
class _Change:
    version: int
    made: tuple[Journal, ...]
    gone: tuple[JournalId, ...]

    def __len__(self) -> int:
        return len(self.made) + len(self.gone)


class ChangedLately:
    """The last changes of one broker's list of journals. Many threads may use it."""

    def __init__(self, limit: int, book: Book) -> None:
        """`limit` is how many journals are remembered."""
        self._limit = limit
        self._lock = threading.Lock()
        self.forget(book)

    def forget(self, book: Book) -> None:
        """Begin with this book, of which no change is known."""
        with self._lock:
            self._changes: deque[_Change] = deque()
            self._size = 0
            self._version = self._oldest = book.count(VERSION)
            self._last_id = book.count(NEXT_JOURNAL)

    def note(self, draft: Book) -> None:
        """The book has taken this draft over."""
        version = draft.counters.own.get(VERSION)
        if version is None:
            return
        with self._lock:
            journals = draft.journals.own.values()
            change = _Change(
                version,
                tuple(each for each in journals if each is not None and each.id > self._last_id),
                tuple(journal.id for journal in draft.deleted),
            )
            self._version = version
            self._last_id = draft.counters.own.get(NEXT_JOURNAL) or self._last_id
            self._changes.append(change)
            self._size += len(change)
            while self._size > self._limit:
                oldest = self._changes.popleft()
                self._oldest = oldest.version
                self._size -= len(oldest)

    def after(self, since: int) -> ChangedJournals | None:
        """What changed after a version; None: that is not known."""
        with self._lock:
            if not self._oldest <= since <= self._version:
                return None
            changes: list[_Change] = []
            for change in reversed(self._changes):
                if change.version <= since:
                    break
                changes.append(change)
            version = self._version
        gone = frozenset(id_ for change in changes for id_ in change.gone)
        made = (journal for change in reversed(changes) for journal in change.made)
        return ChangedJournals(
            version=version,
            made=tuple(journal.info() for journal in made if journal.id not in gone),
            gone=tuple(sorted(gone)),
        )
