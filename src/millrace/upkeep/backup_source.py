"""What a backup reads: the files of a folder, or the objects of a bucket.

Invariant: two looks at a file are equal only if its content is the same.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol

import xxhash

from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.storage.objects.object_calls import ListedObject
from millrace.storage.objects.object_store import CLAIM, REMOVED, ObjectStore
from millrace.storage.store import Store, storage_errors

_RANGE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when it was looked at."""

    bytes: int
    changed: int
    """Another number if the file was written again: its time, or that of an object's tag."""


class BackupSource(Protocol):
    """Reads the files of a store, by their paths within it."""

    def look(self, path: str) -> SourceFile | None:
        """A file as it is now; None if it is gone. Objects may be as of the last listing."""

    def open(self, path: str) -> tuple[BinaryIO, SourceFile]:
        """A file to be read, and as what. Raises `FileNotFoundError` if it is gone."""

    def below(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder and below it, as they are now."""

    def each(self, function: Callable[[str], bool], paths: Iterable[str]) -> list[bool]:
        """Call a function for each path, several at a time where that is worth it."""


def source_of(store: Store) -> BackupSource:
    """How to read a store."""
    if isinstance(store, LocalStore):
        return FolderSource(store)
    assert isinstance(store, ObjectStore), "there are two stores"
    return BucketSource(store)


class FolderSource:
    """The files of a folder."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def look(self, path: str) -> SourceFile | None:
        """See `BackupSource.look`."""
        full = self._store.path(path)
        with storage_errors(f"looking at {full}"):
            try:
                return _file(os.stat(full))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open(self, path: str) -> tuple[BinaryIO, SourceFile]:
        """See `BackupSource.open`."""
        full = self._store.path(path)
        try:
            file = open(full, "rb")  # noqa: SIM115 - the caller closes it
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(path) from error
        except OSError as error:
            with storage_errors(f"reading {full}"):
                raise error from None
        return file, _file(os.fstat(file.fileno()))

    def below(self, folder: str) -> Iterator[str]:
        """See `BackupSource.below`."""
        for above, _, names in os.walk(self._store.path(folder)):
            for name in sorted(names):
                path = os.path.join(above, name)
                if not os.path.islink(path):
                    yield os.path.relpath(path, self._store.root)

    def each(self, function: Callable[[str], bool], paths: Iterable[str]) -> list[bool]:
        """See `BackupSource.each`."""
        return [function(path) for path in paths]


class BucketSource:
    """The objects of a part of a bucket."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._listed: dict[str, SourceFile] = {}

    def look(self, path: str) -> SourceFile | None:
        """See `BackupSource.look`. A listing saves a request for each object."""
        if path not in self._listed:
            listed = self._store.calls.look(path)
            return None if listed is None else _object(listed)
        return self._listed[path]

    def open(self, path: str) -> tuple[BinaryIO, SourceFile]:
        """See `BackupSource.open`."""
        # Looked at before it is read: one that is put again meanwhile is copied again next time.
        listed = self._store.calls.look(path)
        if listed is None:
            self._listed.pop(path, None)
            raise FileNotFoundError(path)
        return io.BufferedReader(_ObjectReader(self._store, path, listed.size)), _object(listed)

    def below(self, folder: str) -> Iterator[str]:
        """See `BackupSource.below`: without claims, and attempts that were removed."""
        for path in [path for path in self._listed if path.startswith(f"{folder}/")]:
            del self._listed[path]
        for listed in list(self._store.calls.list(folder, deep=True)):
            name = listed.name.rpartition("/")[2]
            is_removed = name == layout.INDEX_BIN and listed.size == len(REMOVED)
            if name != CLAIM and not is_removed:
                path = f"{folder}/{listed.name}"
                self._listed[path] = _object(listed)
                yield path

    def each(self, function: Callable[[str], bool], paths: Iterable[str]) -> list[bool]:
        """See `BackupSource.each`."""
        return self._store.each(function, paths)


class _ObjectReader(io.RawIOBase):
    """An object, read in ranges."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        super().__init__()
        self._store, self._path, self._size = store, path, size
        self._at = 0
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:  # noqa: ANN401 - any buffer
        if not self._rest and self._at < self._size:
            wanted = min(_RANGE_BYTES, self._size - self._at)
            _, data = self._store.load(self._path, self._at, wanted)
            self._rest = memoryview(data).cast("B")
            self._at += len(self._rest)
        count = min(len(into), len(self._rest))
        memoryview(into).cast("B")[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _file(status: os.stat_result) -> SourceFile:
    return SourceFile(status.st_size, status.st_mtime_ns)


def _object(listed: ListedObject) -> SourceFile:
    return SourceFile(listed.size, xxhash.xxh3_64_intdigest(listed.tag.encode()) >> 1)
