"""The files of a backup: named by their content, so that equal files are kept once.

    backup.json                     what this folder is, and of which workspace
    backup.lock                     held while a backup is made
    files/{2 digits}/{digest}-{size}    the bytes of files
    snapshots/{number}.json         one backup: which files the workspace had
    progress.jsonl                  what a backup that was interrupted has copied

Invariant: a file has its name only when it is whole and durable. A snapshot is written last, so
what it names is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import xxhash

from millrace.errors import Corrupt, DataLost
from millrace.faults import fault
from millrace.storage import modes
from millrace.storage.local import LocalStore, sync_folder
from millrace.storage.store import storage_errors
from millrace.upkeep.backup_source import BackupSource

FILES: Final = "files"
PROGRESS: Final = "progress.jsonl"
_DRAFT: Final = ".draft"
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a workspace in a snapshot."""

    path: str
    """Within the workspace."""
    bytes: int
    mtime_ns: int
    """See `SourceFile.changed`: the next backup need not read an unchanged file."""
    digest: str
    """XXH3-128, 32 hexadecimal digits."""

    @property
    def object(self) -> str:
        """The file in the backup."""
        return f"{FILES}/{self.digest[:2]}/{self.digest}-{self.bytes}"


class FileShortened(Exception):
    """A file of the workspace has fewer bytes than were to be copied."""


class BackupObjects:
    """Puts files into the folder of a backup, and takes them out."""

    def __init__(self, folder: str, on_bytes: Callable[[int], None] = lambda _count: None) -> None:
        self.store = LocalStore(folder)
        self.on_bytes = on_bytes
        self.copied_files = 0
        self.copied_bytes = 0
        self._touched: set[str] = set()
        self._lock = threading.Lock()

    def has(self, entry: FileEntry) -> bool:
        """Whether the bytes of a file are here, by name and length."""
        path = self.store.path(entry.object)
        try:
            return os.stat(path).st_size == entry.bytes
        except FileNotFoundError:
            return False

    def put(
        self, source: BackupSource, path: str, *, name: str, length: int | None = None
    ) -> FileEntry:
        """Copy a file, or its first bytes, under a name. Called by several threads.

        Raises `FileNotFoundError` if it is gone, and `FileShortened` if it is too short.
        """
        self.store.make_folder(FILES)
        draft = self.store.path(f"{FILES}/{secrets.token_hex(8)}{_DRAFT}")
        file, looked = source.open(path)
        with file, storage_errors(f"writing {draft}"):
            try:
                with open(draft, "xb", opener=modes.opener) as out:
                    digest, size = _copy(file, out, length, self.on_bytes)
                    if size < (looked.bytes if length is None else length):
                        raise FileShortened(path)
                    entry = FileEntry(name, size, looked.changed, digest)
                    is_new = not self.has(entry)
                    if is_new:
                        out.flush()
                        os.fsync(out.fileno())
                if is_new:
                    self._rename(draft, entry)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
        return entry

    def _rename(self, draft: str, entry: FileEntry) -> None:
        target = self.store.path(entry.object)
        modes.make_folders(os.path.dirname(target))
        fault("backup.file.before_rename")
        os.replace(draft, target)
        fault("backup.file.after_rename")
        with self._lock:
            self._touched.add(os.path.dirname(target))
            self.copied_files += 1
            self.copied_bytes += entry.bytes

    def sync(self) -> None:
        """Make the names of new files durable."""
        with storage_errors(f"syncing {self.store.root}"):
            for folder in sorted(self._touched):
                sync_folder(folder)
            if self._touched:
                sync_folder(self.store.path(FILES))
                sync_folder(self.store.root)
        self._touched.clear()

    def read(self, entry: FileEntry) -> bytes:
        """The bytes of a small file, found right."""
        path = self.store.path(entry.object)
        data = self.store.read(entry.object)
        if data is None:
            raise _gone(path, entry)
        _check(path, entry, xxhash.xxh3_128_hexdigest(data), len(data))
        return data

    def check(self, entry: FileEntry) -> None:
        """Raise unless the bytes of a file are here and right."""
        with open(os.devnull, "wb") as nowhere:
            self._write(entry, nowhere)

    def take(self, entry: FileEntry, target: str) -> None:
        """Copy a file out, whole and durable, and check it on the way."""
        draft = f"{target}.{secrets.token_hex(8)}{_DRAFT}"
        with storage_errors(f"writing {target}"):
            modes.make_folders(os.path.dirname(target))
            try:
                with open(draft, "xb", opener=modes.opener) as out:
                    self._write(entry, out)
                    out.flush()
                    os.fsync(out.fileno())
                os.replace(draft, target)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)

    def _write(self, entry: FileEntry, out: BinaryIO) -> None:
        path = self.store.path(entry.object)
        with storage_errors(f"reading {path}"):
            try:
                with open(path, "rb") as file:
                    digest, size = _copy(file, out, None, self.on_bytes)
            except FileNotFoundError as error:
                raise _gone(path, entry) from error
        _check(path, entry, digest, size)

    # What an interrupted backup has copied.
    def progress(self) -> Iterator[FileEntry]:
        """The files that an interrupted backup has copied; a torn line ends them."""
        for line in (self.store.read(PROGRESS) or b"").splitlines():
            try:
                path, size, mtime_ns, digest = json.loads(line)
                yield FileEntry(str(path), int(size), int(mtime_ns), str(digest))
            except (ValueError, TypeError):
                return

    @contextlib.contextmanager
    def noting(self) -> Iterator[Callable[[FileEntry], None]]:
        """Note files as they are copied."""
        path = self.store.path(PROGRESS)
        with storage_errors(f"writing {path}"), open(path, "ab", opener=modes.opener) as file:

            def note(entry: FileEntry) -> None:
                fields = [entry.path, entry.bytes, entry.mtime_ns, entry.digest]
                with self._lock:
                    file.write(json.dumps(fields).encode() + b"\n")
                    file.flush()

            yield note


def _copy(
    source: BinaryIO, out: BinaryIO, length: int | None, on_bytes: Callable[[int], None]
) -> tuple[str, int]:
    digest, size = xxhash.xxh3_128(), 0
    while length is None or size < length:
        wanted = _READ_BYTES if length is None else min(_READ_BYTES, length - size)
        piece = source.read(wanted)
        if not piece:
            break
        digest.update(piece)
        out.write(piece)
        size += len(piece)
        on_bytes(len(piece))
    return str(digest.hexdigest()), size


def _gone(path: str, entry: FileEntry) -> DataLost:
    return DataLost(
        f"{path} is gone from the backup\n  expected: {entry.bytes} bytes of {entry.path}\n"
        "  to fix: make a new backup, or restore another snapshot"
    )


def _check(path: str, entry: FileEntry, digest: str, size: int) -> None:
    if digest != entry.digest or size != entry.bytes:
        raise Corrupt(
            f"{path} is not what was copied: {entry.path}\n"
            f"  expected: {entry.bytes} bytes, checksum {entry.digest}\n"
            f"  found: {size} bytes, checksum {digest}\n"
            "  to fix: remove it and make a new backup, or restore another snapshot"
        )
