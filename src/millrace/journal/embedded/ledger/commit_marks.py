"""Keeps the mark of an open ledger: counts its commits, and what its file holds without its log.

Invariant: `put` is called after a commit is durable, and before it is acknowledged.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Final

from millrace.journal.embedded.ledger import mark_files as marks
from millrace.journal.embedded.ledger.ledger_check import checksum_of_file
from millrace.journal.embedded.ledger.mark_files import CommitMark, DamagedMark, MarkFiles

_SALT: Final = (8, 16)
"""Length and place of what tells one life of SQLite's log from the next, in its header."""


class CommitMarks:
    """The mark of one ledger. Used by one thread at a time; raises `OSError` as the system does."""

    def __init__(self, path: str) -> None:
        """Go on from the mark there is. A ledger has one before it has numbered commits."""
        root = os.path.dirname(path)
        self._path = path
        self._log = -1
        self._log_salt = b""
        try:
            self.mark = marks.read(root) or CommitMark()
        except DamagedMark:
            self.mark = CommitMark()
        marks.create(root, self.mark)
        self._files = MarkFiles(root)

    def begin(self, mark: CommitMark) -> None:
        """Count on from a mark; SQLite has its log open by now."""
        self.mark = mark
        self._log = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        self._log_salt = os.pread(self._log, *_SALT)

    def put(self, at_ms: int) -> None:
        """One more commit is durable."""
        file_commit, salt = self.mark.file_commit, os.pread(self._log, *_SALT)
        if salt and salt != self._log_salt:
            # SQLite begins its log again once the ledger's file holds all of it.
            file_commit, self._log_salt = self.mark.commit, salt
        commit = self.mark.commit + 1
        self.mark = replace(
            self.mark, commit=commit, committed_at_ms=at_ms, file_commit=file_commit
        )
        self._files.write(self.mark)

    def close(self) -> None:
        """Note the checksum of the ledger's file if its log is gone. SQLite has closed both."""
        if self._log >= 0:
            os.close(self._log)
            # A mark without it just says less.
            with contextlib.suppress(OSError):
                if not os.path.exists(f"{self._path}-wal"):
                    checksum = checksum_of_file(self._path)
                    commit = self.mark.commit
                    self._files.write(
                        replace(self.mark, file_commit=commit, file_checksum=checksum)
                    )
        self._files.close()
