"""Publishes a folder of result files whole: written next to its target, then moved in one step.

    {parent}/.{name}.millrace-{token}/lock      held by the writer as long as it lives
    {parent}/.{name}.millrace-{token}/tasks/    files of all tries of tasks
    {parent}/.{name}.millrace-{token}/result/   the files that count; it becomes the target
    {parent}/.{name}.millrace-{token}/old/      what was at the target, where two folders cannot be
                                                swapped

A writer that is cut off before it publishes leaves `tasks`, and one with the same token goes on
with those files.

Invariant: whenever the writer is killed, the target is what it was before or the new result, whole.
On a disk that cannot swap two folders at once there is a moment in which the target is missing;
the earlier result is then in `old`, and the next write puts it back first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from millrace.errors import StorageError, UserError
from millrace.faults import fault
from millrace.storage.local import sync_file, sync_folder
from millrace.storage.storage_options import StorageOptions
from millrace.storage.store import storage_errors

MODES: Final = ("error", "errorifexists", "overwrite")
SUCCESS_FILE: Final = "_SUCCESS"
_LOCK, _TASKS, _RESULT, _OLD = "lock", "tasks", "result", "old"
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_CANNOT_SWAP: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
_BEGIN_TRIES_MAX: Final = 100
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of renameat2
_HERE: Final = -100  # AT_FDCWD


class Draft:
    """A result on its way to its target.

    As a context manager it leaves nothing behind, unless it was cut off: then files of tasks stay.
    """

    def __init__(self, path: str | os.PathLike[str], mode: str, token: str | None = None) -> None:
        """Check the target, remove what killed writers left, and make the folders.

        With the token of a writer that was cut off, its files are taken over.
        """
        if mode not in MODES:
            raise UserError(f"mode is {mode!r}\n  to fix: use error or overwrite")
        self.target = local_target(os.fspath(path))
        self._overwrite = mode == "overwrite"
        with storage_errors(f"making room for {self.target}"):
            os.makedirs(os.path.dirname(self.target), exist_ok=True)
            _sweep(self.target, token)
            self._check_free()
            self._folder, self._lock = _begin(self.target, token)
            os.makedirs(self.tasks, exist_ok=True)
        self.token = os.path.basename(self._folder).removeprefix(_prefix(self.target))
        self.left = self._publishes = False

    @property
    def tasks(self) -> str:
        """Where tries of tasks write, each to a name of its own."""
        return os.path.join(self._folder, _TASKS)

    @property
    def options(self) -> StorageOptions:
        """How tasks reach the folder: as any other folder."""
        return StorageOptions()

    def has_files(self) -> bool:
        """Whether files of tasks are there."""
        return bool(os.listdir(self.tasks))

    def final_name(self, number: int) -> str:
        """The name of a file of the result."""
        return f"part-{number:05}.parquet"

    def publish(self, names: Mapping[str, str], *, sync: bool) -> None:
        """Move the files that count, each under its final name, to the target: all or none."""
        result, target = os.path.join(self._folder, _RESULT), self.target
        self._publishes = True
        with storage_errors(f"publishing {target}"):
            if sync:  # Moves come after what takes long: a writer that is cut off there goes on.
                for written in names:
                    sync_file(os.path.join(self.tasks, written))
            os.mkdir(result)
            for written, name in names.items():
                final = os.path.join(result, name)
                os.makedirs(os.path.dirname(final), exist_ok=True)
                os.rename(os.path.join(self.tasks, written), final)
            with open(os.path.join(result, SUCCESS_FILE), "xb"):
                pass
            if sync:
                sync_file(os.path.join(result, SUCCESS_FILE))
                for folder, _, _ in os.walk(result):
                    sync_folder(folder)
            fault("results.publish.before_move")
            self._move(result)
            fault("results.publish.after_move")
            if sync:
                sync_folder(os.path.dirname(target))

    def close(self) -> None:
        """Remove all files beside the target, and release the lock."""
        with contextlib.suppress(OSError):
            _clear(self._folder, self.target)
        os.close(self._lock)

    def leave(self) -> None:
        """Leave files of tasks to a writer with this token, if there are some; else `close`."""
        self.left = not self._publishes and _can_go_on(self._folder)
        if self.left:
            os.close(self._lock)
        else:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, UserError):
            self.close()
        else:
            self.leave()

    def _check_free(self) -> None:
        if os.path.lexists(self.target) and not os.path.isdir(self.target):
            raise UserError(f"{self.target} is a file\n  to fix: name a folder, it will be made")
        if not self._overwrite and os.path.isdir(self.target) and os.listdir(self.target):
            raise self._not_empty()

    def _not_empty(self) -> UserError:
        return UserError(
            f"{self.target} exists already\n  to fix: choose another path, or give mode='overwrite'"
        )

    def _move(self, result: str) -> None:
        """A folder takes the place of nothing or of an empty folder; others have to be swapped."""
        try:
            os.rename(result, self.target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            if not self._overwrite:
                raise self._not_empty() from error
            self._swap(result)

    def _swap(self, result: str) -> None:
        if exchange(result, self.target):
            return
        os.rename(self.target, os.path.join(self._folder, _OLD))
        fault("results.publish.between_moves")
        os.rename(result, self.target)


def exchange(left: str, right: str) -> bool:
    """Swap two folders in one step. False if this system or disk cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_HERE, os.fsencode(left), _HERE, os.fsencode(right), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_SWAP:
        return False
    raise OSError(number, os.strerror(number), right)


def local_target(path: str) -> str:
    """A path as it is on the disk."""
    plain = path.removeprefix("file:")
    plain = "/" + plain.lstrip("/") if plain.startswith("//") else plain
    if "://" in plain:
        raise UserError(
            f"{path} is not a local path\n"
            "  to fix: give a folder on a disk that all hosts share, or use to_spark().write"
        )
    full = os.path.realpath(os.path.expanduser(plain))
    if not os.path.basename(full):
        raise UserError(f"{path} cannot be replaced\n  to fix: name a folder in it")
    return full


def _prefix(target: str) -> str:
    return f".{os.path.basename(target)}.millrace-"


def _begin(target: str, token: str | None) -> tuple[str, int]:
    """A folder beside the target, and the lock that shows that its writer lives.

    It is that of the token, unless another writer has it, or was cut off while it published.
    """
    parent = os.path.dirname(target)
    for _ in range(_BEGIN_TRIES_MAX):
        folder = os.path.join(parent, _prefix(target) + (token or secrets.token_hex(8)))
        token = None
        try:
            os.mkdir(folder)
        except FileExistsError:
            lock = _take_over(folder)
            if lock is None:
                continue
            return folder, lock
        # Another writer may take an unlocked folder for a dead one's, up to the last line.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(os.path.join(folder, _LOCK), os.O_CREAT | os.O_RDWR, 0o666)
            if _try_lock(lock) is not False and os.path.exists(os.path.join(folder, _LOCK)):
                return folder, lock
            os.close(lock)
    raise StorageError(
        f"no room beside {target} in {_BEGIN_TRIES_MAX} tries\n"
        "  to fix: run again, or remove folders of other runs beside it"
    )


def _take_over(folder: str) -> int | None:
    """The lock of a writer that was cut off before it published; None if it lives, or published."""
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR)
    except FileNotFoundError:
        return None
    if _try_lock(lock) and _can_go_on(folder):
        return lock
    os.close(lock)
    return None


def _can_go_on(folder: str) -> bool:
    """Whether files of tasks are there, and none of them was moved."""
    tasks = os.path.join(folder, _TASKS)
    moved = any(os.path.lexists(os.path.join(folder, name)) for name in (_RESULT, _OLD))
    return not moved and os.path.isdir(tasks) and bool(os.listdir(tasks))


def _try_lock(handle: int) -> bool | None:
    """Whether the lock is ours now; None on a disk without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _sweep(target: str, token: str | None) -> None:
    """Remove what killed writers of this target left; on a disk without locks it stays.

    Of the writer with this token, files of tasks stay.
    """
    parent = os.path.dirname(target)
    for name in os.listdir(parent):
        if not name.startswith(_prefix(target)):
            continue
        folder = os.path.join(parent, name)
        if name == f"{_prefix(target)}{token}" and _can_go_on(folder):
            continue
        try:
            lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR)
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # Killed before it had a lock.
            continue
        try:
            if _try_lock(lock):
                with contextlib.suppress(OSError):
                    _clear(folder, target)
        finally:
            os.close(lock)


def _clear(folder: str, target: str) -> None:
    """Put the earlier result back if no new one is there, then remove the rest."""
    old = os.path.join(folder, _OLD)
    if os.path.isdir(old) and not os.path.lexists(target):
        os.rename(old, target)
    for name in (_TASKS, _RESULT, _OLD):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    if os.listdir(folder) == [_LOCK]:  # The lock goes last: without it the rest would stay.
        os.unlink(os.path.join(folder, _LOCK))
        os.rmdir(folder)
