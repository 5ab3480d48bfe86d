"""The files of a sink's folder, on a disk or in a bucket, by their names within it.

A bucket has no rename. There a file gets its name by a copy in the store, after which the hidden
object is removed; an object appears whole. Invariant: `name` is safe to repeat, also after a kill
between the copy and the removal, and by several workers at a time: all of them copy the same bytes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.errors import UserError
from millrace.faults import fault
from millrace.storage.file_systems import is_remote, remote_path
from millrace.storage.local import sync_file, sync_folder
from millrace.storage.remote_paths import RemotePath
from millrace.storage.storage_options import StorageOptions
from millrace.storage.store import storage_errors

_DRAFT: Final = ".draft"


class FolderFiles(Protocol):
    """The files of one folder."""

    def is_file(self) -> bool:
        """Whether the path of the folder is a file."""

    def visible(self) -> list[str]:
        """Files that a reader of the folder would see."""

    def read(self, name: str) -> str | None:
        """A small file; None if there is none."""

    def replace(self, name: str, text: str) -> None:
        """Write a small file durably, over an earlier one."""

    def put(self, written: str, name: str) -> None:
        """Make a file of the host's disk durable under a hidden name."""

    def written_at(self, name: str, scratch: str) -> str:
        """Where on this host's disk a new file is written before `put`."""

    def hidden(self, folder: str) -> Sequence[tuple[str, float]]:
        """Names in a hidden folder, and when each of them was written, in seconds."""

    def name(self, hidden: str, name: str) -> bool:
        """Give a hidden file its name, unless that was done; False if there is neither."""

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    def sync(self) -> None:
        """Make names durable."""


def files_in(path: str, options: StorageOptions, config: Config) -> FolderFiles:
    """The files of a folder at a path or url."""
    if not is_remote(path):
        return DiskFiles(path)
    folder = remote_path(path, options, config)
    if folder.kind == "hdfs":
        raise UserError(
            f"a sink cannot write to {path}\n"
            "  to fix: name a folder of a disk, or of a store at s3://, gs://, abfss:// or az://"
        )
    return BucketFiles(folder)


