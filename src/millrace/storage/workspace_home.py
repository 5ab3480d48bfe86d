"""The folder or bucket of a workspace: the first call that writes makes it.

Invariant: a call that reads creates nothing. An object that has seen its workspace never makes it
anew: when the workspace is gone, every call says so.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from millrace.config import Config
from millrace.errors import UserError, WorkspaceUnknown
from millrace.storage import layout, modes, workspace_file
from millrace.storage.local import LocalStore
from millrace.storage.objects.object_address import is_url
from millrace.storage.objects.object_store import open_object_store
from millrace.storage.store import Store
from millrace.storage.workspace_place import record_place, refuse_copy
from millrace.storage.workspace_token import check_mode, make

_SHOWN_MAX: Final = 5
_NOBODYS: Final = frozenset({"lost+found"})
"""Names that an otherwise empty folder may have: the root of a disk has this one."""
RESTORING_FILE: Final = "restoring.json"
"""In a folder that is to become a workspace again, until it is one."""
_LOOK_AGAIN_S: Final = 3.0
"""After so long a bucket is asked again whether the workspace is there."""
_PARTS: Final = frozenset({layout.SHUFFLE, layout.FINGERPRINTS, "journals", "token"})

Mark = tuple[int, int, int]
"""Which file `workspace.json` is: its device, number and time of change."""


def store_at(path: str, config: Config, *, mode: int | None = None) -> Store:
    """The store of a workspace at a path. Nothing is read yet."""
    if not is_url(path):
        return LocalStore(os.path.abspath(os.path.expanduser(path)))
    if mode is not None:
        raise UserError(
            f"workspace {path} is in a bucket, which has no modes\n"
            f"  found: mode {modes.format_mode(mode)}\n"
            "  to fix: leave mode= out; the bucket's policy says who may read it"
        )
    return open_object_store(path, config)


class WorkspaceHome:
    """Where a workspace is, or is to be. May be used by many threads."""

    def __init__(
        self, store: Store, *, create: bool | None = None, mode: int | None = None
    ) -> None:
        """Look once, so that a path that can be no workspace is refused at once.

        Args:
            store: the folder, or the part of a bucket.
            create: None to make a workspace with the first call that writes, in a folder that is
                new or empty; True to make it now, beside other files as well; False to make none.
            mode: what the folders of a workspace that is made are to have; one that is there must
                have it already.
        """
        self._store = store
        self._create = create
        self._mode = mode
        self._id: str | None = None
        self._mark: Mark | None = None
        self._looked_until = 0.0
        self._is_placed = False
        self._lock = threading.Lock()
        if not store.remote:
            _refuse_file(store.root)
        if create:
            store.probe()
            if self._find() is None:
                _refuse_restoring(store)
                make(store, mode)
            self.make()
        elif create is False:
            self.look()
        elif (workspace_id := self._find()) is not None:
            self._accept(workspace_id, _mark(store))

    def look(self, *, is_early: bool = False) -> str:
        """The workspace's id; `WorkspaceUnknown` if there is none, or not the one of before.

        `is_early` is for a thread that looks so often that others need not wait for a bucket.
        """
        mark = _mark(self._store)
        if mark is not None and mark == self._mark and self._id is not None:
            return self._id
        if self._id is not None and self._has_just_looked() and not is_early:
            return self._id
        return self._accept(self._find(), mark)

    def _has_just_looked(self) -> bool:
        """Whether a bucket was asked so lately that it is not asked again."""
        return self._store.remote and time.monotonic() < self._looked_until

    def _accept(self, workspace_id: str | None, mark: Mark | None) -> str:
        """Go on with the workspace that was found."""
        if workspace_id is not None and self._id is None:
            refuse_copy(self._store)
        with self._lock:
            self._looked_until = 0.0
            if workspace_id is None:
                raise self._gone() if self._id is not None else missing(self._store)
            if self._id not in (None, workspace_id):
                raise self._replaced(workspace_id)
            if self._mode is not None:
                check_mode(self._store, self._mode)
            self._id, self._mark = workspace_id, mark
            self._looked_until = time.monotonic() + _LOOK_AGAIN_S
            return workspace_id

    def make(self) -> str:
        """The workspace's id for a call that writes; the workspace is made now if there is none."""
        self._store.probe()
        if self._id is None and self._find() is None:
            if self._create is False:
                raise missing(self._store)
            _refuse_restoring(self._store)
            # What another process made meanwhile is a workspace by now.
            if (others := _others(self._store)) and self._find() is None:
                raise _not_empty(self._store, others)
            make(self._store, self._mode)
        workspace_id = self.look()
        if not self._is_placed:
            record_place(self._store)
            self._is_placed = True
        return workspace_id

    def is_there(self) -> bool:
        """Whether there is a workspace now."""
        return (self._id is not None and self._has_just_looked()) or self._find() is not None

    def _find(self) -> str | None:
        data = self._store.read(layout.WORKSPACE_FILE)
        where = self._store.path(layout.WORKSPACE_FILE)
        return None if data is None else workspace_file.decode(data, where=where)

    def _gone(self) -> WorkspaceUnknown:
        return WorkspaceUnknown(
            f"the workspace at {self._store.root} was deleted while it was open\n"
            f"  found: {_content(self._store)}\n"
            "  to fix: restore it, or open the path again to begin a new workspace there"
        )

    def _replaced(self, other_id: str) -> WorkspaceUnknown:
        return WorkspaceUnknown(
            f"the workspace at {self._store.root} is another one than when it was opened\n"
            f"  expected: {self._id}, found: {other_id}\n"
            "  to fix: open the path again to use the workspace that is there now"
        )


