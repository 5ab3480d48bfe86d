"""Which users may use the files of a workspace: its own user alone, or those that its mode names.

The mode is asked for once, when a workspace is made, and kept in its `workspace.json` (in
`folder.json` for a host's own folder). Every file made below follows it, in every process and
under every umask; a process's umask is never changed, as threads share it.

Invariant: what is made outside of a workspace, or in one that names no mode, is its user's alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from typing import Final

from millrace.errors import UserError

PRIVATE: Final = 0o700
MARKERS: Final = ("workspace.json", "folder.json")
_MODE: Final = re.compile(r"0?[0-7]{3}|[0-7]{4}")
_FILE_BITS: Final = 0o666
_ALL_BITS: Final = 0o2777
_NO_MODES: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def parse_mode(text: str) -> int:
    """A folder's mode as `chmod` takes it: "0750"."""
    mode = int(text, 8) if _MODE.fullmatch(str(text)) else 0
    if mode & PRIVATE != PRIVATE or mode & ~_ALL_BITS:
        raise UserError(
            f"{text!r} is no mode of a workspace's folders\n"
            "  to fix: give it as chmod takes it, with all rights for the user: "
            '"0700", "0750", "2770"'
        )
    return mode


def format_mode(mode: int) -> str:
    """The mode as text."""
    return f"{mode:04o}"


def mode_within(folder: str) -> int:
    """The mode of folders that are made in this one."""
    recorded = recorded_mode(folder)
    return PRIVATE if recorded is None else recorded


def recorded_mode(folder: str) -> int | None:
    """The mode of the workspace that a folder is in; None outside of one."""
    folder = os.path.abspath(folder)
    while True:
        for name in MARKERS:
            mode = _recorded(folder, name)
            if mode is not None:
                return mode
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def make_folder(path: str, mode: int | None = None) -> None:
    """Make one folder, which must not exist."""
    os.mkdir(path, PRIVATE)
    folder_mode = mode_within(os.path.dirname(path)) if mode is None else mode
    if os.stat(path).st_mode & _ALL_BITS != folder_mode:
        with _where_modes_count():
            os.chmod(path, folder_mode)


def make_folders(path: str) -> bool:
    """Make a folder and those above it that are missing. Returns False if it was there."""
    try:
        make_folder(path)
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        return make_folders(path)  # Another process may make it at the same time.
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: a file that this makes follows the mode of its workspace."""
    while flags & os.O_CREAT:
        try:
            handle = os.open(path, flags | os.O_EXCL, PRIVATE & _FILE_BITS)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        else:
            set_file_mode(handle, mode_within(os.path.dirname(path)))
            return handle
        with contextlib.suppress(FileNotFoundError):  # Removed meanwhile.
            return os.open(path, flags & ~os.O_CREAT)
    return os.open(path, flags)


def set_file_mode(handle: int, folder_mode: int) -> None:
    """Give an open file the rights of a folder's mode, as far as they are of use to a file."""
    file_mode = folder_mode & _FILE_BITS
    if os.fstat(handle).st_mode & _ALL_BITS != file_mode:
        with _where_modes_count():
            os.fchmod(handle, file_mode)


def make_file(path: str) -> None:
    """Make an empty file with the right mode, which a library then writes."""
    os.close(opener(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))


def _recorded(folder: str, name: str) -> int | None:
    """The mode that a marker in a folder records; None if there is none to be trusted."""
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") as file:
            # Anybody could put one into a folder that is open to all, such as /tmp.
            if os.fstat(file.fileno()).st_uid != os.stat(folder).st_uid:
                return None
            return parse_mode(json.loads(file.read()).get("mode", format_mode(PRIVATE)))
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
        return None
    except (ValueError, AttributeError, UserError):
        return PRIVATE


@contextlib.contextmanager
def _where_modes_count() -> Iterator[None]:
    """Some disks have no modes, and refuse to set one."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise
