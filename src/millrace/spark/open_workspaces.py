"""The workspaces that are open in this process, for calls that name none."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace.spark.workspace_runtime import WorkspaceRuntime

_REMEMBERED_MAX: Final = 100
_opened: Final[deque[weakref.ref[WorkspaceRuntime]]] = deque(maxlen=_REMEMBERED_MAX)
"""The last one is last."""


def note_opened(runtime: WorkspaceRuntime) -> None:
    """A workspace was opened."""
    _opened.append(weakref.ref(runtime))


def active_runtime(call: str) -> WorkspaceRuntime:
    """The workspace that was opened last."""
    for known in reversed(_opened):
        runtime = known()
        if runtime is not None and not runtime.is_closed:
            return runtime
    raise UserError(f"{call}() needs a workspace\n  found: none is open\n  to fix: mr.open(path)")
