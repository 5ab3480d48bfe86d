"""Which paths are within a folder: names that lead out of it, and links that do, are refused.

Invariant: what is refused is never opened. A folder is looked at once for each process, which is
enough for a workspace that another user wrote, and not against a user that changes it meanwhile.
"""

from __future__ import annotations

import functools
import os
from typing import Final

from millrace.errors import UserError

_FOLDERS_MAX: Final = 4096
"""Of how many folders it is remembered that no link leads out of the workspace."""


def path_within(root: str, relative: str) -> str:
    """The absolute path of a name within a folder."""
    full = os.path.normpath(os.path.join(root, relative))
    if "\0" in full:
        raise UserError(
            f"path {relative!r} has a zero byte in it\n  found: {full!r}\n  to fix: leave it out"
        )
    if not _is_within(full, root):
        raise _outside(relative, root, full)
    if full != root:
        _check_folder(root, os.path.dirname(full))
        if os.path.islink(full):
            _check_real(root, full)
    return full


@functools.lru_cache(_FOLDERS_MAX)
def _check_folder(root: str, folder: str) -> None:
    """Refuse a folder that links lead out of the workspace; checked once, for it costs much."""
    parent = os.path.dirname(folder)
    if folder == root.rstrip("/") or parent == folder:
        return
    # Within a folder that is fine, only a link leads elsewhere.
    _check_folder(root, parent)
    if os.path.islink(folder):
        _check_real(root, folder)


def _check_real(root: str, path: str) -> None:
    real = os.path.realpath(path)
    if real != path and not _is_within(real, os.path.realpath(root)):
        raise _outside(os.path.relpath(path, root), root, f"a link to {real}")


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _outside(relative: str, root: str, target: str) -> UserError:
    return UserError(
        f"path {relative!r} leads outside the workspace {root}\n  found: {target}\n"
        "  to fix: use names within the workspace; do not open a workspace of somebody you do not "
        "trust"
    )
