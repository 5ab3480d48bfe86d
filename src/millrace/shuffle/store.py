"""A workspace folder on a disk: the few operations that the shuffle's protocol is made of.

Invariant: a file made by `create` appears whole or not at all, and never replaces another. Every
path is checked to lie within the folder. The operating system's refusals become `StorageError`s
that name the path and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace.errors import StorageError, UserError
from millrace.faults import fault
from millrace.shuffle import layout

_ADVICE: Final = {
    errno.ENOSPC: "the disk is full; free space or choose another workspace folder",
    errno.EDQUOT: "the disk quota is used up; free space or choose another workspace folder",
    errno.EACCES: "no permission; give this user the right to write there",
    errno.EPERM: "not permitted; give this user the right to write there",
    errno.EROFS: "the file system is read-only; choose another workspace folder",
    errno.ENOENT: "the folder or file vanished; somebody removed it while it was in use",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.EIO: "the disk failed; look at the system log",
}
_DRAFT: Final = ".draft"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


@contextlib.contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn what the operating system refuses into a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "look at the path and the system log")
        raise StorageError(f"{doing} failed: {error}\n  to fix: {advice}") from error


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder on a local or shared disk."""

    root: str

    def __post_init__(self) -> None:
        """Keep the folder when the process goes to another one."""
        object.__setattr__(self, "root", os.path.abspath(self.root))

    def path(self, relative: str) -> str:
        """Absolute path of a name within the workspace; a name that leads outside is refused."""
        full = os.path.normpath(os.path.join(self.root, relative))
        if "\0" in full:
            raise UserError(f"path {relative!r} has a zero byte in it")
        if full != self.root and not full.startswith(self.root.rstrip("/") + "/"):
            raise UserError(f"path {relative!r} leads outside the workspace {self.root}")
        return full

    def read(self, relative: str) -> bytes | None:
        """Read a whole small file; None if it is not there."""
        with storage_errors(f"reading {relative}"):
            try:
                with open(self.path(relative), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def create(self, relative: str, data: bytes, *, sync: bool = False, mode: int = 0o666) -> bool:
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
        """Put a file in place whole, over whatever was there."""
        target = self.path(relative)
        draft = f"{target}.{secrets.token_hex(8)}{_DRAFT}"
        with storage_errors(f"writing {target}"):
            try:
                _write_new(draft, data, sync=False)
                os.replace(draft, target)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(draft)

    def make_folder(self, relative: str) -> bool:
        """Make a folder and those above it. Returns False if it was there already."""
        full = self.path(relative)
        with storage_errors(f"making folder {full}"):
            try:
                # Not exist_ok: a folder above that is removed meanwhile would read as a file there.
                os.makedirs(full)
            except FileExistsError:
                return False
        return True

    def names(self, relative: str) -> list[str]:
        """Names in a folder, in no order; empty if there is no such folder."""
        with storage_errors(f"listing {relative}"):
            try:
                return os.listdir(self.path(relative))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def numbers(self, relative: str) -> list[int]:
        """Names in a folder that are numbers, lowest first."""
        return sorted(n for n in map(layout.number, self.names(relative)) if n is not None)

    def exists(self, relative: str) -> bool:
        """Whether there is a file or folder of this name."""
        return os.path.lexists(self.path(relative))

    def touch(self, relative: str) -> None:
        """Set a file's time of change to now, making it if need be."""
        with storage_errors(f"touching {relative}"), open(self.path(relative), "ab"):
            os.utime(self.path(relative))

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

    def remove_drafts(self, relative: str, *, changed_before_ms: int) -> None:
        """Remove what a `create` or `replace` that was killed long ago left in a folder."""
        for name in self.names(relative):
            path = f"{relative}/{name}"
            changed = self.changed_at_ms(path) if name.endswith(_DRAFT) else None
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

        Whoever still writes there fails to finish: no index can appear in a folder half deleted.
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

    def _aside(self, source: str) -> str:
        """A free name to move a folder to: in the trash, or beside it if the disk is too full."""
        name = secrets.token_hex(8)
        trash = self.path(layout.TRASH)
        try:
            os.makedirs(trash, exist_ok=True)
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


def _write_new(path: str, data: bytes, *, sync: bool, mode: int = 0o666) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def _link(draft: str, target: str, data: bytes, *, sync: bool, mode: int) -> bool:
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