def missing(store: Store) -> WorkspaceUnknown:
    """The error for a place that is no workspace."""
    return WorkspaceUnknown(
        f"there is no workspace at {store.root}\n  found: {_content(store)}\n"
        "  to fix: give the path of a workspace; the first call that writes makes one, as "
        "from_arrow() or journals.create()"
    )


def _content(store: Store) -> str:
    """What the folder has instead of a workspace, in a few words."""
    if store.remote:
        return f"no object {store.path(layout.WORKSPACE_FILE)}"
    if not os.path.lexists(store.root):
        return "no such folder"
    names = sorted(store.names("."))
    if not names:
        return "an empty folder"
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    shown = ", ".join(names[:_SHOWN_MAX])
    return f"a folder without {layout.WORKSPACE_FILE} that holds {shown}{more}"


def _refuse_file(root: str) -> None:
    at = root
    while not os.path.lexists(at) and at != os.path.dirname(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        raise UserError(
            f"{root} cannot be a workspace: a workspace is a folder\n  found: {at} is a file\n"
            "  to fix: give the path of a folder"
        )


def _refuse_restoring(store: Store) -> None:
    if store.exists(RESTORING_FILE):
        raise UserError(
            f"{store.root} is being restored from a backup\n  found: {RESTORING_FILE}\n"
            "  to fix: wait for `millrace restore`, or run it again; or remove the folder"
        )


def _others(store: Store) -> list[str]:
    """Names in a folder that are not Millrace's."""
    if store.remote:
        return []
    return [
        name
        for name in store.names(".")
        if not name.startswith((".", layout.WORKSPACE_FILE)) and name not in _NOBODYS
    ]


def _not_empty(store: Store, others: list[str]) -> UserError:
    advice = (
        f"restore {layout.WORKSPACE_FILE}: this looks like a workspace that lost it"
        if _PARTS & set(others)
        else "give a folder of its own, or say millrace.open(path, create=True)"
    )
    return UserError(
        f"no workspace is made at {store.root}, which is not empty\n  found: {_content(store)}\n"
        f"  to fix: {advice}"
    )


def _mark(store: Store) -> Mark | None:
    """None where looking at the file's times is no cheaper than reading it."""
    if not isinstance(store, LocalStore):
        return None
    try:
        status = os.stat(os.path.join(store.root, layout.WORKSPACE_FILE))
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
