"""A folder on a local or shared disk as a store.

Invariant: a file made by `create` appears whole or not at all, and never replaces another. Every
path is checked to be within the folder. The operating system's refusals become `StorageError`s
that name the path and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.errors import StorageError
from millrace.faults import fault
from millrace.storage import layout, modes
from millrace.storage.store import Answer, Item, storage_errors
from millrace.storage.within import path_within
from millrace.storage.workspace_file import decode

_DRAFT: Final = ".draft"
_SURE_NS: Final = 2_000_000_000
"""A file that did not change for so long has a time of change of its own."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder on a local or shared disk."""

    root: str

    def __post_init__(self) -> None:
        """Keep the folder when the process goes to another one."""
        object.__setattr__(self, "root", os.path.abspath(self.root))

    @property
    def remote(self) -> bool:
        """A disk answers at once."""
        return False

    def path(self, relative: str) -> str:
        """Absolute path of a name within the workspace; a name that leads outside is refused."""
        return path_within(self.root, relative)

    def workspace_id(self) -> str | None:
        """Which workspace this is; None if it is none."""
        data = self.read(layout.WORKSPACE_FILE)
        return None if data is None else decode(data, where=self.path(layout.WORKSPACE_FILE))

    def probe(self) -> None:
        """A file system does, or says so with the write."""

    def read(self, relative: str) -> bytes | None:
        """Read a whole small file; None if it is not there."""
        with storage_errors(f"reading {relative}"):
            try:
                with open(self.path(relative), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def create(
        self, relative: str, data: bytes, *, sync: bool = False, mode: int | None = None
    ) -> bool:
        """Make a file whole, unless the name is taken. Returns whether this call made it."""
        target = self.path(relative)
        if not data:
            return self._create_empty(target)
        draft = f"{target}.{secrets.token_hex(8)}{_DRAFT}"
        with storage_errors(f"creating {target}"):
            try:
                _write_new(draft, data, sync=sync, mode=mode)
                fault("store.create.before_link")
                made = _link(draft, target, data, sync=sync, mode=mode)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(draft)
            if sync:
                sync_folder(os.path.dirname(target))
        return made

    def replace(self, relative: str, data: bytes) -> None:
        """Put a whole file in place, over an earlier one."""
        target = self.path(relative)
        draft = f"{target}.{secrets.token_hex(8)}{_DRAFT}"
        with storage_errors(f"writing {target}"):
            try:
                _write_new(draft, data, sync=False)
                os.replace(draft, target)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(draft)

    def claim(self, relative: str) -> bool:
        """Make a folder, unless it is there: making one is exclusive."""
        return self.make_folder(relative)

    def make_folder(self, relative: str, mode: int | None = None) -> bool:
        """Make a folder and those above it. Returns False if it was there already.

        `mode` is for the workspace's own folder; the others follow what it records.
        """
        full = self.path(relative)
        with storage_errors(f"making folder {full}"):
            try:
                if not os.path.isdir(self.root):
                    if not os.path.exists(os.path.dirname(self.root)):
                        os.makedirs(os.path.dirname(self.root), exist_ok=True)
                    modes.make_folder(self.root, mode or modes.PRIVATE)
                    if full == self.root:
                        return True
                return modes.make_folders(full)
            except FileExistsError:
                return False

    def names(self, relative: str) -> list[str]:
        """Names in a folder, in no order; empty if there is no such folder."""
        with storage_errors(f"listing {relative}"):
            try:
                return os.listdir(self.path(relative))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def names_if_few(self, relative: str, most: int) -> list[str] | None:
        """Names in a folder, or None if there are more than that."""
        names = self.names(relative)
        return names if len(names) <= most else None

    def below(self, relative: str) -> list[str]:
        """Paths of all files below a folder, and of folders with nothing in them."""
        top = self.path(relative)
        return [
            os.path.relpath(os.path.join(above, name), top)
            for above, folders, names in os.walk(top)
            for name in (names or ([] if folders or above == top else [""]))
        ]

    def names_after(self, relative: str, name: str) -> list[str]:
        """Names in a folder that sort behind this one, in no order."""
        return [other for other in self.names(relative) if other > name]

    def numbers(self, relative: str) -> list[int]:
        """Names in a folder that are numbers, lowest first."""
        return sorted(n for n in map(layout.number, self.names(relative)) if n is not None)

    def exists(self, relative: str) -> bool:
        """Whether there is a file or folder of this name."""
        return os.path.lexists(self.path(relative))

    def sizes(self, relative: str, names: Iterable[str]) -> Mapping[str, int]:
        """Bytes of these files of a folder; those that are gone are left out."""
        folder = self.path(relative)
        sizes = {}
        for name in names:
            with contextlib.suppress(OSError):
                sizes[name] = os.stat(os.path.join(folder, name)).st_size
        return sizes

    def load(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer]:
        """A file's length, and this range of it, mapped."""
        path = self.path(relative)
        length = os.stat(path).st_size
        if length < offset + size:
            return length, pa.py_buffer(b"")
        with pa.memory_map(path) as mapped:
            mapped.seek(offset)
            return length, mapped.read_buffer(size)

    def load_into(self, relative: str, offset: int, into: memoryview) -> int | None:
        """Fill memory from a file; None, or the file's length if it ends before that."""
        path = self.path(relative)
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            while into:
                got = file.readinto(into)
                if not got:
                    return os.stat(path).st_size
                into = into[got:]
        return None

    def payload_folder(self, relative: str) -> AbstractContextManager[str]:
        """The folder itself."""
        return contextlib.nullcontext(self.path(relative))

    def keep(self, folder: str, relative: str, names: Iterable[str], *, sync: bool) -> None:
        """They are already where they belong."""
        del relative
        if sync:
            for name in names:
                sync_file(os.path.join(folder, name))

    def spill_folder(self) -> str:
        """A folder of the workspace."""
        return self.path(layout.SPILL)

    def touch(self, relative: str) -> None:
        """Set a file's time of change to now, making it if it is missing."""
        with (
            storage_errors(f"touching {relative}"),
            open(self.path(relative), "ab", opener=modes.opener),
        ):
            os.utime(self.path(relative))

    def prints(self, paths: Sequence[str]) -> list[str | None]:
        """Size, times and number of each file; None of one that changed just now.

        It could change again within one tick of the disk's clock.
        """
        sure_ns = time.time_ns() - _SURE_NS
        return [self._print(path, sure_ns) for path in paths]

    def _print(self, relative: str, sure_ns: int) -> str | None:
        try:
            status = os.stat(self.path(relative))
        except OSError:
            return None
        if max(status.st_mtime_ns, status.st_ctime_ns) > sure_ns:
            return None
        return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"

    def changed_at_ms(self, relative: str) -> int | None:
        """When a file, or the youngest thing directly in a folder, last changed; None if gone."""
        full = self.path(relative)
        with storage_errors(f"looking at {full}"):
            try:
                status = os.stat(full)
                times = [status.st_mtime_ns]
                if stat.S_ISDIR(status.st_mode):
                    with os.scandir(full) as entries:
                        for entry in entries:
                            with contextlib.suppress(FileNotFoundError):
                                times.append(entry.stat().st_mtime_ns)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return max(times) // 1_000_000

    def now_ms(self) -> int:
        """This host's time."""
        return time.time_ns() // 1_000_000

    def remove_drafts(self, relative: str, *, changed_before_ms: int) -> None:
        """Remove what a `create` or `replace` that was killed long ago left in a folder."""
        for name in self.names(relative):
            path = f"{relative}/{name}"
            changed = self.changed_at_ms(path) if is_draft(name) else None
            if changed is not None and changed <= changed_before_ms:
                self.remove_file(path)

    def remove_file(self, relative: str) -> None:
        """Remove a file if it is there."""
        with storage_errors(f"removing {relative}"), contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(relative))

    def remove_folder_if_empty(self, relative: str) -> bool:
        """Remove a folder that holds nothing. Returns whether it is gone."""
        try:
            os.rmdir(self.path(relative))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def discard(self, relative: str) -> bool:
        """Take a folder away at once by moving it aside, then delete it. False if it was gone.

        A writer that is still there cannot finish: no index can appear in a folder half deleted.
        """
        source = self.path(relative)
        with storage_errors(f"removing {relative}"):
            try:
                aside = self._aside(source)
                os.rename(source, aside)
            except FileNotFoundError:
                return False
        fault("store.discard.after_rename")
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def empty_trash(self) -> None:
        """Delete what an interrupted `discard` moved aside."""
        for name in self.names(layout.TRASH):
            shutil.rmtree(self.path(f"{layout.TRASH}/{name}"), ignore_errors=True)

    def sync_folders(self, relative: str) -> None:
        """Make the entries of a folder durable, and of those above it up to the workspace."""
        full = self.path(relative)
        with storage_errors(f"syncing {full}"):
            sync_folder(self.root)
            while full != self.root:
                sync_folder(full)
                full = os.path.dirname(full)

    def each(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """One after the other: a disk answers at once."""
        return [function(item) for item in items]

    def ahead(
        self,
        function: Callable[[Item], Answer],
        items: Iterable[Item],
        *,
        size_of: Callable[[Item], int],
    ) -> Iterator[Answer]:
        """One after the other, when the caller takes the next."""
        del size_of
        return map(function, items)

    def _aside(self, source: str) -> str:
        """A free name to move a folder to: in the trash, or beside it if the disk is too full."""
        name = secrets.token_hex(8)
        trash = self.path(layout.TRASH)
        try:
            modes.make_folders(trash)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return f"{source}.{name}"
        return os.path.join(trash, name)

    def _create_empty(self, target: str) -> bool:
        """A file without content cannot be half there, so it needs no draft."""
        with storage_errors(f"creating {target}"):
            try:
                _write_new(target, b"", sync=False)
            except FileExistsError:
                return False
        return True


def is_draft(name: str) -> bool:
    """Whether a file is one that a `create` or `replace` has not finished."""
    return name.endswith(_DRAFT)


def vanished(error: StorageError) -> bool:
    """Whether an error says that a folder or file was removed meanwhile."""
    return isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)


def sync_folder(path: str) -> None:
    """Make a folder's entries durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: str) -> None:
    """Make a file's bytes durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_new(path: str, data: bytes, *, sync: bool, mode: int | None = None) -> None:
    with open(path, "xb", opener=modes.opener) as file:
        if mode is not None:
            modes.set_file_mode(file.fileno(), mode)
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def _link(draft: str, target: str, data: bytes, *, sync: bool, mode: int | None) -> bool:
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: exclusive all the same, and an index that a crash cuts
        # short does not decode, so the attempt still does not exist.
        try:
            _write_new(target, data, sync=sync, mode=mode)
        except FileExistsError:
            return False
    return True