class DiskFiles:
    """A folder on a disk that all hosts share."""

    def __init__(self, path: str) -> None:
        """Nothing is read yet."""
        self._path = path
        self._changed = {path}
        """Folders whose names are to be made durable."""

    def is_file(self) -> bool:
        """See `FolderFiles.is_file`."""
        return os.path.lexists(self._path) and not os.path.isdir(self._path)

    def visible(self) -> list[str]:
        """See `FolderFiles.visible`."""
        with storage_errors(f"listing {self._path}"):
            return sorted(_visible_below(self._path))

    def read(self, name: str) -> str | None:
        """See `FolderFiles.read`."""
        with storage_errors(f"reading {name} in {self._path}"):
            try:
                with open(os.path.join(self._path, name), encoding="utf-8") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def replace(self, name: str, text: str) -> None:
        """See `FolderFiles.replace`."""
        target = os.path.join(self._path, name)
        folder = os.path.dirname(target)
        with storage_errors(f"making {self._path}"):
            _make_folders(folder)
            draft = os.path.join(folder, f"{os.urandom(8).hex()}{_DRAFT}")
            with open(draft, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
            sync_folder(folder)
            sync_folder(self._path)

    def written_at(self, name: str, scratch: str) -> str:
        """See `FolderFiles.written_at`."""
        del scratch  # It is there already.
        return os.path.join(self._path, name)

    def put(self, written: str, name: str) -> None:
        """See `FolderFiles.put`."""
        assert written == os.path.join(self._path, name), "it was written in its place"
        sync_file(written)
        sync_folder(os.path.dirname(written))

    def hidden(self, folder: str) -> Sequence[tuple[str, float]]:
        """See `FolderFiles.hidden`."""
        with storage_errors(f"listing {self._path}"):
            try:
                with os.scandir(os.path.join(self._path, folder)) as entries:
                    return [(entry.name, _changed_at(entry)) for entry in entries]
            except FileNotFoundError:
                return []

    def name(self, hidden: str, name: str) -> bool:
        """See `FolderFiles.name`."""
        source, target = (os.path.join(self._path, part) for part in (hidden, name))
        with storage_errors(f"naming {target}"):
            if not os.path.exists(source):
                return os.path.exists(target)
            _make_folders(os.path.dirname(target))
            self._changed.add(os.path.dirname(target))
            fault("sink.file.before_rename")
            try:
                os.rename(source, target)
            except FileNotFoundError:
                return os.path.exists(target)
            fault("sink.file.after_rename")
        return True

    def remove(self, name: str) -> None:
        """See `FolderFiles.remove`."""
        with storage_errors(f"removing {name} in {self._path}"):
            try:
                os.unlink(os.path.join(self._path, name))
            except FileNotFoundError:
                return
            self._changed.add(os.path.dirname(os.path.join(self._path, name)))

    def sync(self) -> None:
        """See `FolderFiles.sync`."""
        with storage_errors(f"syncing {self._path}"):
            for folder in self._changed:
                sync_folder(folder)


class BucketFiles:
    """A folder of a bucket."""

    def __init__(self, folder: RemotePath) -> None:
        """Nothing is read yet."""
        self._folder = folder

    def is_file(self) -> bool:
        """See `FolderFiles.is_file`."""
        return not self._folder.key or self._folder.version() is not None

    def visible(self) -> list[str]:
        """See `FolderFiles.visible`."""
        names = [name for name, _ in self._folder.list()]
        return sorted(name for name in names if _is_visible(name.split("/")))

    def read(self, name: str) -> str | None:
        """See `FolderFiles.read`."""
        data = self._folder.below(name).read()
        return None if data is None else data.decode("utf-8")

    def replace(self, name: str, text: str) -> None:
        """See `FolderFiles.replace`."""
        self._folder.below(name).put(text.encode())

    def written_at(self, name: str, scratch: str) -> str:
        """See `FolderFiles.written_at`."""
        return os.path.join(scratch, os.path.basename(name))

    def put(self, written: str, name: str) -> None:
        """See `FolderFiles.put`."""
        with pa.memory_map(written) as file:
            self._folder.below(name).put(file.read_buffer())
        os.unlink(written)

    def hidden(self, folder: str) -> Sequence[tuple[str, float]]:
        """See `FolderFiles.hidden`."""
        return self._folder.below(folder).written_at()

    def name(self, hidden: str, name: str) -> bool:
        """See `FolderFiles.name`."""
        source, target = self._folder.below(hidden), self._folder.below(name)
        fault("sink.file.before_rename")
        if not source.copy(target):
            return target.version() is not None
        fault("sink.file.after_copy")
        source.remove()
        fault("sink.file.after_rename")
        return True

    def remove(self, name: str) -> None:
        """See `FolderFiles.remove`."""
        self._folder.below(name).remove()

    def sync(self) -> None:
        """See `FolderFiles.sync`: what a store has answered is durable."""


def place_of(path: str) -> str:
    """How an error names a folder: with the host, if it is on a disk."""
    return path if is_remote(path) else f"{path} on host {socket.gethostname()}"


def _visible_below(path: str) -> Iterator[str]:
    for folder, folders, files in os.walk(path, onerror=_raise_unless_missing):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in files:
            if _is_visible([name]):
                yield os.path.relpath(os.path.join(folder, name), path)


def _is_hidden(folder: str) -> bool:
    """Whether readers leave a folder out; one of a column's values they do not."""
    return folder.startswith(".") or (folder.startswith("_") and "=" not in folder)


def _is_visible(parts: list[str]) -> bool:
    hidden = parts[-1].startswith((".", "_")) or any(map(_is_hidden, parts[:-1]))
    return not hidden and parts[-1].lower().endswith(".parquet")


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _make_folders(path: str) -> None:
    """Make a folder and those above it, durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    _make_folders(above)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    sync_folder(above)


def _changed_at(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return time.time()
