"""The mark: which commit of the ledger was acknowledged last, in files beside the ledger.

SQLite takes a log that breaks off for the end of the log, and reports nothing. So each commit has a
number. It is in the ledger itself, and in this file once the commit is durable and before it
is acknowledged. The file is not synced: it survives the death of the process, and after a power cut
it may be behind, never ahead. It is there twice, beside the ledger and among the segments, so that
neither of them can be replaced by an older copy without notice.

Invariant: a commit is durable in the ledger before the mark names it. Two slots are
written in turn, so a torn write leaves the other one.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final, Self

import xxhash

from millrace.storage import modes
from millrace.storage.local import sync_file, sync_folder

MARK: Final = "commits.mark"
PLACES: Final = (MARK, os.path.join("segments", MARK))
"""The files of the marks in the folder of the journals."""
_MAGIC: Final = b"MRMARK01"
_FIELDS: Final = struct.Struct(">8sQQQQQ?Q")
_CHECKSUM: Final = struct.Struct(">Q")
_SLOT_BYTES: Final = 512
"""A sector: what a disk writes whole or not at all."""
_SLOTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMark:
    """The last commit that was acknowledged, and what is known of the ledger's file by then."""

    commit: int = 0
    committed_at_ms: int = 0
    epoch: int = 0
    opening_id: int = 0
    """Drawn at random by the opening of this epoch: tells apart ledgers that went on from one."""
    file_commit: int = 0
    """A commit that the ledger's file holds without its log, as are all before it."""
    file_checksum: int | None = None
    """XXH3-64 of the ledger's whole file, if it was closed and its log is gone."""

    def encoded(self) -> bytes:
        """The bytes of a slot."""
        numbers = (self.commit, self.committed_at_ms, self.epoch, self.opening_id, self.file_commit)
        is_closed = self.file_checksum is not None
        fields = _FIELDS.pack(_MAGIC, *numbers, is_closed, self.file_checksum or 0)
        return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def decoded(cls, slot: bytes) -> Self | None:
        """The mark in a slot; None if these are not the bytes of one."""
        fields, checksum = slot[: _FIELDS.size], slot[_FIELDS.size :][: _CHECKSUM.size]
        if len(checksum) < _CHECKSUM.size or not fields.startswith(_MAGIC):
            return None
        if _CHECKSUM.unpack(checksum)[0] != xxhash.xxh3_64_intdigest(fields):
            return None
        _, commit, at_ms, epoch, opening_id, file_commit, is_closed, file_sum = _FIELDS.unpack(
            fields
        )
        return cls(
            commit=commit,
            committed_at_ms=at_ms,
            epoch=epoch,
            opening_id=opening_id,
            file_commit=file_commit,
            file_checksum=file_sum if is_closed else None,
        )


class DamagedMark(Exception):
    """There are files of marks, and no mark in any of them."""


def read(root: str) -> CommitMark | None:
    """The newest mark of a folder; None if there never was one, `DamagedMark` if none is left.

    Raises `OSError` as the operating system does.
    """
    files = [_slots(os.path.join(root, name)) for name in PLACES]
    marks_read = [mark for marks in files for mark in marks or ()]
    if marks_read:
        # A closed ledger's mark has the number of its last commit's, and says more.
        return max(marks_read, key=lambda mark: (mark.commit, mark.file_checksum is not None))
    if any(marks is not None for marks in files):
        raise DamagedMark
    return None


def create(root: str, mark: CommitMark) -> None:
    """Make the files that are not there, or hold no mark, durably."""
    for name in PLACES:
        path = os.path.join(root, name)
        if not _slots(path):
            modes.make_folders(os.path.dirname(path))
            draft = f"{path}.draft"
            with open(draft, "wb", opener=modes.opener) as file:
                file.write(mark.encoded().ljust(_SLOT_BYTES, b"\0") * _SLOTS)
            sync_file(draft)
            os.replace(draft, path)
            sync_folder(os.path.dirname(path))
    sync_folder(root)


def _slots(path: str) -> list[CommitMark] | None:
    """The marks in a file; None if there is no file."""
    try:
        with open(path, "rb") as file:
            data = file.read(_SLOTS * _SLOT_BYTES)
    except FileNotFoundError:
        return None
    slots = [data[number * _SLOT_BYTES :][:_SLOT_BYTES] for number in range(_SLOTS)]
    return [mark for mark in map(CommitMark.decoded, slots) if mark is not None]


class MarkFiles:
    """Writes marks. Used by one thread at a time; raises `OSError` as the operating system does."""

    def __init__(self, root: str) -> None:
        self._handles: list[int] = []
        self._next_slot = 0
        for name in PLACES:
            path = os.path.join(root, name)
            self._handles.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))

    def write(self, mark: CommitMark) -> None:
        """Put a mark into the slots that hold the older one."""
        slot = mark.encoded()
        for handle in self._handles:
            os.pwrite(handle, slot, self._next_slot * _SLOT_BYTES)
        self._next_slot = 1 - self._next_slot

    def close(self) -> None:
        """Close the files."""
        while self._handles:
            os.close(self._handles.pop())
