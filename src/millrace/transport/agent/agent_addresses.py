"""Where the agents of a workspace answer, as the driver last heard.

Invariant: an address is only a hint. An agent proves by its answer that it serves the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from millrace.ids import FolderId
from millrace.storage import layout
from millrace.storage.local import Store
from millrace.transport.flight.wire import checked_folder

AGENTS: Final = "agents"
_SUFFIX: Final = ".json"

AddressOf = Callable[[FolderId], str | None]


def record_agent(store: Store, folder: FolderId, address: str) -> None:
    """Note where the agent of a host's folder answers now."""
    if agent_address(store, folder) != address:
        store.make_folder(AGENTS)
        store.replace(_path(folder), json.dumps({"address": address}).encode())


def agent_address(store: Store, folder: FolderId) -> str | None:
    """Where the agent of a host's folder answered last; None if that is not known."""
    data = store.read(_path(folder))
    try:
        return None if data is None else str(json.loads(data)["address"])
    except (ValueError, KeyError, TypeError):
        return None  # Only a hint: the next task on that host records it again.


def known_agents(store: Store) -> dict[FolderId, str]:
    """Every folder of a host that this workspace heard of, with its agent's address."""
    found = {}
    for name in sorted(store.names(AGENTS)):
        if name.endswith(_SUFFIX):
            text = name.removesuffix(_SUFFIX)
            if not layout.is_folder_id(text):
                continue
            folder = FolderId(text)
            address = agent_address(store, folder)
            if address is not None:
                found[folder] = address
    return found


def _path(folder: FolderId) -> str:
    return f"{AGENTS}/{checked_folder(folder)}{_SUFFIX}"
